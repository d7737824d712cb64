"""Bounds on the uploads of state to joiners, and of artifacts.

Both take one share of the upload cap, yield to training's own exchanges, and serve a few peers at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peer.protocol.messages import PeerId
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps

SHARE = 0.5
"""Share of the upload cap."""
MAX_JOINERS = 4
ARTIFACTS_AT_ONCE = 4
"""Pieces of artifacts that are sent at once. Joiners that fetch the state find a place all the same."""
ACTIVE_S = 3.0
"""Seconds since its last piece after which a joiner counts as gone."""
YIELD_S = 2.0
"""Seconds that a chunk waits for an exchange to end, at most. It is less than the stall that a receiver tolerates."""
LOOK_S = 0.05
ARTIFACT_S = 1.0
"""Seconds after which a peer that found no place for a piece of an artifact may ask again."""
BUDGET_S = 600.0
"""Seconds after which a joiner may ask again, once our upload quota is used up."""


@dataclass(slots=True)
class _Joiner:
    since: float
    seen: float
    sent: int = 0
    fetching: int = 0


class StateUploads:
    """State uploads of one server. `now` is in seconds of any origin."""

    def __init__(
        self,
        caps: Caps,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._meter = caps.meter
        self.rate = SHARE * caps.up.rate if caps.up.rate is not None else None
        """Bytes per second for all joiners together; None: no cap."""
        self._share = Pacer(self.rate, now, sleep)
        self._now = now
        self._sleep = sleep
        self._joiners: dict[PeerId, _Joiner] = {}
        self._state_nbytes = 0
        self._artifacts = 0

    def state_is(self, nbytes: int) -> None:
        """Set the bytes of a complete state, which tell how long one takes."""
        self._state_nbytes = nbytes

    def why_busy(self, peer: PeerId) -> tuple[str, float] | None:
        """Return why this joiner is not served now, for a person, and the seconds to wait; None: it is served."""
        if why := self.why_not_give():
            return why
        self._forget()
        if peer in self._joiners or len(self._joiners) < MAX_JOINERS:
            return None
        eta_s = self._eta_s()
        return f"{MAX_JOINERS} joiners are fetching from here; ask another peer, or again in {eta_s:.0f} s", eta_s

    def why_not_give(self) -> tuple[str, float] | None:
        """Return why nothing is given now, and the seconds to wait; None: the upload quota holds it."""
        why = self._meter.budget.why_not_give()
        return (f"{why}; ask another peer", BUDGET_S) if why else None

    def why_no_artifact(self) -> tuple[str, float] | None:
        """Return why no piece of an artifact is sent now, and the seconds to wait; None: one may be."""
        if self._artifacts < ARTIFACTS_AT_ONCE:
            return self.why_not_give()
        return f"{ARTIFACTS_AT_ONCE} pieces of artifacts are being sent; ask again or ask another", ARTIFACT_S

    @contextmanager
    def artifact(self) -> Iterator[None]:
        """Count a piece of an artifact as being sent during the block."""
        self._artifacts += 1
        try:
            yield
        finally:
            self._artifacts -= 1

    @contextmanager
    def to(self, peer: PeerId, nbytes: int) -> Iterator[None]:
        """Count a piece of so many bytes as being sent during the block."""
        now = self._now()
        joiner = self._joiners.setdefault(peer, _Joiner(now, now))
        joiner.fetching += 1
        try:
            yield
            joiner.sent += nbytes
        finally:
            joiner.fetching -= 1
            joiner.seen = self._now()

    async def wait_turn(self, nbytes: int) -> None:
        """Wait until a chunk of a state or an artifact may be sent."""
        await self._share.wait_turn(nbytes)
        until = self._now() + YIELD_S
        while self._meter.exchanging and self._now() < until:
            await self._sleep(LOOK_S)

    def _forget(self) -> None:
        now = self._now()
        gone = [peer for peer, j in self._joiners.items() if not j.fetching and now - j.seen > ACTIVE_S]
        for peer in gone:
            del self._joiners[peer]

    def _eta_s(self) -> float:
        """Return the seconds until the first joiner has a complete state, at its rate so far."""
        now = self._now()
        return min(
            max(1.0, (self._state_nbytes - j.sent) * (now - j.since) / j.sent) if j.sent else ACTIVE_S
            for j in self._joiners.values()
        )
