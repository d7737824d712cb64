"""The pauses, new states and learning rates that the rounds must obey. The volunteer's own pause comes before the
operator's directives."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from torch import Tensor

from peer.aio.events import Shutdown
from peer.observe import events
from peer.protocol.messages import Status
from peer.protocol.policy.amendments import RunPolicy
from peer.rounds.pause import LocalPause

LOOK_EVERY_S = 1.0
RETRY_S = 2.0
"""Seconds between two attempts to fetch a state that the operator has named."""

FetchFounded = Callable[[bytes], Awaitable[Tensor | None]]


async def nowhere(digest: bytes) -> Tensor | None:
    """Return None. A `FetchFounded` for peers that cannot fetch a state named by the operator."""
    return None


class Directives:
    """The instructions that the rounds follow: the volunteer's pause, and the operator's pauses, new states and
    learning rates.

    `ruling`: returns the operator's policy for a round. `founded`: digest of the operator's state that ours descends
    from; empty if the operator has never replaced the state. `fetch_founded`: fetches the state with the given digest;
    None: not available yet. `local_pause`: the volunteer's own pause."""

    def __init__(
        self,
        ruling: Callable[[int], RunPolicy],
        founded: bytes,
        fetch_founded: FetchFounded,
        local_pause: LocalPause,
    ) -> None:
        self._ruling = ruling
        self._fetch_founded = fetch_founded
        self.founded = founded
        self.local_pause = local_pause

    def lr_scale(self, round_: int) -> float:
        """Return the operator's factor on the learning rate in this round."""
        return self._ruling(round_).lr_scale

    def paused(self, round_: int) -> bool:
        """Return whether the volunteer or the operator has paused this peer in this round."""
        return self.local_pause.active.is_set() or self._ruling(round_).paused is not None

    def blocks(self, round_: int) -> bool:
        """Return whether a pause or a new state must be handled by `apply` before this round is played."""
        return self.paused(round_) or self._ruling(round_).founded != self.founded

    async def apply(
        self,
        round_: int,
        shutdown: Shutdown,
        round_now: Callable[[int], int],
        tell: Callable[[Status, str], None],
        emit: Callable[[events.Event], None],
    ) -> tuple[int, Tensor | None]:
        """Wait until a pause ends, or until the state that the operator has named is fetched. Return the round to
        continue with, and the fetched state, which replaces ours. The state is None if ours stays: after a pause, and
        if this peer leaves or pauses before the state arrives.

        `round_now`: returns the round under way, given the last known one. `tell`: called with the status and a text
        for a person. `emit`: journals an event."""
        if self.paused(round_):
            return await self._paused(round_, shutdown, round_now, tell, emit), None
        digest = self._ruling(round_).founded
        if digest == self.founded:
            return round_, None  # the pause ended before it took effect
        tell(Status.JOINING, "fetching the state that the operator goes on from")
        while (params := await shutdown.race(self._fetch_founded(digest))) is None:
            if await shutdown.wait_for(RETRY_S) or self.local_pause.active.is_set():
                break
            round_ = round_now(round_)
        if params is not None:
            self.founded = digest
            emit(events.Refounded(round=round_, digest=digest.hex()))
        return round_, params

    async def _paused(
        self,
        round_: int,
        shutdown: Shutdown,
        round_now: Callable[[int], int],
        tell: Callable[[Status, str], None],
        emit: Callable[[events.Event], None],
    ) -> int:
        """Wait until neither the volunteer nor the operator pauses. The two pauses are independent and may overlap.
        Return the round to continue with."""
        since: int | None = None
        told = dict[str, str]()
        while holds := self._holds(round_, since):
            since = since if since is not None and "operator" in holds else round_
            for by in [by for by in holds if by not in told]:
                reason = (self._ruling(round_).paused or "") if by == "operator" else holds[by]
                emit(events.Paused(round=round_, reason=reason, by=by))
            if holds != told:
                tell(Status.PAUSED, "; ".join(holds.values()))
                told = holds
            if await shutdown.wait_for(LOOK_EVERY_S):
                return round_
            round_ = round_now(round_)
        emit(events.WentOn(round=round_))
        return round_

    def _holds(self, round_: int, since: int | None) -> dict[str, str]:
        """Return the pauses in force: "volunteer" or "operator", in this order -> the reason, as text for a person.
        `since`: the round in which the operator's pause was first noticed."""
        holds = {"volunteer": self.local_pause.reason()} if self.local_pause.active.is_set() else {}
        if (why := self._ruling(round_).paused) is not None:
            sentence = f"paused by the operator since round {round_ if since is None else since}"
            holds["operator"] = f"{sentence}: {why}" if why else sentence
        return holds
