"""The directory in memory: many peers, one hub, no I/O, and time is what `now` says."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import cast

from peer.identity import Identity
from peer.net.directory.contact import Contact
from peer.net.directory.record import BadRecord, seal, unseal
from peer.net.directory.view import View
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status

FORGET_EVERY_S = 10.0


class MemoryDirectoryHub:
    """What the DHT is to the real directory. Holds the latest record of each peer of each run.

    `look`: about so many records are found in a look at most. More peers than that are spread over buckets of half as
    many, by a hash of their ids, and a look goes into two: that of its reader, and that one xor a number drawn for the
    round. So a look costs the same in a swarm of any size, the peers of two buckets see each other whole (unequal
    buckets leave nobody over), and in time everybody meets everybody. That is how the DHT's keys are meant to split
    (`peer.net.directory.keys`). None: one bucket, as the DHT has today, and as groups need it."""

    def __init__(self, now: Callable[[], float], look: int | None = None) -> None:
        self._look = look
        self.now = now
        """Seconds since the epoch, usually a virtual clock's."""
        self._hide: Callable[[PeerId, PeerId], bool] | None = None
        self._readers: list[MemoryDirectory] = []
        self.alike = True
        """All see the same, and all is taken at its word: what was held is what everybody knows."""
        self._held: dict[RunId, dict[PeerId, PeerRecord | bytes]] = {}
        self._side: dict[PeerId, int] = {}
        self._forgot_at = 0.0
        self._buckets: dict[RunId, list[dict[PeerId, PeerRecord | bytes]]] = {}

    @property
    def hide(self) -> Callable[[PeerId, PeerId], bool] | None:
        """`hide(reader, other)`: keep `other` out of what `reader` sees, for incomplete and differing views."""
        return self._hide

    @hide.setter
    def hide(self, hide: Callable[[PeerId, PeerId], bool] | None) -> None:
        self._views_differ()
        self._hide = hide

    def joined(self, reader: MemoryDirectory) -> None:
        """A new reader; from the first difference on each remembers by itself what it has seen."""
        self._readers.append(reader)

    def _views_differ(self) -> None:
        if self.alike:
            for reader in self._readers:
                reader.remember()
            self.alike = False

    def store(self, raw: bytes) -> bool:
        """Hold a sealed record if a DHT node would admit it; whether it was held."""
        self._views_differ()
        try:
            record = unseal(raw)
        except BadRecord:
            return False
        return self._hold(record, raw)

    def store_unsigned(self, record: PeerRecord) -> bool:
        """Hold a record of a peer that has no key."""
        now, lasting = self.now(), record.expires_at > record.issued_at
        if record.issued_at > now or (record.status is Status.LEAVING and lasting):
            self._views_differ()  # not everybody will take it at its word
        return self._hold(record, record)

    def plant(self, run_id: RunId, peer_id: PeerId, raw: bytes) -> None:
        """Hold these bytes without a look at them, as a hostile node would."""
        self._views_differ()
        self._held.setdefault(run_id, {})[peer_id] = raw
        self._spread(run_id)

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Cut the swarm: nobody sees what is announced on another side. Peers named nowhere form one more side. What a
        peer saw before, it knows until it expires."""
        self._views_differ()
        self._side = {peer: index for index, side in enumerate(sides) for peer in side}

    def heal(self) -> None:
        """Undo `partition`."""
        self._side = {}

    def visible(self, run_id: RunId, reader: PeerId) -> list[PeerRecord | bytes]:
        """What a look of `reader` finds, each bucket ordered by peer id."""
        self._forget()
        found = [entry for held in self._looked_into(run_id, reader) for entry in held.items()]
        if not self._side and self.hide is None:
            return [record for _, record in found]
        return [record for peer, record in found if self._sees(reader, peer)]

    def live(self, run_id: RunId, reader: PeerId) -> list[PeerRecord]:
        """The unexpired records of the others, each bucket ordered by peer id, while all see alike."""
        self._forget()
        now = self.now()
        found = [cast(Iterable[PeerRecord], held.values()) for held in self._looked_into(run_id, reader)]
        return [r for held in found for r in held if r.expires_at > now and r.peer_id != reader]

    def _sees(self, reader: PeerId, peer: PeerId) -> bool:
        return self._side.get(peer) == self._side.get(reader) and not self.hidden(reader, peer)

    def hidden(self, reader: PeerId, peer: PeerId) -> bool:
        return self.hide is not None and self.hide(reader, peer)

    def _hold(self, record: PeerRecord, held: PeerRecord | bytes) -> bool:
        records = self._held.setdefault(record.run_id, {})
        former = records.get(record.peer_id)
        if former is not None and _issued(former) > record.issued_at:
            return False
        records[record.peer_id] = held
        if former is None:
            self._held[record.run_id] = dict(sorted(records.items()))
            self._spread(record.run_id)
        else:
            buckets = self._buckets[record.run_id]
            buckets[_hashed(record.peer_id) % len(buckets)][record.peer_id] = held
        return True

    def _spread(self, run_id: RunId) -> None:
        """Lay the records into as many buckets as it takes, a power of two."""
        held, count = self._held[run_id], 1
        if self._look is not None and len(held) > self._look:
            while 2 * len(held) > self._look * count:
                count *= 2
        buckets: list[dict[PeerId, PeerRecord | bytes]] = [{} for _ in range(count)]
        for peer, record in held.items():
            buckets[_hashed(peer) % count][peer] = record
        self._buckets[run_id] = buckets

    def _looked_into(self, run_id: RunId, reader: PeerId) -> list[dict[PeerId, PeerRecord | bytes]]:
        """The buckets that a look of `reader` goes into, in the round that its own record tells."""
        buckets = self._buckets.get(run_id, [{}])
        if len(buckets) == 1:
            return buckets
        own = self._held[run_id].get(reader)
        turn = _hashed(f"turn {own.round}") if isinstance(own, PeerRecord) else 0
        here = _hashed(reader) % len(buckets)
        return [buckets[number] for number in sorted({here, here ^ (turn % len(buckets))})]

    def _forget(self) -> None:
        """What is too old to count; looked for now and then."""
        now = self.now()
        if now - self._forgot_at < FORGET_EVERY_S:
            return
        self._forgot_at = now
        horizon = now - MAX_RECORD_TTL_S
        for run_id, records in self._held.items():
            self._held[run_id] = {peer: held for peer, held in records.items() if _issued(held) > horizon}
            if len(self._held[run_id]) < len(records):
                self._spread(run_id)


class MemoryDirectory:
    """Implements `Directory`. With an `Identity` records are signed and verified as in the DHT; with a bare peer id
    they are handed over as they are, which is faster."""

    def __init__(self, hub: MemoryDirectoryHub, own: Identity | PeerId, run_id: RunId) -> None:
        self._hub, self._run_id = hub, run_id
        self._identity = own if isinstance(own, Identity) else None
        self.peer_id = PeerId(own.peer_id) if isinstance(own, Identity) else own
        self._own: PeerRecord | None = None
        self._view = View(run_id, self.peer_id)
        self._taken: dict[int, PeerRecord | bytes] = {}
        """By id(), what the view was told already."""
        self._last: list[PeerRecord] = []
        hub.joined(self)

    @property
    def dropped(self) -> Counter[str]:
        """Bad records met, by the code of BadRecord."""
        return self._view.dropped

    async def announce(self, record: PeerRecord) -> None:
        assert record.peer_id == self.peer_id, "a peer announces itself alone"
        self._own = record
        self._publish(record)

    async def withdraw(self) -> None:
        if self._own is not None:
            at = max(self._hub.now(), self._own.issued_at + 1e-3)
            self._publish(replace(self._own, status=Status.LEAVING, issued_at=at, expires_at=at))
            self._own = None

    async def peers(self) -> list[PeerRecord]:
        if self._hub.alike:
            self._last = self._hub.live(self._run_id, self.peer_id)
            return self._last
        now = self._hub.now()
        found = {id(held): held for held in self._hub.visible(self._run_id, self.peer_id)}
        for held in [held for key, held in found.items() if key not in self._taken]:
            self._view.take(held, now)
        self._taken = found
        live = self._view.live(now)
        if self._hub.hide is None:
            return live
        return [record for record in live if not self._hub.hidden(self.peer_id, record.peer_id)]

    def remember(self) -> None:
        """From here on what was seen before is known here alone."""
        now = self._hub.now()
        for record in self._last:
            self._view.take(record, now)
        self._last = []

    def contact(self) -> Contact:
        """Nothing is dialled here, and there is one clock."""
        return Contact()

    def _publish(self, record: PeerRecord) -> None:
        if self._identity is not None:
            self._hub.store(seal(record, self._identity))
        else:
            self._hub.store_unsigned(record)


@lru_cache(maxsize=4096)
def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _issued(held: PeerRecord | bytes) -> float:
    """When it was issued; planted rubbish stays for good."""
    if isinstance(held, PeerRecord):
        return held.issued_at
    try:
        return unseal(held).issued_at
    except BadRecord:
        return float("inf")
