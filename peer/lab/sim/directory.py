"""The directory in memory: many peers, one hub, no I/O, and time is what `now` says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

from peer.codes import Code
from peer.discovery.record_store import LentRecords, RecordStore, live_record
from peer.identity import Identity
from peer.ports.directory import DialReport, Shown
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status, first_expiry
from peer.protocol.swarm.buckets import SPLIT, DirectoryBuckets
from peer.signed_record import InvalidRecord, seal, unseal

FORGET_EVERY_S = 60.0
SOON_S = 30.0
"""If one may expire before readers look again, it is found out which."""


class MemoryDirectoryHub:
    """The simulated DHT. It holds the latest record of each peer in each bucket of each run.

    `look`: live records above which a bucket splits, by the rule of `peer.protocol.swarm.buckets`, as in the DHT. None:
    one bucket, as groups have it."""

    def __init__(
        self,
        now: Callable[[], float],
        look: int | None = None,
        hide: Callable[[PeerId, PeerId], bool] | None = None,
    ) -> None:
        self.look = look
        self.now = now
        """Seconds since the epoch, usually a virtual clock's."""
        self._homes: dict[PeerId, tuple[str, ...]] = {}
        self._hide: Callable[[PeerId, PeerId], bool] | None = None
        self._readers: list[MemoryDirectory] = []
        self.views_agree = True
        """All readers see the same, and no record needs a check: the held records are the view of every peer."""
        self._held: dict[tuple[RunId, str], dict[PeerId, PeerRecord | bytes]] = {}
        """Records by run and bucket, each ordered by peer id."""
        self._live: dict[tuple[RunId, str], _Live] = {}
        """The live records of each bucket, while all readers see the same."""
        self._side: dict[PeerId, int] = {}
        self._dropped_old_at = 0.0
        if hide is not None:
            self.hide = hide

    def put_on_one_router(self, homes: Iterable[PeerId]) -> None:
        """Let these find each other in their own network."""
        self._homes = dict.fromkeys(homes, ("192.168.7.2:1",))

    def own_network(self, reader: PeerId) -> Mapping[PeerId, tuple[str, ...]]:
        """Return the peers of a reader's own network, and where they listen."""
        return self._homes if reader in self._homes else {}

    @property
    def hide(self) -> Callable[[PeerId, PeerId], bool] | None:
        """`hide(reader, other)`: keep `other` out of what `reader` sees, for incomplete and differing views."""
        return self._hide

    @hide.setter
    def hide(self, hide: Callable[[PeerId, PeerId], bool] | None) -> None:
        self._separate_views()
        self._hide = hide

    def add_reader(self, reader: MemoryDirectory) -> None:
        """Add a reader. From the first difference on each reader remembers its own view."""
        self._readers.append(reader)

    def _separate_views(self) -> None:
        if self.views_agree:
            for reader in self._readers:
                reader.copy_seen()
            self.views_agree = False

    def store(self, raw: bytes, places: Sequence[str] = ("",)) -> bool:
        """Hold a sealed record in these buckets if a DHT node would admit it. Return whether it was held."""
        self._separate_views()
        try:
            record = unseal(raw)
        except InvalidRecord:
            return False
        return self._hold(record, raw, places)

    def store_unsigned(self, record: PeerRecord, places: Sequence[str] = ("",)) -> bool:
        """Hold a record of a peer that has no key."""
        now, lasting = self.now(), record.expires_at > record.issued_at
        if record.issued_at > now or (record.status is Status.LEAVING and lasting):
            self._separate_views()  # its dates need a check, which readers may decide differently
        return self._hold(record, record, places)

    def plant(self, run_id: RunId, peer_id: PeerId, raw: bytes) -> None:
        """Hold these bytes without a look at them, as a hostile node would."""
        self._separate_views()
        self._put((run_id, ""), peer_id, raw)

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Cut the swarm: no peer sees the announcements of another side. Peers named nowhere form one more side. A peer
        keeps the records that it saw until they expire."""
        self._separate_views()
        self._side = {peer: index for index, side in enumerate(sides) for peer in side}

    def heal(self) -> None:
        """Undo `partition`."""
        self._side = {}

    def visible(self, run_id: RunId, reader: PeerId, bits: str = "") -> list[PeerRecord | bytes]:
        """Return the records that `reader` finds in a bucket, ordered by peer id."""
        self._drop_old(self.now())
        held = self._held.get((run_id, bits), {})
        if not self._side and self.hide is None:
            return list(held.values())
        return [record for peer, record in held.items() if self._sees(reader, peer)]

    def live(self, run_id: RunId, wanted: Sequence[str]) -> dict[str, _Live]:
        """Return the unexpired records in these buckets, ordered by peer id, while all see the same. They are not to be
        changed, and are valid for this moment only."""
        now = self.now()
        self._drop_old(now)
        return {bits: self._live_at((run_id, bits), now) for bits in wanted}

    def _live_at(self, place: tuple[RunId, str], now: float) -> _Live:
        live = self._live.get(place)
        if live is None or now >= live.until:
            held = cast(dict[PeerId, PeerRecord], self._held.get(place, {}))
            live = self._live[place] = _Live({peer: r for peer, r in held.items() if r.expires_at > now})
        elif live.until < now + SOON_S:
            live.until = first_expiry(live.records)
        return live

    def _sees(self, reader: PeerId, peer: PeerId) -> bool:
        return self._side.get(peer) == self._side.get(reader) and not self.hidden(reader, peer)

    def hidden(self, reader: PeerId, peer: PeerId) -> bool:
        return self.hide is not None and self.hide(reader, peer)

    def _hold(self, record: PeerRecord, held: PeerRecord | bytes, places: Sequence[str]) -> bool:
        stored = False
        for place in [(record.run_id, bits) for bits in places]:
            records = self._held.get(place)
            former = None if records is None else records.get(record.peer_id)
            if former is None or _issued(former) <= record.issued_at:
                self._put(place, record.peer_id, held)
                stored = True
        return stored

    def _put(self, place: tuple[RunId, str], peer: PeerId, held: PeerRecord | bytes) -> None:
        records, live = self._held.setdefault(place, {}), self._live.get(place)
        new = peer not in records
        records[peer] = held
        if new:
            self._held[place] = dict(sorted(records.items()))
        if live is not None and peer in live.records and isinstance(held, PeerRecord):
            live.put(held)
        else:
            self._live.pop(place, None)

    def _drop_old(self, now: float) -> None:
        """Drop records that are too old to count, now and then."""
        if now - self._dropped_old_at < FORGET_EVERY_S:
            return
        self._dropped_old_at = now
        horizon = now - MAX_RECORD_TTL_S
        for place, records in self._held.items():
            self._held[place] = {peer: held for peer, held in records.items() if _issued(held) > horizon}


class _Live:
    """The unexpired records of a bucket, valid until one of them may have expired."""

    __slots__ = ("records", "until")

    def __init__(self, records: dict[PeerId, PeerRecord]) -> None:
        self.records = records
        self.until = first_expiry(records)

    def put(self, record: PeerRecord) -> None:
        """Replace the record of a peer that is here by a later one."""
        self.records[record.peer_id] = record
        self.until = min(self.until, record.expires_at)


class MemoryDirectory:
    """A `Directory` on a hub. With an `Identity` records are signed and verified as in the DHT. With a bare peer id
    they are handed over as they are, which is faster."""

    def __init__(self, hub: MemoryDirectoryHub, own: Identity | PeerId, run_id: RunId) -> None:
        self._hub, self._run_id = hub, run_id
        self._identity = own if isinstance(own, Identity) else None
        self.peer_id = PeerId(own.peer_id) if isinstance(own, Identity) else own
        self._own: PeerRecord | None = None
        self._record_store = RecordStore(run_id, self.peer_id)
        self._lent = LentRecords()
        self._seen: dict[str, dict[int, PeerRecord | bytes]] = {}
        """Records that the view has seen, by bucket and id()."""
        self._last: dict[PeerId, PeerRecord] = {}
        self._good_until = math.inf
        self.buckets = DirectoryBuckets(self.peer_id, hub.look or SPLIT)
        if hub.look is None:
            self.buckets.read_everybody()
        hub.add_reader(self)

    @property
    def dropped(self) -> Counter[Code]:
        """Bad records met, by the code of InvalidRecord."""
        return self._record_store.dropped

    async def announce(self, record: PeerRecord) -> None:
        assert record.peer_id == self.peer_id, "a peer announces itself alone"
        self._own = record
        self._publish(record)

    async def withdraw(self) -> None:
        if self._own is not None:
            at = max(self._hub.now(), self._own.issued_at + 1e-3)
            self._publish(replace(self._own, status=Status.LEAVING, issued_at=at, expires_at=at))
            self._own = None

    async def peers(self) -> dict[PeerId, PeerRecord]:
        round_, self._good_until = self._own.round if self._own is not None else 0, math.inf
        found = self._read(self.buckets.reads(round_))
        if more := self.buckets.more(round_, found):
            found |= self._read(more)
        if self.buckets.saw(found, self._hub.now()) and self._own is not None:
            self._publish(self._own)
        if self._hub.views_agree:
            self._last = _merged(found, self.peer_id)
            return self._last
        live = self._record_store.live(self._hub.now())
        self._good_until = first_expiry(live)
        if self._hub.hide is None:
            return live
        return {peer: r for peer, r in live.items() if peer in self._lent or not self._hub.hidden(self.peer_id, peer)}

    def own_network(self) -> Mapping[PeerId, tuple[str, ...]]:
        return self._hub.own_network(self.peer_id)

    @property
    def good_until(self) -> float:
        return self._good_until

    def _read(self, wanted: Sequence[str]) -> dict[str, dict[PeerId, PeerRecord]]:
        """Return the live records in these buckets."""
        if self._hub.views_agree:
            live = self._hub.live(self._run_id, wanted)
            self._good_until = min(self._good_until, *(bucket.until for bucket in live.values()))
            return {bits: bucket.records for bits, bucket in live.items()}
        return {bits: self._read_own_view(bits) for bits in wanted}

    def _read_own_view(self, bits: str) -> dict[PeerId, PeerRecord]:
        now, seen = self._hub.now(), self._seen.get(bits, {})
        found = {id(held): held for held in self._hub.visible(self._run_id, self.peer_id, bits)}
        for held in [held for key, held in found.items() if key not in seen]:
            self._record_store.take(held, now)
        self._seen[bits] = found
        live = (live_record(held, self._run_id, now) for held in found.values())
        there = {record.peer_id: record for record in live if record is not None}
        self._lent.found(there)
        return there

    def own(self) -> Shown:
        """As `peer.ports.directory.SharedRecords` has it, like the next five."""
        if self._own is None:
            return b""
        return self._own if self._identity is None else seal(self._own, self._identity)

    def known(self) -> dict[PeerId, PeerRecord]:
        return dict(self._last) if self._hub.views_agree else self._record_store.live(self._hub.now())

    def shown(self, peer: PeerId) -> Shown | None:
        return self._last.get(peer) if self._hub.views_agree else self._record_store.shown(peer)

    def learn(self, found: Shown, of: PeerId | None = None) -> bool:
        return not self._hub.views_agree and self._lent.learn(self._record_store, found, self._hub.now(), of)

    def is_lent(self, peer: PeerId) -> bool:
        return peer in self._lent

    def looks_show_all(self) -> bool:
        return not self.buckets.depth

    def copy_seen(self) -> None:
        """Keep the records seen so far: from here on each reader has its own view."""
        now = self._hub.now()
        for record in self._last.values():
            self._record_store.take(record, now)
        self._last = {}

    def contact(self) -> DialReport:
        """Return an empty report: nothing is dialled here, and there is one clock."""
        return DialReport()

    def _publish(self, record: PeerRecord) -> None:
        places = self.buckets.places(self._hub.now())
        if self._identity is not None:
            self._hub.store(seal(record, self._identity), places)
        else:
            self._hub.store_unsigned(record, places)


def _merged(found: dict[str, dict[PeerId, PeerRecord]], me: PeerId) -> dict[PeerId, PeerRecord]:
    """Return all other peers, each once, by its latest record."""
    first, *others = found.values()
    latest = first.copy()
    for records in others:
        latest |= records
    if len(latest) < sum(map(len, found.values())):  # somebody is in two of them
        for record in chain.from_iterable(records.values() for records in found.values()):
            if latest[record.peer_id].issued_at < record.issued_at:
                latest[record.peer_id] = record
    latest.pop(me, None)
    return latest


def _issued(held: PeerRecord | bytes) -> float:
    """Return when it was issued. Planted rubbish stays for good."""
    if isinstance(held, PeerRecord):
        return held.issued_at
    try:
        return unseal(held).issued_at
    except InvalidRecord:
        return float("inf")
