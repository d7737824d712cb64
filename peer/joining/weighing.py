"""Checks the states that donors of a pair run gave, by losses that the trainer measures. `peer.protocol.policy.donors`
decides from these losses whether a state is used.

In a run on the volunteers' own texts there is no common text to measure by, so that only the size of the values is
checked."""

from __future__ import annotations

import secrets

from torch import Tensor

from peer.aio.threads import Offload
from peer.exchange.validation import rms
from peer.joining.fetch_terms import FetchTerms
from peer.observe.events import StateRefused
from peer.ports.console import Say
from peer.protocol.policy.donors import WEIGH_S, WeighedState, doubt_reason, impossible_reason, too_large_reason


class StateWeighing:
    """Measures the states of one fetch, all on the same windows, which are drawn at random so that no donor can know
    them."""

    def __init__(self, terms: FetchTerms, say: Say, offload: Offload) -> None:
        self._terms = terms
        self._say = say
        self._offload = offload
        self._seed = secrets.randbits(63)
        self._last_reason = ""

    async def weigh(self, params: Tensor, round_: int) -> WeighedState:
        """Measure a state of this round (`params`: flat fp32). Raises what the trainer's start raises, except
        TrainerDied."""
        if self._terms.weigh is None:
            return WeighedState(None, "", "")
        size = await self._offload(lambda: rms(params))
        if why := too_large_reason(size):
            return WeighedState(None, why, why)
        losses = await self._terms.weigh(params, self._seed, WEIGH_S)
        if isinstance(losses, str):
            self._unjudged(losses)
            return WeighedState(None, "", "")
        return WeighedState(losses, impossible_reason(losses), doubt_reason(losses, round_))

    def refused(self, donor: str, round_: int, reason: str) -> None:
        """Report to user and journal that the state of a donor is not used."""
        self._say(f"the state from {donor} (round {round_}) is refused: {reason}")
        self._terms.emit(StateRefused(donor=donor, round=round_, reason=reason))

    def _unjudged(self, why: str) -> None:
        if why != self._last_reason:
            self._say(f"the fetched state is checked for finite values of usual size, and not by its loss: {why}")
        self._last_reason = why
