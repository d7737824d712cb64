"""The directory port in memory: one hub, which plays the DHT, and one `MemoryDirectory` for each peer. No I/O; the time
comes from the function `now`."""

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
"""When a bucket's cached earliest expiry is less than this many seconds ahead, it is computed again."""


class MemoryDirectoryHub:
    """The simulated DHT. Holds the latest record of each peer in each bucket of each run.

    look: number of live records above which a bucket splits, by the rule of `peer.protocol.swarm.buckets`, as in the
    DHT. None: one bucket that never splits, as groups use it."""

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
        """True while all readers see the same records and no record needs a check. Readers then share the hub's records
        instead of each keeping its own copy, which makes large swarms cheap."""
        self._held: dict[tuple[RunId, str], dict[PeerId, PeerRecord | bytes]] = {}
        """Records by run and bucket, each ordered by peer id."""
        self._live: dict[tuple[RunId, str], _Live] = {}
        """The live records of each bucket, used while `views_agree`."""
        self._side: dict[PeerId, int] = {}
        self._dropped_old_at = 0.0
        if hide is not None:
            self.hide = hide

    def put_on_one_router(self, homes: Iterable[PeerId]) -> None:
        """Put these peers into one local network, where they find each other without the DHT."""
        self._homes = dict.fromkeys(homes, ("192.168.7.2:1",))

    def own_network(self, reader: PeerId) -> Mapping[PeerId, tuple[str, ...]]:
        """Return the peers in the reader's local network and their addresses. Empty for a peer that is in none."""
        return self._homes if reader in self._homes else {}

    @property
    def hide(self) -> Callable[[PeerId, PeerId], bool] | None:
        """`hide(reader, other)`: whether `reader` cannot see the record of `other`. For tests with incomplete and
        differing views."""
        return self._hide

    @hide.setter
    def hide(self, hide: Callable[[PeerId, PeerId], bool] | None) -> None:
        self._separate_views()
        self._hide = hide

    def add_reader(self, reader: MemoryDirectory) -> None:
        """Register a reader. Its `copy_seen` is called when views begin to differ."""
        self._readers.append(reader)

    def _separate_views(self) -> None:
        """Give each reader its own view from here on. Never undone."""
        if self.views_agree:
            for reader in self._readers:
                reader.copy_seen()
            self.views_agree = False

    def store(self, raw: bytes, places: Sequence[str] = ("",)) -> bool:
        """Store a sealed record in these buckets if a DHT node would admit it. Return whether it was stored."""
        self._separate_views()
        try:
            record = unseal(raw)
        except InvalidRecord:
            return False
        return self._hold(record, raw, places)

    def store_unsigned(self, record: PeerRecord, places: Sequence[str] = ("",)) -> bool:
        """Store the record of a peer without a key, unsigned. Return whether it was stored."""
        now, lasting = self.now(), record.expires_at > record.issued_at
        if record.issued_at > now or (record.status is Status.LEAVING and lasting):
            self._separate_views()  # readers have to check its dates, and may decide differently
        return self._hold(record, record, places)

    def plant(self, run_id: RunId, peer_id: PeerId, raw: bytes) -> None:
        """Store these bytes unchecked, as a hostile DHT node would."""
        self._separate_views()
        self._put((run_id, ""), peer_id, raw)

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Cut the swarm: no peer sees records that were announced on another side. Peers that are in none of `sides`
        form one more side. A record seen before the cut stays visible until it expires."""
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
        """Return the unexpired records in these buckets, ordered by peer id. Only while `views_agree`. The caller must
        not change them, and must not use them later."""
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
        """Drop records older than the longest lifetime of a record, at most every `FORGET_EVERY_S`."""
        if now - self._dropped_old_at < FORGET_EVERY_S:
            return
        self._dropped_old_at = now
        horizon = now - MAX_RECORD_TTL_S
        for place, records in self._held.items():
            self._held[place] = {peer: held for peer, held in records.items() if _issued(held) > horizon}


class _Live:
    """The unexpired records of a bucket. Valid until `until`, the earliest time at which one of them may have
    expired."""

    __slots__ = ("records", "until")

    def __init__(self, records: dict[PeerId, PeerRecord]) -> None:
        self.records = records
        self.until = first_expiry(records)

    def put(self, record: PeerRecord) -> None:
        """Replace the record of a peer that is already in the bucket by a later one."""
        self.records[record.peer_id] = record
        self.until = min(self.until, record.expires_at)


class MemoryDirectory:
    """One peer's `Directory` on a hub. With an `Identity` its records are signed and verified as in the DHT. With a
    bare peer id they are passed on unsigned, which is faster."""

    def __init__(self, hub: MemoryDirectoryHub, own: Identity | PeerId, run_id: RunId) -> None:
        self._hub, self._run_id = hub, run_id
        self._identity = own if isinstance(own, Identity) else None
        self.peer_id = PeerId(own.peer_id) if isinstance(own, Identity) else own
        self._own: PeerRecord | None = None
        self._record_store = RecordStore(run_id, self.peer_id)
        self._lent = LentRecords()
        self._seen: dict[str, dict[int, PeerRecord | bytes]] = {}
        """The records in `_record_store`, by bucket and id(), so that each is checked once."""
        self._last: dict[PeerId, PeerRecord] = {}
        self._good_until = math.inf
        self.buckets = DirectoryBuckets(self.peer_id, hub.look or SPLIT)
        if hub.look is None:
            self.buckets.read_everybody()
        hub.add_reader(self)

    @property
    def dropped(self) -> Counter[Code]:
        """Number of bad records seen, by the code of InvalidRecord."""
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
        """Return the live records of one bucket that this peer can see, after checking the new ones."""
        now, seen = self._hub.now(), self._seen.get(bits, {})
        found = {id(held): held for held in self._hub.visible(self._run_id, self.peer_id, bits)}
        for held in [held for key, held in found.items() if key not in seen]:
            self._record_store.add(held, now)
        self._seen[bits] = found
        live = (live_record(held, self._run_id, now) for held in found.values())
        there = {record.peer_id: record for record in live if record is not None}
        self._lent.found(there)
        return there

    def own(self) -> Shown:
        """Implement `peer.ports.directory.SharedRecords`, together with the next five methods."""
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
        """Copy the records read last from the hub into this reader's own store, because views differ from now on."""
        now = self._hub.now()
        for record in self._last.values():
            self._record_store.add(record, now)
        self._last = {}

    def contact(self) -> DialReport:
        """Return an empty report: the simulated directory dials no peer, and all peers share one clock."""
        return DialReport()

    def _publish(self, record: PeerRecord) -> None:
        places = self.buckets.places(self._hub.now())
        if self._identity is not None:
            self._hub.store(seal(record, self._identity), places)
        else:
            self._hub.store_unsigned(record, places)


def _merged(found: dict[str, dict[PeerId, PeerRecord]], me: PeerId) -> dict[PeerId, PeerRecord]:
    """Return the latest record of each peer but `me`, merged from several buckets."""
    first, *others = found.values()
    latest = first.copy()
    for records in others:
        latest |= records
    if len(latest) < sum(map(len, found.values())):  # a peer is in two buckets: take its later record
        for record in chain.from_iterable(records.values() for records in found.values()):
            if latest[record.peer_id].issued_at < record.issued_at:
                latest[record.peer_id] = record
    latest.pop(me, None)
    return latest


def _issued(held: PeerRecord | bytes) -> float:
    """Return when a record was issued, in seconds since the epoch. Infinite for bytes that are no record, so that
    `plant`ed ones are never dropped."""
    if isinstance(held, PeerRecord):
        return held.issued_at
    try:
        return unseal(held).issued_at
    except InvalidRecord:
        return float("inf")
