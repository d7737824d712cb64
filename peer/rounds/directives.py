"""What the rounds have to obey: the volunteer's pause first, then the operator's word: pause and go on, another state,
another learning rate."""

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
"""Between two looks for a state that the operator named."""

FetchFounded = Callable[[bytes], Awaitable[Tensor | None]]


async def nowhere(digest: bytes) -> Tensor | None:
    """A `FetchFounded` that finds nothing."""
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
        return self._ruling(round_).lr_scale

    def paused(self, round_: int) -> bool:
        """Whether somebody wants us to stand still."""
        return self.local_pause.active.is_set() or self._ruling(round_).paused is not None

    def blocks(self, round_: int) -> bool:
        """Whether this round may not be played before something else is done."""
        return self.paused(round_) or self._ruling(round_).founded != self.founded

    async def apply(
        self,
        round_: int,
        shutdown: Shutdown,
        round_now: Callable[[int], int],
        tell: Callable[[Status, str], None],
        emit: Callable[[events.Event], None],
    ) -> tuple[int, Tensor | None]:
        """Wait through a pause, or until somebody gives the state that the operator named. The round to go on with, and
        that state: it takes the place of ours. `round_now`: the round of a clock that runs on meanwhile."""
        if self.paused(round_):
            return await self._paused(round_, shutdown, round_now, tell, emit), None
        digest = self._ruling(round_).founded
        if digest == self.founded:
            return round_, None  # what held us is over before we stood still
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
        """Both may hold at once, and neither ends the other's."""
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
        """By whom, and how to say so; the volunteer comes first. `since`: the round in which the operator's pause was
        first seen."""
        holds = {"volunteer": self.local_pause.why()} if self.local_pause.active.is_set() else {}
        if (why := self._ruling(round_).paused) is not None:
            sentence = f"paused by the operator since round {round_ if since is None else since}"
            holds["operator"] = f"{sentence}: {why}" if why else sentence
        return holds
