"""Directory of signed records in a hivemind DHT.

`keys.py` and `peer.protocol.swarm.buckets` tell where records lie, `validator.py` tells which ones a node admits, and
`dht_node/supervisor.py` keeps the node joined."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from peer.discovery.address_cache import AddressCache
from peer.discovery.dht_node.health import Unwatched, Watcher
from peer.discovery.dht_node.node import LOST, DhtNode, DhtNodeLimits, DhtNodeOptions
from peer.discovery.dht_node.supervisor import DhtNodeSupervisor, SupervisorTimes
from peer.discovery.keys import bucket_key
from peer.discovery.multiaddr import check_announced, check_peers
from peer.discovery.record_store import RecordStore, live_record
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status, first_expiry
from peer.protocol.swarm.buckets import DirectoryBuckets
from peer.signed_record import InvalidRecord, seal

LOOK_S = 5.0
STORE_S = 5.0
WITHDRAW_S = 1.0
HOLD_S = 600.0
"""Seconds of a rebuild of p2pd in which the peers last seen alive are taken to be alive."""
HELD_LIFE_S = 40.0
"""Seconds that a record is taken to live during a rebuild: longer than the pause between two looks."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryListeners:
    """Listeners for what befalls a directory."""

    helper: Watcher = field(default_factory=Unwatched)
    """Told when p2pd is lost and when it is back."""
    bad_record: Callable[[InvalidRecord], None] = lambda bad: None
    """Told of bad records in answers, of which nobody knows who stored them."""


