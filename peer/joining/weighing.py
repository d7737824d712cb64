"""Has the trainer weigh the states that donors of a pair run gave. `peer.protocol.policy.donors` decides what follows.

In a run whose volunteers train on texts of their own there is no common text to weigh by, so only the size of the
values is checked there."""

from __future__ import annotations

import secrets

from torch import Tensor

from peer.aio.threads import Offload
from peer.exchange.validation import rms
from peer.joining.fetch_terms import FetchTerms
from peer.observe.events import StateRefused
from peer.ports.console import Say
from peer.protocol.policy.donors import WEIGH_S, WeighedState, why_doubted, why_impossible, why_too_large


class StateWeighing:
    """Weighs the states of one fetch, all by the same windows, which nobody else knows."""

    def __init__(self, terms: FetchTerms, say: Say, offload: Offload) -> None:
        self._terms = terms
        self._say = say
        self._offload = offload
        self._seed = secrets.randbits(63)
        self._last_reason = ""

    async def weigh(self, params: Tensor, round_: int) -> WeighedState:
        """Weigh a state of this round, flat fp32. Raises what the trainer's start raises, but for its death."""
        if self._terms.weigh is None:
            return WeighedState(None, "", "")
        size = await self._offload(lambda: rms(params))
        if why := why_too_large(size):
            return WeighedState(None, why, why)
        losses = await self._terms.weigh(params, self._seed, WEIGH_S)
        if isinstance(losses, str):
            self._unjudged(losses)
            return WeighedState(None, "", "")
        return WeighedState(losses, why_impossible(losses), why_doubted(losses, round_))

    def refused(self, donor: str, round_: int, reason: str) -> None:
        """Tell person and journal that the state of a donor is not begun with."""
        self._say(f"the state from {donor} (round {round_}) is refused: {reason}")
        self._terms.emit(StateRefused(donor=donor, round=round_, reason=reason))

    def _unjudged(self, why: str) -> None:
        if why != self._last_reason:
            self._say(f"the fetched state is checked for finite values of usual size, and not by its loss: {why}")
        self._last_reason = why
