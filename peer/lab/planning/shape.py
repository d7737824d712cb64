"""Chooses the shape of a built-in Llama with about a given number of parameters."""

from __future__ import annotations

import math

from peer.errors import UsageError
from peer.lab.planning.checks import between
from peer.run.sections import LlamaSection

LAYERS = {
    1e6: 3,
    35e6: 6,
    100e6: 9,
    200e6: 12,
    300e6: 15,
    500e6: 18,
    1e9: 24,
    4e9: 36,
    10e9: 48,
    100e9: 108,
}
"""Number of parameters -> number of layers, as in Streaming DiLoCo (arXiv 2501.18512). The first entry is ours, for
tiny models."""
LEAST_PARAMS, MOST_PARAMS = 1e4, 2e11
HEAD, NARROW_HEAD = 64, 16
"""Width of an attention head in models at least WIDE wide, and in narrower ones."""
WIDE = 384
INNER = 8
"""The width of the MLP is a multiple of this."""


def layers_for(params: float) -> int:
    """Return the number of layers of the published model that is nearest in size."""
    return LAYERS[min(LAYERS, key=lambda known: abs(math.log(params / known)))]


def shape_for(params: float, vocab: int, context: int) -> LlamaSection:
    """Return a model with about `params` parameters: the hidden width as usual for its depth, and the MLP width fitted
    to the rest. Raises UsageError if the vocabulary leaves no parameters for layers."""
    between("--params", params, LEAST_PARAMS, MOST_PARAMS)
    layers = layers_for(params)
    usual = (math.sqrt(vocab**2 + 48 * layers * params) - vocab) / (24 * layers)  # the solution h of 12 L h^2 + V h = N
    head = HEAD if usual >= WIDE else NARROW_HEAD
    hidden = max(head, head * round(usual / head))
    rest = params - vocab * hidden - layers * (4 * hidden**2 + 2 * hidden) - hidden
    inner = INNER * round(rest / (3 * layers * hidden) / INNER)
    if inner < INNER:
        raise UsageError(
            f"--params {params:g} leave no room for layers beside a vocabulary of {vocab:,}",
            "Give more --params, or a smaller vocabulary.",
        )
    return LlamaSection(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=hidden // head,
        num_key_value_heads=hidden // head,
        max_position_embeddings=context,
    )


def settings_of(model: LlamaSection) -> list[str]:
    """Return the model as `key=value` settings of a manifest."""
    return [f"model.{name}={value}" for name, value in model.model_dump().items() if name != "kind"]
