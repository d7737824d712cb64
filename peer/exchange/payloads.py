"""Payloads of an exchange that are computed slice by slice when they are read. Storing them would take as much memory
as the fragment."""

from __future__ import annotations

import torch
from torch import Tensor

from peer.codec.stream import Flat
from peer.outer.arithmetic import pseudo_gradient_, step_along_


class _Work:
    """A share of the work between `outer` and `params`. Neither tensor may change while it is read."""

    def __init__(self, params: Tensor, outer: Tensor, share: float) -> None:
        assert params.shape == outer.shape, (params.shape, outer.shape)
        self._params, self._outer, self._share = params, outer, share

    def numel(self) -> int:
        return self._params.numel()


class ScaledParams(_Work):
    """outer + share * (params - outer), computed as `step_along_` does. The share may be above 1."""

    def __getitem__(self, part: slice, /) -> Tensor:
        values = self._params[part].clone()
        step_along_(values, self._outer[part], self._share)
        return values


class PseudoGradient(_Work):
    """(outer - params) * share, computed as `pseudo_gradient_` does."""

    def __getitem__(self, part: slice, /) -> Tensor:
        return pseudo_gradient_(self._params[part].clone(), self._outer[part], self._share)


class TensorSlice:
    """The values from element `start` to element `end`, without a copy."""

    def __init__(self, values: Flat, start: int, end: int) -> None:
        assert 0 <= start <= end <= values.numel(), (start, end)
        self._values, self._start, self._end = values, start, end

    def numel(self) -> int:
        return self._end - self._start

    def __getitem__(self, part: slice, /) -> Tensor:
        start, end, step = part.indices(self.numel())
        assert step == 1, part
        return self._values[self._start + start : self._start + end]


class Concatenated:
    """The values of two vectors, one after the other, without a copy."""

    def __init__(self, one: Flat, other: Flat) -> None:
        self._one, self._other = one, other

    def numel(self) -> int:
        return self._one.numel() + self._other.numel()

    def __getitem__(self, part: slice, /) -> Tensor:
        start, end, step = part.indices(self.numel())
        assert step == 1, part
        middle = self._one.numel()
        if end <= middle:
            return self._one[start:end]
        if start >= middle:
            return self._other[start - middle : end - middle]
        return torch.cat([self._one[start:middle], self._other[0 : end - middle]])


def work_of(params: Tensor, outer: Tensor, share: float) -> Flat:
    """Return the params to send: `outer` plus the given share of the work since then, without a copy."""
    return params if share == 1 else ScaledParams(params, outer, share)
