"""SparseLoCo (arXiv 2508.15706): a group sends the largest elements of its updates, and the rest waits."""

from __future__ import annotations

from collections.abc import Iterator

from peer.methods.codec_specs import SPARSE
from peer.methods.entry import MethodEntry, Preset
from peer.methods.method import GROUPED, Caution, Method

TOPK_LOST = {20: 4.0, 50: 5.7}
"""Percent by which the loss with `topk` was above that of no exchange, at the better learning rate tried, by the number
of exchanges (results/methods_loss.json). No longer run was measured."""
DILOCO_GAINED = 4.6
"""Percent by which fp32 (the preset `diloco`) was below it, in the run of 20 exchanges."""


def cautions(method: Method, exchanges: int) -> Iterator[Caution]:
    """Caution against `topk`, whatever the preset."""
    if method.codec == "topk" and method.one_state:
        measured = " and ".join(f"{lost:g} % after {count}" for count, lost in TOPK_LOST.items())
        longer = f"this run of {exchanges:,} is longer than any that was measured" if exchanges > max(TOPK_LOST) else ""
        yield (
            "codec",
            "topk sends a 64th of each update, and the rest waits. On real text the loss was above that of no exchange "
            f"by {measured} exchanges, while fp32 gained {DILOCO_GAINED:g} % in 20"
            f"{f': {longer}' if longer else ''}",
        )


ENTRY = MethodEntry(
    presets=(
        Preset(
            name="sparseloco",
            method=Method(
                rule="sgd",
                outer_lr=1.0,
                outer_momentum=0.0,
                consensus=0.0,
                codec="topk",
                result_codec=SPARSE,
                **GROUPED,
            ),
            purpose="a group on the narrowest links, in a long run: 2 to 3 bits an element in all (arXiv 2508.15706)",
            since=3,
        ),
    ),
    cautions=cautions,
)
