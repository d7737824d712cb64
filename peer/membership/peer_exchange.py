"""Peers told by peers: the signed records that one peer shows another over the exchange.

The DHT is a hint. Whoever owns the nodes around a key of it hides all records under that key. A peer therefore also
asks peers that it can call, and shows them its own record. It asks those that the ticket names, those that are proven
and any others in turn. While the DHT shows everybody, it asks seldom.

A newcomer shows its record to everybody that it finds, once. So the others know it before their next look."""

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
"""Between two questions while nobody answers, or a record ends that no look renews."""
SELDOM_S = 120.0
"""Between two questions while the DHT shows everybody, at least; in long rounds as long as a record is not renewed."""
RENEWED = 3
"""How often a peer renews its record while the record lives."""
GREET_S = 120.0
"""For so long after its first record was announced a peer is a newcomer."""
GREET_AT_ONCE, GREET_PAUSE_S = 8, 1.0
"""Peers that a newcomer calls at a time, and between two such times."""
GREETED = 128
"""Peers that a newcomer calls, at most."""
WANING = 0.25
"""Part of a record's life. A look finds the next record of its peer before so little is left."""
AT_ONCE = 2
"""Peers asked at a time, each of another kind."""


@dataclass(frozen=True, slots=True)
class TrustedPeers:
    """The peers that are heard in any crowd."""

    ticket: frozenset[PeerId] = frozenset()
    """The nodes that our ticket names."""
    is_proven: Callable[[PeerId], bool] = lambda peer: False


class PeerExchange:
    """Asks others for peers, and answers them."""

    def __init__(self, records: SharedRecords, trusted: TrustedPeers, clock: Clock, rng: random.Random) -> None:
        self._records, self._trusted, self._clock, self._rng = records, trusted, clock, rng
        self._turn = 0
        self._answered = False
        """Whether one of those asked last answered."""
        self._told: set[PeerId] = set()
        """Peers that we have shown our record."""
        self._greeted: set[PeerId] = set()
        """Peers that we called as a newcomer, whether they answered or not."""
        self._new_until: float | None = None
        """None: we have announced no record so far."""
        self.asked = 0
        """Questions that were answered."""
        self.learned = 0
        """Peers that an answer showed and that we did not know."""

    def on_peers(self, caller: PeerId, shown: Shown) -> list[Shown]:
        """Answer a caller: our own record, and at most `MAX_SHOWN_RECORDS` in all. `shown`: the caller's own record,
        empty when it has none. A record of another peer is not taken."""
        if shown:
            self._learn([shown], of=caller)
        if self._records.own():
            self._told.add(caller)
        live = self._records.known()
        live.pop(caller, None)
        proven = [peer for peer in live if self._trusted.is_proven(peer) or peer in self._trusted.ticket]
        first = self._sample(proven, MAX_SHOWN_RECORDS // 2)
        others = self._sample([peer for peer in live if peer not in first], MAX_SHOWN_RECORDS - 1 - len(first))
        found = [self._records.shown(peer) for peer in [*first, *others]]
        return [record for record in [self._records.own(), *found] if record]

    async def run(self, transport: SwarmCalls) -> None:
        """Ask for ever; the owner cancels."""
        while True:
            await self.ask(transport)
            asked, jitter = self._clock.now(), self._rng.uniform(0.8, 1.2)
            while self._clock.now() < asked + self._pause() * jitter:
                await self._clock.sleep(min(SOON_S, self._pause()) * jitter)

    async def ask(self, transport: SwarmCalls) -> None:
        """Ask some peers once. A peer that does not answer costs nothing else."""
        self._answered = False
        await asyncio.gather(*(self._ask(transport, record) for record in self._whom()))

    async def _ask(self, transport: SwarmCalls, record: PeerRecord) -> None:
        try:
            given = await transport.fetch_peers(record, self._records.own(), ASK_TIMEOUT_S)
        except ExchangeError:
            return
        self.asked += 1
        self._answered = True
        self._told.add(record.peer_id)
        self._learn(given[:MAX_SHOWN_RECORDS])

    def _learn(self, shown: Sequence[Shown], of: PeerId | None = None) -> None:
        for found in shown:
            try:
                self.learned += self._records.learn(found, of)
            except InvalidRecord:
                continue  # the records count it, and tell

    def _whom(self) -> list[PeerRecord]:
        """Return whom to ask: as a newcomer those that we have not called, at most `GREET_AT_ONCE`. Later at most
        `AT_ONCE`: those that cannot find our record in the directory, it seems.

        Else a peer of the ticket, a proven one and any other come in turn, as far as there are."""
        known = self._records.known()
        live = {peer: record for peer, record in known.items() if record.reach}
        self._told &= known.keys()
        if strangers := self._to_greet():
            first = [peer for peer in strangers if peer in self._trusted.ticket or self._trusted.is_proven(peer)]
            others = self._sample([peer for peer in strangers if peer not in first], GREET_AT_ONCE)
            greeted = [*first, *others][:GREET_AT_ONCE]
            self._greeted.update(greeted)
            return [live[peer] for peer in greeted]
        if untold := self._untold():
            return [live[peer] for peer in self._sample(untold, AT_ONCE)]
        ticket = [peer for peer in live if peer in self._trusted.ticket]
        proven = [peer for peer in live if self._trusted.is_proven(peer) and peer not in ticket]
        others = [peer for peer in live if peer not in ticket and peer not in proven]
        kinds = [kind for kind in (ticket, proven, others) if kind]
        self._turn += 1
        turned = [kinds[(self._turn + n) % len(kinds)] for n in range(min(AT_ONCE, len(kinds)))]
        return [live[self._rng.choice(kind)] for kind in turned]

    def _pause(self) -> float:
        """Return seconds to wait after a question: few while nobody answers, or a record ends that no look renews."""
        now, live = self._clock.now(), self._records.known().values()
        if self._to_greet():
            return GREET_PAUSE_S
        if self._untold() or not self._answered:
            return SOON_S
        renewed_s = max((record.expires_at - record.issued_at for record in live), default=0.0) / RENEWED
        seldom_s = max(SELDOM_S, renewed_s)
        if not self._records.looks_show_all():
            return seldom_s
        waning = any(record.expires_at - now < WANING * (record.expires_at - record.issued_at) for record in live)
        return SOON_S if waning else seldom_s

    def _to_greet(self) -> list[PeerId]:
        """Return the peers that do not know us yet and can be called, while we are a newcomer."""
        now = self._clock.now()
        if not self._records.own():
            return []
        if self._new_until is None:
            self._new_until = now + GREET_S
        if now >= self._new_until or len(self._greeted) >= GREETED:
            return []
        known = self._records.known()
        return [p for p, record in known.items() if record.reach and p not in self._told and p not in self._greeted]

    def _untold(self) -> list[PeerId]:
        """Return the peers that only peers have shown us, and that have not seen our record."""
        if not self._records.looks_show_all():
            return []
        known = self._records.known()
        lent = [peer for peer in known if peer not in self._told and self._records.is_lent(peer)]
        return [peer for peer in lent if known[peer].reach]

    def _sample(self, peers: Sequence[PeerId], count: int) -> list[PeerId]:
        return self._rng.sample(peers, min(count, len(peers)))