class DhtDirectory:
    """The `Directory` interface over the DHT. It belongs to the event loop that it was started in."""

    def __init__(
        self,
        identity: Identity,
        run_id: RunId,
        options: DhtNodeOptions,
        initial_peers: Sequence[str],
        cache_path: Path | None,
        now: Callable[[], float],
        pace: SupervisorTimes,
        told: DirectoryListeners,
    ) -> None:
        self._identity, self._run_id, self._now = identity, run_id, now
        self._buckets = DirectoryBuckets(PeerId(identity.peer_id))
        self._looking = asyncio.Lock()
        self._own: PeerRecord | None = None
        self._view = RecordStore(run_id, PeerId(identity.peer_id), told.bad_record)
        self._good_until = math.inf
        self._gate = RecordGate(now)
        cache = AddressCache(cache_path, now())
        self._helper = DhtNodeSupervisor(
            options, self._gate, initial_peers, cache, now, self._publish, pace, told.helper
        )

    @classmethod
    async def start(
        cls,
        *,
        identity: Identity,
        identity_path: Path,
        run_id: RunId,
        initial_peers: Sequence[str] = (),
        host_maddrs: Sequence[str] = ("/ip4/0.0.0.0/tcp/0",),
        announce_maddrs: Sequence[str] = (),
        cache_path: Path | None = None,
        now: Callable[[], float] = time.time,
        pace: SupervisorTimes | None = None,
        limits: DhtNodeLimits | None = None,
        told: DirectoryListeners | None = None,
    ) -> DhtDirectory:
        """Start p2pd with the key at `identity_path` (which is `identity`), and join whoever answers; nobody is no
        error. `initial_peers`: addresses that end in /p2p/<peer id>. `cache_path`: a file to keep seen addresses in.

        Raises AddressError (an address cannot be parsed, or is taken) or DirectoryFailed (p2pd cannot start)."""
        check_peers(initial_peers)
        check_announced(announce_maddrs)
        options = DhtNodeOptions(
            identity_path, identity.public_key, tuple(announce_maddrs), limits=limits or DhtNodeLimits()
        )
        self = cls(
            identity,
            run_id,
            options,
            initial_peers,
            cache_path,
            now,
            pace or SupervisorTimes(),
            told or DirectoryListeners(),
        )
        await self._helper.start(host_maddrs)
        return self

    async def announce(self, record: PeerRecord) -> None:
        """Sign and publish a record, which replaces the former one; returns within `STORE_S`.

        The directory publishes it again by itself whenever we join the swarm again. Raises InvalidRecord when no peer
        would believe the record."""
        seal(record, self._identity)
        self._own = record
        if self._helper.node is not None:
            await self._publish(self._helper.node)

    async def withdraw(self) -> None:
        """Replace our record by an expired one that says LEAVING, within `WITHDRAW_S`. A failure is ignored."""
        if self._own is None:
            return
        at = max(self._now(), self._own.issued_at + 1e-3)
        farewell = replace(self._own, status=Status.LEAVING, issued_at=at, expires_at=at)
        self._own = None
        if self._helper.node is not None:
            await self._store(self._helper.node, farewell, WITHDRAW_S)

    def read_everybody(self) -> None:
        """From here on see all peers of the run, as groups need it: their records are never spread over buckets."""
        self._buckets.read_everybody()

    async def peers(self) -> dict[PeerId, PeerRecord]:
        """Return the live records of this run except our own, ordered by peer id, within `LOOK_S`.

        In a large run they are those of the buckets that we looked into lately. When the look fails, they are the known
        ones that have not expired. While p2pd is rebuilt, they are those that had not expired at its death."""
        node = self._helper.node
        if node is not None:
            moved = False
            try:
                async with asyncio.timeout(LOOK_S), self._looking:
                    moved = await self._look(node)
            except LOST as error:
                log.info("a look into the directory failed: %r", error)
            if moved:
                await self._publish(node)
        known = self._known(self._now())
        self._good_until = first_expiry(known)
        return known

    @property
    def good_until(self) -> float:
        return self._good_until

    async def _look(self, node: DhtNode) -> bool:
        """Read the buckets of this round; return whether our own bucket is another one now."""
        buckets, round_ = self._buckets, self._own.round if self._own is not None else 0
        found = await self._read(node, buckets.reads(round_))
        if more := buckets.more(round_, found):
            found |= await self._read(node, more)
        return buckets.saw(found, self._now())

    async def _read(self, node: DhtNode, wanted: Sequence[str]) -> dict[str, set[PeerId]]:
        """Return the live peers in each of these buckets, and add their records to the store."""
        there: dict[str, set[PeerId]] = {}
        keys = [bucket_key(self._run_id, bits) for bits in wanted]
        for bits, found in zip(wanted, await node.find_in(keys), strict=True):
            now = self._now()
            for raw in found:
                self._view.take(raw, now)
            live = (live_record(raw, self._run_id, now) for raw in found)
            there[bits] = {record.peer_id for record in live if record is not None}
        return there

    def _known(self, now: float) -> dict[PeerId, PeerRecord]:
        lost_at = self._helper.lost_at
        if lost_at is None or now - lost_at > HOLD_S:
            return self._view.live(now)
        held = now + HELD_LIFE_S
        known = self._view.live(lost_at)
        return {peer: replace(record, expires_at=max(record.expires_at, held)) for peer, record in known.items()}

    def addresses(self) -> list[str]:
        """Return multiaddrs with /p2p/ under which other peers can join the DHT through us, best first."""
        return list(self._helper.addresses)

    def neighbours(self) -> int:
        """Return the size of the routing table; 0: alone."""
        return len(self._helper.node.neighbours()) if self._helper.node is not None else 0

    def contact(self) -> DialReport:
        return self._helper.contact()

    @property
    def trouble(self) -> str:
        """Fault of the directory, for a person; empty without one."""
        return self._helper.health.trouble()

    def report(self) -> dict[str, Any]:
        """Return the state of the directory, JSON-able.

        `state` is joined, alone or rebuilding, with `why`. `losses` counts the losses of p2pd, and `last_loss` is the
        cause of the last one. `pid`, `memory` (bytes) and `neighbours` are those of p2pd now."""
        node = self._helper.node
        memory = node.resident_bytes() if node is not None else 0
        return self._helper.health.report() | {
            "pid": self.helper_pid,
            "memory": memory,
            "neighbours": self.neighbours(),
        }

    @property
    def dropped(self) -> Counter[str]:
        """Bad records met in answers or refused by our node, counted by the code of InvalidRecord."""
        return self._view.dropped + self._gate.refused

    @property
    def helper_pid(self) -> int | None:
        """Process id of p2pd; None while it is dead."""
        return self._helper.node.pid if self._helper.node is not None else None

    async def close(self) -> None:
        """End p2pd and every task within a few seconds. Call `withdraw` first. Never raises."""
        await self._helper.close()

    async def _publish(self, node: DhtNode) -> None:
        if self._own is not None:
            await self._store(node, self._own, STORE_S)

    async def _store(self, node: DhtNode, record: PeerRecord, timeout_s: float) -> None:
        raw = seal(record, self._identity)
        try:
            async with asyncio.timeout(timeout_s):
                keys = [bucket_key(self._run_id, bits) for bits in self._buckets.places(self._now())]
                await node.store_in(keys, self._identity.public_key, raw, dht_expiry(record))
        except LOST as error:
            log.info("could not publish our record: %r", error)
