"""Limits the uploads of state to joiners and of artifacts.

Both share a part of the upload cap, give way to training's own exchanges, and go to a few peers at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from peer.protocol.block_places import BlockPlaces
from peer.protocol.messages import PeerId
from peer.protocol.policy.state_ration import StateRation
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Throttle

SHARE = 0.5
"""Share of the upload cap for these uploads."""
MAX_JOINERS, JOINERS_RESERVED = 5, 1
"""Joiners served at once, and how many of these places are reserved for proven peers."""
ACTIVE_S = 3.0
"""Seconds after its last piece at which a joiner counts as gone."""
YIELD_S = 2.0
"""Most seconds that a chunk waits for exchanges to end. Less than the stall that a receiver tolerates."""
LOOK_S = 0.05
"""Interval in seconds at which a waiting chunk checks for exchanges."""
BUDGET_S = 600.0
"""Seconds after which a joiner may retry when our upload quota is used up."""


ARTIFACTS_AS_STATE = 1e9
"""Bytes of artifacts that count as one state for the ration."""
RATIONED = "proven peers want state now, and you or your network had your ration; ask another, or again in {:.0f} s"


@dataclass(slots=True)
class _Joiner:
    """A joiner that is fetching: times of its first and last piece, bytes sent, and pieces being sent now."""

    since: float
    seen: float
    sent: int = 0
    fetching: int = 0


class StateUploads:
    """Limits the state uploads of one server. `now`: seconds from any origin."""

    def __init__(
        self,
        caps: Caps,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._meter = caps.meter
        self.rate = SHARE * caps.up.rate if caps.up.rate is not None else None
        """Bytes per second for all joiners together; None: no cap."""
        self._share_pacer = Pacer(self.rate, now, sleep)
        self._now = now
        self._sleep = sleep
        self._joiners: dict[PeerId, _Joiner] = {}
        self._rations = {False: StateRation(), True: StateRation(ARTIFACTS_AS_STATE)}
        """Rations of states (False) and of artifacts (True)."""
        self._places: BlockPlaces[PeerId] = BlockPlaces(MAX_JOINERS, JOINERS_RESERVED)
        self._state_nbytes = 0

    def set_state_nbytes(self, nbytes: int) -> None:
        """Set the size of a complete state in bytes, from which the time per joiner is estimated."""
        self._state_nbytes = nbytes
        self._rations[False].set_state_size(nbytes)

    def busy_reason(self, peer: PeerId, block: str, *, proven: bool) -> tuple[str, float] | None:
        """Return why this joiner is not served now, for a person, and the seconds to wait; None: it is served.

        A joiner may take the place of another one whose address block holds more places. The other is refused at its
        next piece."""
        if why := self.refusal_reason(proven=proven):
            return why
        self._forget()
        if peer in self._places or self._places.would_admit(block, proven=proven):
            return None
        eta_s = self._eta_s()
        return f"{len(self._places)} joiners are fetching from here; ask another peer, or again in {eta_s:.0f} s", eta_s

    def refusal_reason(self, *, proven: bool) -> tuple[str, float] | None:
        """Return why nothing is uploaded now and the seconds to wait; None: the upload quota allows it."""
        why = self._meter.budget.refusal_reason(stranger=not proven)
        return (f"{why}; ask another peer", BUDGET_S) if why else None

    def ration_reason(
        self, peer: PeerId, block: str, nbytes: int, *, proven: bool, artifact: bool
    ) -> tuple[str, float] | None:
        """Return why a peer may not fetch `nbytes` now and the seconds to wait; None: it may.

        Only strangers are rationed, and only after a recent request of a proven peer, which this call records."""
        ration, now = self._rations[artifact], self._now()
        if proven:
            ration.note_demand(now)
            return None
        wait_s = ration.wait_s(peer, block, nbytes, now)
        return (RATIONED.format(wait_s), wait_s) if wait_s > 0 else None

    def count(self, peer: PeerId, block: str, nbytes: int, *, proven: bool, artifact: bool) -> None:
        """Charge bytes sent to a stranger to its ration."""
        if not proven:
            self._rations[artifact].charge(peer, block, nbytes, self._now())

    def throttle_for(self, *, proven: bool, fragment: bool = False) -> Throttle:
        """Return the throttle of one transfer. `fragment`: training waits for this transfer, so it does not give
        way."""
        return _UploadThrottle(self, not proven, not fragment)

    @contextmanager
    def sending_to(self, peer: PeerId, nbytes: int, block: str, *, proven: bool) -> Iterator[None]:
        """Count a piece of `nbytes` as being sent to this joiner during the block. `busy_reason` has admitted it."""
        now = self._now()
        self._places.enter(peer, block, proven=proven)
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
        await self._share_pacer.wait_turn(nbytes)
        until = self._now() + YIELD_S
        while self._meter.exchanging and self._now() < until:
            await self._sleep(LOOK_S)

    def _forget(self) -> None:
        now = self._now()
        gone = [peer for peer, j in self._joiners.items() if not j.fetching and now - j.seen > ACTIVE_S]
        for peer in gone:
            self._places.leave(peer)
            del self._joiners[peer]

    def _eta_s(self) -> float:
        """Return the seconds until the first joiner has a complete state, at its rate so far."""
        now = self._now()
        return min(
            max(1.0, (self._state_nbytes - j.sent) * (now - j.since) / j.sent) if j.sent else ACTIVE_S
            for j in self._joiners.values()
        )


@dataclass(frozen=True, slots=True)
class _UploadThrottle:
    """The `Throttle` of one transfer."""

    uploads: StateUploads
    stranger: bool
    yields: bool

    async def wait_turn(self, nbytes: int) -> None:
        if self.yields:
            await self.uploads.wait_turn(nbytes)
