"""Exchange of peer records: peers show each other the signed records that they know.

The DHT alone is not reliable, because an attacker who controls the nodes around a key can hide all records under it. A
peer therefore also requests records from peers that it can call, and shows them its own. It asks the peers that the
ticket names, the proven ones and any others in turn, rarely while the DHT shows all peers.

A newcomer shows its record once to each peer that it finds, so that they know it before their next look into the
directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peer.errors import ExchangeError
from peer.ports.clock import Clock
from peer.ports.directory import SharedRecords, Shown
from peer.ports.transport import SwarmCalls
from peer.protocol.messages import MAX_SHOWN_RECORDS, PeerId, PeerRecord
from peer.signed_record import InvalidRecord

ASK_TIMEOUT_S = 5.0
SOON_S = 5.0
"""Seconds between two requests while no peer answers, or while a record is about to expire that no look has renewed."""
SELDOM_S = 120.0
"""Least seconds between two requests while the DHT shows all peers. In long rounds it is the time between two renewals
of a record."""
RENEWED = 3
"""A peer renews its record this many times within the record's lifetime."""
GREET_S = 120.0
"""Seconds after its first announcement for which a peer is a newcomer."""
GREET_AT_ONCE, GREET_PAUSE_S = 8, 1.0
"""Peers that a newcomer calls at a time, and seconds between two such times."""
GREETED = 128
"""Most peers that a newcomer calls."""
WANING = 0.25
"""Part of a record's lifetime. Normally a look finds the peer's next record before only this part is left."""
AT_ONCE = 2
"""Peers that are asked at a time, each of another kind."""


@dataclass(frozen=True, slots=True)
class TrustedPeers:
    """The peers that are always asked and shown, however many others there are."""

    ticket: frozenset[PeerId] = frozenset()
    """The nodes that our ticket names."""
    is_proven: Callable[[PeerId], bool] = lambda peer: False


class PeerExchange:
    """Requests records of peers from others, and answers such requests."""

    def __init__(self, records: SharedRecords, trusted: TrustedPeers, clock: Clock, rng: random.Random) -> None:
        self._records, self._trusted, self._clock, self._rng = records, trusted, clock, rng
        self._turn = 0
        self._answered = False
        """Whether one of the peers asked last has answered."""
        self._aware: set[PeerId] = set()
        """Peers that have seen our record."""
        self._greeted: set[PeerId] = set()
        """Peers that this peer called as a newcomer, whether they answered or not."""
        self._new_until: float | None = None
        """Time until which this peer is a newcomer; None: it has announced no record yet."""
        self.asked = 0
        """Number of requests that were answered."""
        self.learned = 0
        """Number of peers that this peer first learned of from an answer."""

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        """Return our own record and those of other peers to a caller, at most `MAX_SHOWN_RECORDS`. `shown`: the
        caller's own record, empty if it has none; a record of another peer is rejected."""
        if shown:
            self._learn([shown], of=caller)
        if self._records.own():
            self._aware.add(caller)
        live = self._records.known()
        live.pop(caller, None)
        proven = [peer for peer in live if self._trusted.is_proven(peer) or peer in self._trusted.ticket]
        first = self._sample(proven, MAX_SHOWN_RECORDS // 2)
        others = self._sample([peer for peer in live if peer not in first], MAX_SHOWN_RECORDS - 1 - len(first))
        found = [self._records.shown(peer) for peer in [*first, *others]]
        return [record for record in [self._records.own(), *found] if record]

    async def run(self, transport: SwarmCalls) -> None:
        """Request records until cancelled."""
        while True:
            await self.request_records(transport)
            asked, jitter = self._clock.now(), self._rng.uniform(0.8, 1.2)
            while self._clock.now() < asked + self._pause() * jitter:
                await self._clock.sleep(min(SOON_S, self._pause()) * jitter)

    async def request_records(self, transport: SwarmCalls) -> None:
        """Ask some peers once. Never raises for the failure of another peer."""
        self._answered = False
        await asyncio.gather(*(self._request(transport, record) for record in self._next_peers()))

    async def _request(self, transport: SwarmCalls, record: PeerRecord) -> None:
        try:
            given = await transport.fetch_peers(record, self._records.own(), ASK_TIMEOUT_S)
        except ExchangeError:
            return
        self.asked += 1
        self._answered = True
        self._aware.add(record.peer_id)
        self._learn(given[:MAX_SHOWN_RECORDS])

    def _learn(self, shown: Sequence[Shown], of: PeerId | None = None) -> None:
        for found in shown:
            try:
                self.learned += self._records.learn(found, of)
            except InvalidRecord:
                continue  # `RecordStore` has already counted and reported the bad record

    def _next_peers(self) -> list[PeerRecord]:
        """Return the peers to ask next.

        A newcomer asks peers that it has not called yet, at most `GREET_AT_ONCE`. A peer that is no newcomer first asks
        the peers that do not seem to find our record in the directory, at most `AT_ONCE` at a time. Otherwise peers of
        the ticket, proven peers and other peers are asked in turn."""
        known = self._records.known()
        live = {peer: record for peer, record in known.items() if record.reach}
        self._aware &= known.keys()
        if strangers := self._to_greet():
            first = [peer for peer in strangers if peer in self._trusted.ticket or self._trusted.is_proven(peer)]
            others = self._sample([peer for peer in strangers if peer not in first], GREET_AT_ONCE)
            greeted = [*first, *others][:GREET_AT_ONCE]
            self._greeted.update(greeted)
            return [live[peer] for peer in greeted]
        if untold := self._unaware():
            return [live[peer] for peer in self._sample(untold, AT_ONCE)]
        ticket = [peer for peer in live if peer in self._trusted.ticket]
        proven = [peer for peer in live if self._trusted.is_proven(peer) and peer not in ticket]
        others = [peer for peer in live if peer not in ticket and peer not in proven]
        kinds = [kind for kind in (ticket, proven, others) if kind]
        self._turn += 1
        turned = [kinds[(self._turn + n) % len(kinds)] for n in range(min(AT_ONCE, len(kinds)))]
        return [live[self._rng.choice(kind)] for kind in turned]

    def _pause(self) -> float:
        """Return the seconds until the next request."""
        now, live = self._clock.now(), self._records.known().values()
        if self._to_greet():
            return GREET_PAUSE_S
        if self._unaware() or not self._answered:
            return SOON_S
        renewed_s = max((record.expires_at - record.issued_at for record in live), default=0.0) / RENEWED
        seldom_s = max(SELDOM_S, renewed_s)
        if not self._records.looks_show_all():
            return seldom_s
        waning = any(record.expires_at - now < WANING * (record.expires_at - record.issued_at) for record in live)
        return SOON_S if waning else seldom_s

    def _to_greet(self) -> list[PeerId]:
        """Return the callable peers that have not seen our record, while this peer is a newcomer."""
        now = self._clock.now()
        if not self._records.own():
            return []
        if self._new_until is None:
            self._new_until = now + GREET_S
        if now >= self._new_until or len(self._greeted) >= GREETED:
            return []
        known = self._records.known()
        return [p for p, record in known.items() if record.reach and p not in self._aware and p not in self._greeted]

    def _unaware(self) -> list[PeerId]:
        """Return the callable peers that only other peers have shown us and that have not seen our record."""
        if not self._records.looks_show_all():
            return []
        known = self._records.known()
        lent = [peer for peer in known if peer not in self._aware and self._records.is_lent(peer)]
        return [peer for peer in lent if known[peer].reach]

    def _sample(self, peers: Sequence[PeerId], count: int) -> list[PeerId]:
        return self._rng.sample(peers, min(count, len(peers)))
