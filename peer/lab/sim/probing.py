"""The probe of a partner's params, and the weighing of a donor's state, by a simulated trainer. Neither takes virtual
time."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from peer.outer.arithmetic import step_along_
from peer.ports.trainer import ProbeTerms
from peer.protocol.pair.probe_verdict import ProbeLosses
from peer.protocol.policy.donors import StateLosses

NO_MODEL = "a trainer without a model has no loss"
SYMBOLS = 16
"""Vocabulary size of the simulator's models."""


def probe_losses(
    params: Tensor,
    span: tuple[int, int],
    vectors: tuple[Tensor, Tensor, Tensor],
    terms: ProbeTerms,
    window_losses: Callable[[Tensor, int], tuple[float, ...]],
) -> ProbeLosses | str:
    """Return the losses of the model with each candidate in place of one fragment: base, own, mixed, partner's. Return
    a sentence instead if the trainer has no model.

    params: flat fp32, overwritten. span: the fragment's (start, end) in `params`. vectors: the fragment's outer_params,
    the own snapshot (overwritten) and the partner's values. window_losses: returns the loss of each window, for params
    and a seed."""
    base, own, partner = vectors
    step_along_(own, base, terms.share)

    def losses(values: Tensor) -> tuple[float, ...]:
        params[slice(*span)] = values
        return window_losses(params, terms.seed)

    if not (found := losses(own)):
        return NO_MODEL
    mixed = losses(own.lerp(partner, terms.taken / 2))
    return ProbeLosses(losses(base), found, mixed, losses(partner), math.log(SYMBOLS))


def state_losses(windows: tuple[float, ...]) -> StateLosses | str:
    """Return the losses of a whole state, or a sentence if the trainer has no model. `windows`: one loss for each
    window."""
    return StateLosses(windows, math.log(SYMBOLS)) if windows else NO_MODEL
