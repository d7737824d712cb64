"""An estimate of the activations of an inner step, from the model's shape alone. The daemon uses it before torch is
loaded, the trainer before its first step. Parameters, gradients and moments are not in it."""

from __future__ import annotations

from peer.run.sections import ModelSection

LAYER_BYTES, LOGIT_BYTES = 33, 16
"""Bytes for each token of a step, in fp32. A layer keeps so many for each of its (hidden_size + intermediate_size), the
head so many for each entry of the vocabulary."""


def window_bytes(model: ModelSection, context: int) -> int:
    """Return the bytes of one window of `context` tokens, forward and backward."""
    widths = model.num_hidden_layers * (model.hidden_size + model.intermediate_size)
    return context * (LAYER_BYTES * widths + LOGIT_BYTES * model.vocab_size)


def largest_micro_batch(batch: int, window: int, free: int) -> int:
    """Return how many windows of `window` bytes go through the model at once. That is all of the batch if they fit into
    `free` bytes. Otherwise it is the largest power of two that does, and at least one."""
    if batch * window <= free:
        return batch
    fitting = max(1, min(batch, free // max(window, 1)))
    power: int = 1 << (fitting.bit_length() - 1)
    return power
