"""Estimates the activations of an inner step from the model's shapes. The daemon uses it before torch is loaded, the
trainer before its first step. Parameters, gradients and moments are counted by `TRAINER_BYTES`."""

from __future__ import annotations

from collections.abc import Sequence

from peer.protocol.model.layout import TensorSpec
from peer.run.sections import CustomSection, ModelSection, TransformersSection

TRAINER_BYTES = 16
"""Bytes per parameter in the trainer, fp32: the parameter, its gradient, and the optimizer's two moments."""
ACTIVATION_SHARE = 0.8
"""Part of the remaining free memory that an inner step may use. The rest is left to the volunteer."""
LAYER_BYTES, LOGIT_BYTES = 33, 16
"""Bytes per token of a step, in fp32: of a layer for each of its hidden_size + intermediate_size elements, and of the
head for each entry of the vocabulary."""
CHUNK_ENTRIES, DEVICE_CHUNK_ENTRIES = 2**23, 2**26
"""Logits per chunk when the loss is computed in chunks: in main memory, and on an accelerator."""
KEPT_SHARE = 0.05
"""Approximate part of a layer's activations that are its inputs. They are stored when the rest is recomputed."""


MATRIX_BYTES = 8
"""Bytes per token of a step that a foreign model stores for each row and column of a matrix: the input and output of
the matrix, and half as much again for the operations between."""


def window_bytes(model: ModelSection, context: int, tensors: Sequence[TensorSpec] | None = None) -> int:
    """Return the bytes of one window of `context` tokens, forward and backward. `tensors`: those of a foreign model.
    Without them, and for a custom model, the activations are not known and count as 0."""
    if isinstance(model, CustomSection):
        return 0
    if isinstance(model, TransformersSection):
        return context * _foreign_bytes(tensors or ())
    widths = model.num_hidden_layers * (model.hidden_size + model.intermediate_size)
    return context * (LAYER_BYTES * widths + LOGIT_BYTES * model.vocab_size)


def _foreign_bytes(tensors: Sequence[TensorSpec]) -> int:
    """Return the bytes of a token. The longest side of all matrices is taken as the vocabulary, since such a matrix
    produces logits at most once. A stack of matrices (experts) counts as one matrix."""
    matrices = [tensor.shape[-2:] for tensor in tensors if len(tensor.shape) >= 2]
    vocabulary = max((max(shape) for shape in matrices), default=0)
    inner = sum(sum(shape) for shape in matrices if max(shape) < vocabulary)
    return MATRIX_BYTES * inner + LOGIT_BYTES * vocabulary


def chunk_tokens(vocab_size: int, entries: int = CHUNK_ENTRIES) -> int:
    """Return the number of tokens per chunk of the loss."""
    return max(16, entries // vocab_size)


def recomputed_bytes(activations: int, layers: int) -> int:
    """Return the bytes that remain of `activations` when each of `layers` layers is recomputed for the gradient."""
    return int(activations * (KEPT_SHARE + 1 / layers))


def least_window_bytes(model: ModelSection, context: int, tensors: Sequence[TensorSpec] | None = None) -> int:
    """Return the bytes of one window with the loss in chunks and the layers recomputed, if that is less.

    A foreign model counts in full, because only a trial shows whether it supports recomputing."""
    window = window_bytes(model, context, tensors)
    if isinstance(model, TransformersSection | CustomSection):
        return window
    logit = LOGIT_BYTES * model.vocab_size
    layers = recomputed_bytes(window - logit * context, model.num_hidden_layers)
    head = logit * min(context, chunk_tokens(model.vocab_size)) + 4 * model.vocab_size * model.hidden_size
    return min(window, layers + head)


def largest_micro_batch(batch: int, window: int, free: int) -> int:
    """Return how many windows of `window` bytes pass through the model at once: the whole batch if it fits into `free`
    bytes, otherwise the largest power of two that does, and at least one."""
    if batch * window <= free:
        return batch
    fitting = max(1, min(batch, free // max(window, 1)))
    power: int = 1 << (fitting.bit_length() - 1)
    return power
