"""A probe of a partner's params by a simulated trainer. It takes no virtual time."""

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
"""Tokens of the simulator's models."""


def probe_losses(
    params: Tensor,
    span: tuple[int, int],
    vectors: tuple[Tensor, Tensor, Tensor],
    terms: ProbeTerms,
    window_losses: Callable[[Tensor, int], tuple[float, ...]],
) -> ProbeLosses | str:
    """Return the losses of `params` with each of the fragment's values in the place of `span`. `vectors`: outer_params,
    the snapshot and the partner's. `params` and the snapshot are overwritten."""
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
    """Return the losses of a whole state, or why there are none."""
    return StateLosses(windows, math.log(SYMBOLS)) if windows else NO_MODEL
