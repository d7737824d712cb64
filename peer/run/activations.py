"""What an inner step holds in memory beside parameters, gradients and moments: estimated from the model's shape alone,
so that the daemon can tell before torch is loaded, and the trainer before it has tried."""

from __future__ import annotations

from peer.run.sections import ModelSection

LAYER_BYTES, LOGIT_BYTES = 33, 16
"""For each token of a step, in fp32: a layer keeps so many bytes for each of its (hidden_size + intermediate_size), the
head so many for each entry of the vocabulary. (Measured: 27 to 34, and 16.4.)"""


def window_bytes(model: ModelSection, context: int) -> int:
    """Of one window of `context` tokens, forward and backward."""
    widths = model.num_hidden_layers * (model.hidden_size + model.intermediate_size)
    return context * (LAYER_BYTES * widths + LOGIT_BYTES * model.vocab_size)


def largest_micro_batch(batch: int, window: int, free: int) -> int:
    """How many windows of `window` bytes go through the model at once: all of the batch if they fit into `free` bytes,
    else the largest power of two that does, and at least one."""
    if batch * window <= free:
        return batch
    fitting = max(1, min(batch, free // max(window, 1)))
    power: int = 1 << (fitting.bit_length() - 1)
    return power
