"""Records of the other peers of a run, collected from answers that may be partial, outdated or forged.

The DHT directory and the in-memory directory of the simulator both use this store."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable

from peer.codes import Code
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status
from peer.signed_record import InvalidRecord, check_current, unseal

MAX_LENT = 1024
"""Most peers that are known only because other peers have shown their records."""


class LentRecords:
    """The peers whose records were shown by other peers but found by no look, with the expiry of these records."""

    def __init__(self) -> None:
        self._until: dict[PeerId, float] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._until

    def found(self, peers: Iterable[PeerId]) -> None:
        """Remove peers that a look has found."""
        for peer in peers:
            self._until.pop(peer, None)

    def learn(self, store: RecordStore, found: bytes | PeerRecord, now: float, of: PeerId | None) -> bool:
        """Add a record that a peer showed to the store, as `peer.ports.directory.SharedRecords.learn` defines. Return
        whether its peer is new here."""
        record = store.verified(found, now, of)
        peer, former = record.peer_id, store.latest(record.peer_id)
        if record.expires_at <= now or (former is not None and former.issued_at >= record.issued_at):
            return False
        self._until = {other: until for other, until in self._until.items() if until > now}
        if former is None and len(self._until) >= MAX_LENT:
            return False
        store.add_verified(found, record)
        if (
            store.latest(peer) is not record or record.status is Status.LEAVING
        ):  # it is our own record, or announces a departure
            return False
        self._until[peer] = record.expires_at
        return former is None or former.expires_at <= now


class RecordStore:
    """The latest record of every other peer of the run.

    A record that is missing from an answer is kept until it expires, so a partial or failed look loses no peer. Only a
    later record or its expiry removes one."""

    def __init__(
        self,
        run_id: RunId,
        own: PeerId,
        on_bad_record: Callable[[InvalidRecord], None] = lambda bad: None,
        on_own_record: Callable[[PeerRecord], None] = lambda record: None,
    ) -> None:
        """`on_bad_record`: called with each invalid record. `on_own_record`: called with each record of our own key."""
        self._run_id = run_id
        self._own = own
        self._latest: dict[PeerId, PeerRecord] = {}
        self._found: dict[PeerId, bytes | PeerRecord] = {}
        """The records of `_latest` in the form in which they were found."""
        self._order: list[PeerId] | None = None
        """The peers of `_latest`, sorted; None: to be sorted again."""
        self._forget_at = 0.0
        self._on_bad_record = on_bad_record
        self._on_own_record = on_own_record
        self.dropped: Counter[Code] = Counter()
        """Number of invalid records, by the code of InvalidRecord. Expired records are not counted, since the DHT keeps
        them for a while."""

    def add(self, found: bytes | PeerRecord, now: float) -> None:
        """Add a record if it is valid and the latest of its peer; count it if it is invalid.

        Bytes are verified. A `PeerRecord` without a signature is accepted unverified, for tests."""
        with contextlib.suppress(InvalidRecord):
            self.add_verified(found, self.verified(found, now))

    def verified(self, found: bytes | PeerRecord, now: float, of: PeerId | None = None) -> PeerRecord:
        """Return the verified record. `of`: the peer it must belong to; None: any. Raises InvalidRecord, and counts
        it."""
        try:
            record = unseal(found) if isinstance(found, bytes) else found
            check_current(record, self._run_id, now)
            if of is not None and record.peer_id != of:
                raise InvalidRecord(Code.LAYOUT, "the record of another peer than the one that shows it as its own")
        except InvalidRecord as bad:
            self.dropped[bad.code] += 1
            self._on_bad_record(bad)
            raise
        return record

    def add_verified(self, found: bytes | PeerRecord, record: PeerRecord) -> None:
        """Add a verified record if it is the latest of its peer. `found`: the same record in the form in which it was
        found."""
        if record.peer_id == self._own:
            self._on_own_record(record)
            return
        known = self._latest.get(record.peer_id)
        if known is None or known.issued_at < record.issued_at:
            self._latest[record.peer_id] = record
            self._found[record.peer_id] = found
            if known is None:
                self._order = None
            self._forget_at = min(self._forget_at, record.issued_at + MAX_RECORD_TTL_S)

    def latest(self, peer: PeerId) -> PeerRecord | None:
        """Return the latest record of a peer, live or not."""
        return self._latest.get(peer)

    def shown(self, peer: PeerId) -> bytes | PeerRecord | None:
        """Return the latest record of a peer in the form in which it was found."""
        return self._found.get(peer)

    def live(self, now: float) -> dict[PeerId, PeerRecord]:
        """Return the unexpired records of peers that are not leaving, ordered by peer id."""
        if now >= self._forget_at:
            self._forget(now)
        if self._order is None:
            self._order = sorted(self._latest)
        records = ((peer, self._latest[peer]) for peer in self._order)
        return {peer: r for peer, r in records if r.expires_at > now and r.status is not Status.LEAVING}

    def _forget(self, now: float) -> None:
        """Drop records some time after they expired. A record that announced a departure must outlive its expiry, so
        that an older record of the same peer does not reappear."""
        self._latest = {p: r for p, r in self._latest.items() if r.issued_at + MAX_RECORD_TTL_S > now}
        self._found = {p: found for p, found in self._found.items() if p in self._latest}
        self._forget_at = min((r.issued_at for r in self._latest.values()), default=now) + MAX_RECORD_TTL_S
        self._order = None


def live_record(found: bytes | PeerRecord, run_id: RunId, now: float) -> PeerRecord | None:
    """Return the record if it is valid, of this run, not expired and not leaving; else None."""
    try:
        record = unseal(found) if isinstance(found, bytes) else found
        check_current(record, run_id, now)
    except InvalidRecord:
        return None
    return record if record.expires_at > now and record.status is not Status.LEAVING else None
