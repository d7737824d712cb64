"""Finds out whether other peers can dial this peer. The answer is in our record and in `peer status`."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace

from peer.errors import ExchangeError, PartnerLost
from peer.ports.clock import Clock
from peer.ports.transport import SwarmCalls
from peer.protocol.endpoints import version_of, voice_of
from peer.protocol.messages import PeerId, PeerRecord, Reach
from peer.protocol.swarm.reachability import Question, Reachability
from peer.protocol.swarm.rtt import RoundTrips

PROBING_S = 6.5
"""Seconds that a prober may take to dial us, in addition to the round trip."""
TICK_S = 2.0
SETTLED_TICK_S = 30.0
"""Seconds between two checks once enough probers agree. A change of our own addresses is noticed within that time."""
LOOKED_AT = 64
"""Number of peers that are drawn and ranked at a time, as there may be thousands of records."""
SHUNNED_S = 60.0
"""Seconds for which a peer that did not answer is asked after all others."""


class ReachabilityProbe:
    """Finds out whether this peer can be dialled from outside its network, by asking other peers to dial it.

    `endpoints`: returns the addresses that we believe to be ours. `changed`: called with the new answer and its reason,
    to journal it and to publish a new record. `trusted`: the operator's nodes, as named in the ticket. `near`: returns
    the peers in our own network, which are not asked because they cannot test the way from outside."""

    def __init__(
        self,
        transport: SwarmCalls,
        clock: Clock,
        rng: random.Random,
        endpoints: Callable[[], tuple[str, ...]],
        changed: Callable[[bool, str], None] = lambda reachable, why: None,
        trusted: Collection[PeerId] = frozenset(),
        near: Callable[[], Container[PeerId]] = frozenset,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._endpoints = endpoints
        self._changed = changed
        self._trusted = trusted
        self._near = near
        self._asked_about: tuple[str, ...] = ()
        self.reachability = Reachability()
        self._trips = RoundTrips()
        """Timeouts of calls to peers. It learns only from calls that were not answered, since a probe takes longer than
        a round trip."""
        self._shunned: dict[PeerId, float] = {}

    @property
    def reachable(self) -> bool:
        """Whether others can dial us; True until a peer has tried."""
        return self.reachability.reachable() is not False

    async def ask_if_due(self, peers: Iterable[PeerRecord]) -> None:
        """Ask one of these peers to dial us, if a question is due; the first time several. A peer that does not answer
        does not count as a failed dial."""
        now, ours = self._clock.now(), self._endpoints()
        if ours != self._asked_about:
            if set(ours) > set(self._asked_about) > set():
                self.reachability.grow()
            else:
                self.reachability.forget()
            self._asked_about = ours
        before = self.reachability.reachable()
        self.reachability.called(self._transport.take_callers(), ours, now)
        self._report_change(before)
        if not self.reachability.due(now):
            return
        near = self._near()
        able = [record for record in peers if record.reach is Reach.DIRECT and record.peer_id not in near]
        if not able:
            return
        self.reachability.asked(now)
        drawn = self._drawn(able)
        only = len({voice_of(record.endpoints[0]) for record in drawn}) == 1
        async with asyncio.TaskGroup() as asking:
            for way in self._in_order(drawn, ours, now)[: self.reachability.at_once()]:
                question = Question(way.peer_id, ours, now, way.peer_id in self._trusted, only)
                asking.create_task(self._ask(way, question))

    async def _ask(self, record: PeerRecord, question: Question) -> None:
        timeout_s = PROBING_S + self._trips.timeout(record.peer_id)
        try:
            probed = await self._transport.probe(record, question.ours, timeout_s)
        except PartnerLost:
            self._trips.timed_out(record.peer_id, self._trips.timeout(record.peer_id))
            self._shun(record.peer_id, question.at)
            return
        except ExchangeError:
            self._shun(record.peer_id, question.at)
            return
        before = self.reachability.reachable()
        self.reachability.on_probed(question, probed)
        self._report_change(before)

    def _drawn(self, able: list[PeerRecord]) -> list[PeerRecord]:
        """Return a random sample of these peers, with all of the operator's nodes."""
        trusted = [record for record in able if record.peer_id in self._trusted]
        others = [record for record in able if record.peer_id not in self._trusted]
        return [*trusted, *self._rng.sample(others, min(LOOKED_AT, len(others)))]

    def _in_order(self, drawn: list[PeerRecord], ours: tuple[str, ...], now: float) -> list[PeerRecord]:
        """Return the records to ask, best first: those of networks and of peers that have not answered yet, then those
        of the operator's nodes. Every network comes once before any network comes a second time. Peers that did not
        answer lately come last."""
        places = Counter[str]()
        ranks = list[tuple[bool, bool, bool, bool, int]]()
        versions = sorted({version_of(endpoint) for endpoint in ours} - {0})
        ways = [way for record in drawn for way in _ways(record, versions)]
        for way in ways:
            network, version = voice_of(way.endpoints[0]), version_of(way.endpoints[0])
            shunned = now - self._shunned.get(way.peer_id, -SHUNNED_S) < SHUNNED_S
            heard = self.reachability.has_verdict_of_network(network)
            spoken = self.reachability.has_verdict_of(way.peer_id, version)
            ranks.append((shunned, heard, spoken, way.peer_id not in self._trusted, places[network]))
            places[network] += 1
        return [ways[number] for number in sorted(range(len(ways)), key=ranks.__getitem__)]

    def _shun(self, peer: PeerId, now: float) -> None:
        self._shunned.pop(peer, None)
        self._shunned[peer] = now
        if len(self._shunned) > 4 * LOOKED_AT:
            del self._shunned[next(iter(self._shunned))]

    def _report_change(self, before: bool | None) -> None:
        after = self.reachability.reachable()
        if after is not None and after != before:
            self._changed(after, self.reachability.why())

    async def run(
        self, peers: Callable[[], Awaitable[Mapping[PeerId, PeerRecord]]], settled_tick_s: float = SETTLED_TICK_S
    ) -> None:
        """Ask until cancelled."""
        while True:
            await self.ask_if_due((await peers()).values())
            await self._clock.sleep(settled_tick_s if self.reachability.settled() else TICK_S)


def _ways(record: PeerRecord, versions: Iterable[int]) -> list[PeerRecord]:
    """Return the record once for each of our `versions` of IP that it has too, with the endpoints of that version
    alone. A prober dials only the address from which it is called, so each version is tested over itself."""
    ways = list[PeerRecord]()
    for version in versions:
        if mine := tuple([endpoint for endpoint in record.endpoints if version_of(endpoint) == version]):
            ways.append(record if mine == record.endpoints else replace(record, endpoints=mine))
    return ways or [record]
