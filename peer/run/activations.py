"""An estimate of the activations of an inner step, from the model's shape alone. The daemon uses it before torch is
loaded, the trainer before its first step. Parameters, gradients and moments are not in it."""

from __future__ import annotations

from peer.run.sections import ModelSection

LAYER_BYTES, LOGIT_BYTES = 33, 16
"""Bytes for each token of a step, in fp32. A layer keeps so many for each of its (hidden_size + intermediate_size), the
head so many for each entry of the vocabulary."""
CHUNK_ENTRIES, DEVICE_CHUNK_ENTRIES = 2**23, 2**26
"""Logits of a chunk, when the loss is made in chunks, in main memory and on an accelerator."""
KEPT_SHARE = 0.05
"""Share of the layers' activations that are their inputs, about. They stay when the rest is computed again."""


def window_bytes(model: ModelSection, context: int) -> int:
    """Return the bytes of one window of `context` tokens, forward and backward."""
    widths = model.num_hidden_layers * (model.hidden_size + model.intermediate_size)
    return context * (LAYER_BYTES * widths + LOGIT_BYTES * model.vocab_size)


def chunk_tokens(vocab_size: int, entries: int = CHUNK_ENTRIES) -> int:
    """Return the tokens of a chunk of the loss."""
    return max(16, entries // vocab_size)


def recomputed_bytes(activations: int, layers: int) -> int:
    """Return what stays of the activations of so many layers when each is computed again for the gradient."""
    return int(activations * (KEPT_SHARE + 1 / layers))


def least_window_bytes(model: ModelSection, context: int) -> int:
    """Return the bytes of one window with the loss in chunks and the layers computed again, if that is less."""
    window, logit = window_bytes(model, context), LOGIT_BYTES * model.vocab_size
    layers = recomputed_bytes(window - logit * context, model.num_hidden_layers)
    head = logit * min(context, chunk_tokens(model.vocab_size)) + 4 * model.vocab_size * model.hidden_size
    return min(window, layers + head)


def largest_micro_batch(batch: int, window: int, free: int) -> int:
    """Return how many windows of `window` bytes go through the model at once. That is all of the batch if they fit into
    `free` bytes. Otherwise it is the largest power of two that does, and at least one."""
    if batch * window <= free:
        return batch
    fitting = max(1, min(batch, free // max(window, 1)))
    power: int = 1 << (fitting.bit_length() - 1)
    return power
