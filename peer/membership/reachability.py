"""Finds out, by asking others, whether this peer can be dialled; our record and `peer status` tell."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping

from peer.errors import ExchangeError, PartnerLost
from peer.ports.clock import Clock
from peer.ports.transport import Transport
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.swarm.reachability import MAX_VOICES, Reachability
from peer.protocol.swarm.rtt import RoundTrips

PROBING_S = 6.5
"""Whom we ask may look up our addresses and dial them for so long, on top of the way there and back."""
TICK_S = 2.0
SETTLED_TICK_S = 30.0
"""Once enough others have spoken with one voice: how soon a change of our own addresses is noticed."""


class ReachabilityProbe:
    """`endpoints`: what we believe our addresses to be. `peers`: whom we may ask. `changed`: told the new answer and
    why, for the journal and a fresh record."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        rng: random.Random,
        endpoints: Callable[[], tuple[str, ...]],
        changed: Callable[[bool, str], None] = lambda reachable, why: None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._endpoints = endpoints
        self._changed = changed
        self._asked_about: tuple[str, ...] = ()
        self.state = Reachability()
        self._trips = RoundTrips()
        """Only who did not answer is told to it: how long a probe takes is not how long the way is."""

    @property
    def reachable(self) -> bool:
        """Until somebody has tried we hope so."""
        return self.state.reachable() is not False

    async def ask(self, peers: Iterable[PeerRecord]) -> None:
        """Ask one of these peers or, the first time, some, if it is time to. A peer that cannot be asked says nothing
        about us."""
        now, ours = self._clock.now(), self._endpoints()
        if ours != self._asked_about:
            self.state.forget()
            self._asked_about = ours
        if not self.state.due(now):
            return
        able = [record for record in peers if record.reachable and record.endpoints]
        if not able:
            return
        self.state.asked(now)
        drawn = self._rng.sample(able, min(MAX_VOICES + 1, len(able)))
        others = [record for record in drawn if not self.state.has_word_of(record.peer_id)]
        async with asyncio.TaskGroup() as asking:
            for record in (others or drawn)[: self.state.at_once()]:
                asking.create_task(self._ask(record, ours))

    async def _ask(self, record: PeerRecord, ours: tuple[str, ...]) -> None:
        by, began = record.peer_id, self._clock.now()
        timeout_s = PROBING_S + self._trips.timeout(by)
        try:
            probed = await self._transport.probe(record, ours, timeout_s)
        except PartnerLost:
            self._trips.gave_up(by, self._trips.timeout(by))
            return
        except ExchangeError:
            return
        before = self.state.reachable()
        self.state.heard(by, probed, began)
        after = self.state.reachable()
        if after is not None and after != before:
            self._changed(after, self.state.why())

    async def run(
        self, peers: Callable[[], Awaitable[Mapping[PeerId, PeerRecord]]], settled_tick_s: float = SETTLED_TICK_S
    ) -> None:
        """For ever; the owner cancels."""
        while True:
            await self.ask((await peers()).values())
            await self._clock.sleep(settled_tick_s if self.state.settled() else TICK_S)
