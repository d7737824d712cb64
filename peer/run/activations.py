"""An estimate of the activations of an inner step, from the model's shapes alone. The daemon uses it before torch is
loaded, the trainer before its first step. Parameters, gradients and moments are counted by `TRAINER_BYTES`."""

from __future__ import annotations

from collections.abc import Sequence

from peer.protocol.model.layout import TensorSpec
from peer.run.sections import CustomSection, ModelSection, TransformersSection

TRAINER_BYTES = 16
"""Bytes a parameter in the trainer, fp32: the parameter, its gradient and the optimizer's two moments."""
ACTIVATION_SHARE = 0.8
"""Part of the remaining free memory that an inner step may take: the rest is the volunteer's."""
LAYER_BYTES, LOGIT_BYTES = 33, 16
"""Bytes for each token of a step, in fp32. A layer keeps so many for each of its (hidden_size + intermediate_size), the
head so many for each entry of the vocabulary."""
CHUNK_ENTRIES, DEVICE_CHUNK_ENTRIES = 2**23, 2**26
"""Logits of a chunk, when the loss is made in chunks, in main memory and on an accelerator."""
KEPT_SHARE = 0.05
"""Share of the layers' activations that are their inputs, about. They stay when the rest is computed again."""


MATRIX_BYTES = 8
"""Bytes for each token of a step that a foreign model keeps for each row and column of a matrix. What goes into a
matrix and what comes out of it is kept for the backward pass, and half as much again for what lies between them."""


def window_bytes(model: ModelSection, context: int, tensors: Sequence[TensorSpec] | None = None) -> int:
    """Return the bytes of one window of `context` tokens, forward and backward. `tensors`: those of a foreign model.
    Without them its activations are not known, and count nothing, as those of a custom model never are."""
    if isinstance(model, CustomSection):
        return 0
    if isinstance(model, TransformersSection):
        return context * _foreign_bytes(tensors or ())
    widths = model.num_hidden_layers * (model.hidden_size + model.intermediate_size)
    return context * (LAYER_BYTES * widths + LOGIT_BYTES * model.vocab_size)


def _foreign_bytes(tensors: Sequence[TensorSpec]) -> int:
    """Return the bytes of a token. The longest side of all matrices is taken for the vocabulary: such a matrix makes
    logits at most once. A stack of matrices (experts) counts as one of them."""
    matrices = [tensor.shape[-2:] for tensor in tensors if len(tensor.shape) >= 2]
    vocabulary = max((max(shape) for shape in matrices), default=0)
    inner = sum(sum(shape) for shape in matrices if max(shape) < vocabulary)
    return MATRIX_BYTES * inner + LOGIT_BYTES * vocabulary


def chunk_tokens(vocab_size: int, entries: int = CHUNK_ENTRIES) -> int:
    """Return the tokens of a chunk of the loss."""
    return max(16, entries // vocab_size)


def recomputed_bytes(activations: int, layers: int) -> int:
    """Return what stays of the activations of so many layers when each is computed again for the gradient."""
    return int(activations * (KEPT_SHARE + 1 / layers))


def least_window_bytes(model: ModelSection, context: int, tensors: Sequence[TensorSpec] | None = None) -> int:
    """Return the bytes of one window with the loss in chunks and the layers computed again, if that is less.

    What a foreign model can do is found out by trying it, so it counts in full here."""
    window = window_bytes(model, context, tensors)
    if isinstance(model, TransformersSection | CustomSection):
        return window
    logit = LOGIT_BYTES * model.vocab_size
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
