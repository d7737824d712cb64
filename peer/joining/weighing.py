"""Whether the state that donors of a pair run gave is begun with: it is weighed by the trainer first.

A state assembled from many donors that fails gives way to whole states of single donors, proven ones first and of
different networks. The best of those that pass is taken. In a run whose volunteers train on texts of their own there
is no common text to weigh by, so only the size of the values is checked there."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from torch import Tensor

from peer.aio.threads import Offload
from peer.exchange.validation import rms
from peer.joining.fetch_terms import FetchTerms
from peer.observe.events import StateRefused
from peer.ports.console import Say
from peer.protocol.pair.state_verdict import (
    StateLosses,
    clearly_better,
    why_doubted,
    why_impossible,
    why_too_large,
)

WITHIN_S = 10.0
"""Seconds that the trainer may take to weigh a state."""


@dataclass(frozen=True, slots=True)
class WeighedState:
    """What came of weighing one state."""

    losses: StateLosses | None
    """None: there is no loss to judge it by."""
    impossible: str
    """Why no honest donor gives it, for a person; empty: one may."""
    doubted: str
    """Why it is compared with others, for a person; empty: it is good."""

    def better_than(self, other: WeighedState) -> bool:
        """Whether this state is clearly better."""
        if self.losses is None or other.losses is None:
            return bool(other.impossible) and not self.impossible
        return clearly_better(self.losses, other.losses)


class StateWeighing:
    """Weighs the states of one fetch, all by the same windows, which nobody else knows."""

    def __init__(self, terms: FetchTerms, say: Say, offload: Offload) -> None:
        self._terms = terms
        self._say = say
        self._offload = offload
        self._seed = secrets.randbits(63)
        self._told = ""

    async def weigh(self, params: Tensor, round_: int) -> WeighedState:
        """Weigh a state of this round, flat fp32. Raises what the trainer's start raises, but for its death."""
        if self._terms.weigh is None:
            return WeighedState(None, "", "")
        size = await self._offload(lambda: rms(params))
        if why := why_too_large(size):
            return WeighedState(None, why, why)
        losses = await self._terms.weigh(params, self._seed, WITHIN_S)
        if isinstance(losses, str):
            self._unjudged(losses)
            return WeighedState(None, "", "")
        return WeighedState(losses, why_impossible(losses), why_doubted(losses, round_))

    def refused(self, donor: str, round_: int, reason: str) -> None:
        """Tell person and journal that the state of a donor is not begun with."""
        self._say(f"the state from {donor} (round {round_}) is refused: {reason}")
        self._terms.emit(StateRefused(donor=donor, round=round_, reason=reason))

    def _unjudged(self, why: str) -> None:
        if why != self._told:
            self._say(f"the fetched state is checked for finite values of usual size, and not by its loss: {why}")
        self._told = why
