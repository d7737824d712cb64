"""The operator's orders in the course of the rounds: pause and go on, another state, another learning rate."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from torch import Tensor

from peer.daemon.leaving import Leaving
from peer.observe import events
from peer.protocol.messages import Status
from peer.protocol.ruling import Ruling

LOOK_EVERY_S = 1.0
RETRY_S = 2.0
"""Between two looks for a state that the operator named."""

FetchFounded = Callable[[bytes], Awaitable[Tensor | None]]


async def nowhere(digest: bytes) -> Tensor | None:
    """A `FetchFounded` that finds nothing."""
    return None


class Orders:
    """`ruling` tells what holds in a round. `founded`: digest of the state that our own goes back to, if the operator
    had refounded the run."""

    def __init__(self, ruling: Callable[[int], Ruling], founded: bytes, fetch_founded: FetchFounded) -> None:
        self._ruling = ruling
        self._fetch_founded = fetch_founded
        self.founded = founded

    def lr_scale(self, round_: int) -> float:
        return self._ruling(round_).lr_scale

    def stand_still(self, round_: int) -> bool:
        """Whether this round may not be played before something else is done."""
        now = self._ruling(round_)
        return now.paused is not None or now.founded != self.founded

    async def obey(
        self,
        round_: int,
        leaving: Leaving,
        round_now: Callable[[int], int],
        tell: Callable[[Status, str], None],
        emit: Callable[[events.Event], None],
    ) -> tuple[int, Tensor | None]:
        """Wait through a pause, or until somebody gives the state that the operator named. The round to go on with, and
        that state: it takes the place of ours. `round_now`: the round of a clock that runs on meanwhile."""
        if self._ruling(round_).paused is not None:
            return await self._paused(round_, leaving, round_now, tell, emit), None
        digest = self._ruling(round_).founded
        tell(Status.JOINING, "fetching the state that the operator goes on from")
        while (params := await leaving.unless(self._fetch_founded(digest))) is None:
            if await leaving.within(RETRY_S):
                break
            round_ = round_now(round_)
        if params is not None:
            self.founded = digest
            emit(events.Refounded(round=round_, digest=digest.hex()))
        return round_, params

    async def _paused(
        self,
        round_: int,
        leaving: Leaving,
        round_now: Callable[[int], int],
        tell: Callable[[Status, str], None],
        emit: Callable[[events.Event], None],
    ) -> int:
        why = self._ruling(round_).paused
        emit(events.Paused(round=round_, reason=why or ""))
        since = f"paused by the operator since round {round_}"
        tell(Status.PAUSED, f"{since}: {why}" if why else since)
        while self._ruling(round_).paused is not None:
            if await leaving.within(LOOK_EVERY_S):
                return round_
            round_ = round_now(round_)
        emit(events.WentOn(round=round_))
        return round_
