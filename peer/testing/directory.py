"""The directory in memory: many peers, one hub, no I/O, and time is what `now` says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from peer.identity import Identity
from peer.net.directory.contact import Contact
from peer.net.directory.record import BadRecord, seal, unseal
from peer.net.directory.view import View
from peer.protocol.messages import MAX_RECORD_TTL_S, PeerId, PeerRecord, RunId, Status


class MemoryDirectoryHub:
    """What the DHT is to the real directory. Holds the latest record of each peer of each run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        """Seconds since the epoch, usually a virtual clock's."""
        self.hide: Callable[[PeerId, PeerId], bool] = lambda reader, other: False
        """`hide(reader, other)`: keep `other` out of what `reader` sees, for incomplete and differing views."""
        self._held: dict[tuple[RunId, PeerId], PeerRecord | bytes] = {}
        self._side: dict[PeerId, int] = {}

    def store(self, raw: bytes) -> bool:
        """Hold a sealed record if a DHT node would admit it; whether it was held."""
        try:
            record = unseal(raw)
        except BadRecord:
            return False
        return self._hold(record, raw)

    def store_unsigned(self, record: PeerRecord) -> bool:
        """Hold a record of a peer that has no key."""
        return self._hold(record, record)

    def plant(self, run_id: RunId, peer_id: PeerId, raw: bytes) -> None:
        """Hold these bytes without a look at them, as a hostile node would."""
        self._held[run_id, peer_id] = raw

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Cut the swarm: nobody sees what is announced on another side. Peers named nowhere form one more side. What a
        peer saw before, it knows until it expires."""
        self._side = {peer: index for index, side in enumerate(sides) for peer in side}

    def heal(self) -> None:
        """Undo `partition`."""
        self._side = {}

    def visible(self, run_id: RunId, reader: PeerId) -> list[PeerRecord | bytes]:
        """What a look of `reader` finds."""
        self._forget()
        return [
            held
            for (run, peer), held in sorted(self._held.items(), key=lambda item: item[0])
            if run == run_id and self._side.get(peer) == self._side.get(reader) and not self.hide(reader, peer)
        ]

    def _hold(self, record: PeerRecord, held: PeerRecord | bytes) -> bool:
        former = self._held.get((record.run_id, record.peer_id))
        if former is not None and _issued(former) > record.issued_at:
            return False
        self._held[record.run_id, record.peer_id] = held
        return True

    def _forget(self) -> None:
        horizon = self.now() - MAX_RECORD_TTL_S
        self._held = {where: held for where, held in self._held.items() if _issued(held) > horizon}


class MemoryDirectory:
    """Implements `Directory`. With an `Identity` records are signed and verified as in the DHT; with a bare peer id
    they are handed over as they are, which is faster."""

    def __init__(self, hub: MemoryDirectoryHub, own: Identity | PeerId, run_id: RunId) -> None:
        self._hub, self._run_id = hub, run_id
        self._identity = own if isinstance(own, Identity) else None
        self.peer_id = PeerId(own.peer_id) if isinstance(own, Identity) else own
        self._own: PeerRecord | None = None
        self._view = View(run_id, self.peer_id)

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
        now = self._hub.now()
        for held in self._hub.visible(self._run_id, self.peer_id):
            self._view.take(held, now)
        return [record for record in self._view.live(now) if not self._hub.hide(self.peer_id, record.peer_id)]

    def contact(self) -> Contact:
        """Nothing is dialled here, and there is one clock."""
        return Contact()

    def _publish(self, record: PeerRecord) -> None:
        if self._identity is not None:
            self._hub.store(seal(record, self._identity))
        else:
            self._hub.store_unsigned(record)


def _issued(held: PeerRecord | bytes) -> float:
    """When it was issued; planted rubbish stays for good."""
    if isinstance(held, PeerRecord):
        return held.issued_at
    try:
        return unseal(held).issued_at
    except BadRecord:
        return float("inf")
