"""Warns of a learning rate at which pretrained weights lose what they learned. Reference rates are from table 2.1 of
arXiv 2005.14165."""

from __future__ import annotations

from peer.run.sections import OptimizerSection

PRETRAINED_LR = 6e-4
"""Peak learning rate of the smallest model in the table, with 125 M parameters. Larger models had lower rates."""


def pretrained_rate_warning(init: str, optimizer: OptimizerSection) -> str:
    """Return the warning of a too high learning rate in a run that begins from pretrained weights (`init`: their
    digest). Empty: the rate is fine, the weights are random, or the optimizer is Muon, whose rates have another
    scale."""
    if not init or optimizer.kind != "adamw" or optimizer.lr <= PRETRAINED_LR:
        return ""
    return (
        f"{optimizer.lr:g} is for a small model that begins from random weights. This run begins from pretrained ones, "
        "which lose what they know at a much higher rate than their own. Models of 125 M parameters were trained with "
        f"{PRETRAINED_LR:g} at most, of 13 B with 1e-4 (arXiv 2005.14165). Take no more than the model's own, as with "
        "--set lr=1e-4"
    )
