"""Checks that a model takes windows of the run's length.

A config does not show this reliably: models like RoBERTa take fewer tokens than `max_position_embeddings`, and others
name their limit differently or not at all.

The model is called with its parameters on the meta device, under a dispatch mode. The mode computes tensors that do not
depend on parameters, such as positions, and only the shapes of all others. Each look-up of a position is checked
against the size of its table. A trial thus costs neither the memory nor the time of the model's arithmetic."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from peer.errors import ModelError
from peer.trainer.models.causality import TOKENS, plain_tokens
from peer.trainer.models.foreign import ForeignModel

TRIAL_S = 10.0
"""Seconds of processor time after which the trial ends without a result. A recurrent model may be slow to call."""
MOST_REAL = 2**20
"""Most elements of a tensor that is computed. Windows have fewer tokens; larger tensors, such as masks, are not
needed."""
HERE = torch.device("cpu")
_OPS: Any = torch.ops.aten
_MADE_LIKE = {
    *(_OPS.zeros_like, _OPS.ones_like, _OPS.full_like),
    *(_OPS.new_zeros, _OPS.new_ones, _OPS.new_full),
}
"""Operations that use only shape and type of their tensor argument."""


class _OutOfTime(Exception):
    """The trial took more than `TRIAL_S`."""


def check_length(model: nn.Module, tokens: int) -> None:
    """Raise ModelError for a model that works with a short window, but fails with a window of `tokens` tokens.

    The error names the longest window that works, found by bisection. `model`: with parameters on the meta device and
    real buffers. Returns without an error when the model cannot be tried like this, or not in time."""
    network, deadline = ForeignModel(model), time.process_time() + TRIAL_S
    token = plain_tokens(network)[:, :1]

    def failure(length: int) -> str:
        try:
            with _ShapesOnly(deadline), torch.no_grad():
                network.logits(token.expand(1, length).contiguous())
        except (IndexError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            return f"{type(error).__name__}: {str(error)[:200]}"
        return ""

    try:
        found = failure(tokens)
        if not found or "allocate" in found or failure(TOKENS):
            return
    except (_OutOfTime, MemoryError):
        return
    works, fails = TOKENS, tokens
    try:
        while fails - works > 1:
            middle = (works + fails) // 2
            if why := failure(middle):
                fails, found = middle, why
            else:
                works = middle
    except (_OutOfTime, MemoryError):
        pass
    raise ModelError(
        f"{type(model).__name__} cannot take the {tokens} tokens of train.context: it works with {works} and fails "
        f"with {fails} ({found})",
        f"The operator has to set train.context to {works} at most (--set context={works}), or let the model's config "
        "have more positions.",
        "A window that the model does not take would end the training in its first step, on every peer.",
    )


class _ShapesOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes tensors that depend on no parameter and have at most `MOST_REAL` elements, and only the shapes of
    others.

    An integer that depends on parameters, such as the index of an expert, becomes 0."""

    def __init__(self, deadline: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._deadline = deadline

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if time.process_time() > self._deadline:
            raise _OutOfTime
        if not any(leaf.is_meta for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)):
            out = func(*args, **kwargs)
            if not isinstance(out, Tensor) or out.is_meta is (out.numel() > MOST_REAL):
                return out
            # Positions are made on the device of the embeddings, which is the meta device.
            return func(*args, **kwargs | {"device": HERE}) if out.is_meta else out.to("meta")
        if func is _OPS._local_scalar_dense.default:
            return 0
        if func is _OPS.nonzero.default:
            return torch.zeros((0, args[0].dim()), dtype=torch.int64)
        if func is _OPS.copy_.default and not args[0].is_meta:
            return args[0].zero_()
        _check_looked_up(func, args)
        given = kwargs | ({"device": torch.device("meta")} if "device" in kwargs else {})
        out = func(*_on_meta(args), **_on_meta(given))
        if func._overloadpacket in _MADE_LIKE and out.numel() <= MOST_REAL:
            return func(
                torch.empty(()).expand(args[0].shape), *args[1:], **kwargs | {"device": HERE, "dtype": out.dtype}
            )
        return tree_map_only(Tensor, _known, out)


def _on_meta(values: Any) -> Any:
    return tree_map_only(Tensor, lambda value: value.to("meta"), values)


def _known(out: Tensor) -> Tensor:
    """Replace integers on the meta device by real zeros, which are a valid index into any table."""
    unknown = out.is_floating_point() or out.is_complex() or out.numel() > MOST_REAL
    return out if unknown else torch.zeros(out.shape, dtype=out.dtype)


def _check_looked_up(func: Any, args: Any) -> None:
    """Raise IndexError for a real index outside of its table. The meta device itself does not check indices."""
    if func is _OPS.embedding.default:
        looked_up = [(args[1], args[0].shape[0])]
    elif func in (_OPS.gather.default, _OPS.index_select.default):
        looked_up = [(args[2], args[0].shape[args[1]])]
    elif func is _OPS.index.Tensor:
        looked_up = [(index, size) for index, size in zip(args[1], args[0].shape, strict=False) if index is not None]
    else:
        return
    for index, size in looked_up:
        if not index.is_meta and index.dtype is not torch.bool and index.numel():
            first, last = (int(bound) for bound in index.aminmax())
            if last >= size or first < -size:
                raise IndexError(f"position {last if last >= size else first} of a table of {size}")
