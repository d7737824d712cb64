"""Directory of signed records in a hivemind DHT.

`keys.py` and `peer.protocol.swarm.buckets` define where records lie, `validator.py` which ones a node admits, and
`dht_node/supervisor.py` keeps the node joined."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from peer.codes import Code
from peer.discovery.address_cache import AddressCache
from peer.discovery.dht_node.health import Unwatched, Watcher
from peer.discovery.dht_node.node import LOST, DhtNode, DhtNodeLimits, DhtNodeOptions
from peer.discovery.dht_node.process import NodeStanding
from peer.discovery.dht_node.supervisor import DhtNodeSupervisor, SupervisorTimes
from peer.discovery.keys import bucket_key
from peer.discovery.lan import LanPeers
from peer.discovery.multiaddr import check_announced, check_peers, split
from peer.discovery.record_store import LentRecords, RecordStore, live_record
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.observe.status.value import DirectoryStatus
from peer.ports.directory import DialReport, Shown
from peer.protocol.messages import NODES, PeerId, PeerRecord, RunId, Status, first_expiry
from peer.protocol.swarm.buckets import DirectoryBuckets
from peer.signed_record import InvalidRecord, seal

LOOK_S = 5.0
STORE_S = 5.0
WITHDRAW_S = 1.0
HOLD_S = 600.0
"""Seconds for which, while p2pd is rebuilt, the peers last seen alive count as alive."""
HELD_LIFE_S = 40.0
"""While p2pd is rebuilt, records of these peers stay valid for this many seconds after each read: longer than the pause
between two looks."""

MAX_ASKED = 4
"""Most nodes that are asked directly in one look."""
SELDOM_LIFE_S = 300.0
"""A record whose lifetime is at least this many seconds is renewed and looked for rarely, so it is stored and read at
the operator's nodes. With shorter lifetimes these nodes could not serve a large swarm."""
ALSO_ASKED = 2
"""Of the nodes asked directly in one look: most nodes that the ticket does not name."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DirectoryListeners:
    """Callbacks of a directory."""

    watcher: Watcher = field(default_factory=Unwatched)
    """Notified when p2pd is lost and when it is back."""
    on_bad_record: Callable[[InvalidRecord], None] = lambda bad: None
    """Called with each invalid record in an answer. It is not known who stored it."""
    proven: Callable[[], Iterable[PeerId]] = tuple
    """Returns the peers whose records are read first from a large answer, before those of known peers."""
    on_own_record: Callable[[PeerRecord], None] = lambda record: None
    """Called with each record of our own key that a look finds. Another process may have announced it."""
    is_closed: Callable[[], bool] = lambda: False
    """Returns whether other nodes cannot call us."""


class DhtDirectory:
    """The `Directory` over the DHT. It belongs to the event loop in which it was started."""

    def __init__(
        self,
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
        listeners: DirectoryListeners | None = None,
    ) -> None:
        """`identity_path`: the file of `identity`. `initial_peers`: addresses that end in /p2p/<peer id>. `cache_path`:
        a file to keep seen addresses in.

        Raises AddressError when an address cannot be parsed."""
        check_peers(initial_peers)
        check_announced(announce_maddrs)
        listeners = listeners or DirectoryListeners()
        self._identity, self._run_id, self._now = identity, run_id, now
        self._is_closed = listeners.is_closed
        self._host_maddrs = host_maddrs
        options = DhtNodeOptions(
            identity_path,
            identity.public_key,
            tuple(announce_maddrs),
            limits=limits or DhtNodeLimits(),
            standing=self._standing,
        )
        self.control = options.control
        """Counts the bytes sent to and received from other nodes of the DHT."""
        self._buckets = DirectoryBuckets(PeerId(identity.peer_id))
        self._looking = asyncio.Lock()
        self._own: PeerRecord | None = None
        self._sealed = b""
        self._lent = LentRecords()
        self._seen: dict[str, set[PeerId]] = {}
        """For each bucket: the live peers that the last look found in it."""
        self._ticket = frozenset(split(address)[1] for address in initial_peers) - {identity.peer_id}
        self._records = RecordStore(run_id, PeerId(identity.peer_id), listeners.on_bad_record, listeners.on_own_record)
        self._good_until = math.inf
        self._gate = RecordGate(now, run_id, lambda: [*listeners.proven(), *self._records.live(now())])
        self._lan: LanPeers | None = None
        self._operators: Callable[[], Iterable[PeerId]] = lambda: map(PeerId, self._ticket)
        self._supervisor = DhtNodeSupervisor(
            options,
            self._gate,
            initial_peers,
            AddressCache(cache_path, now()),
            now,
            self._publish,
            pace or SupervisorTimes(),
            listeners.watcher,
            lambda: self._records.live(now()),
        )

    async def start(self) -> Self:
        """Start p2pd and join the nodes that answer; it is no error if none does. Return this directory.

        Raises AddressError (an address is taken) or DirectoryFailed (p2pd cannot start)."""
        await self._supervisor.start(self._host_maddrs)
        return self

    def _standing(self) -> NodeStanding:
        return NodeStanding(self._is_closed(), seldom=self._own is not None and _is_seldom(self._own))

    async def announce(self, record: PeerRecord) -> None:
        """Sign and publish a record, which replaces the former one; returns within `STORE_S`.

        The directory publishes it again whenever it has rejoined the swarm. Raises InvalidRecord if other peers would
        not accept the record."""
        self._sealed = seal(record, self._identity)
        self._own = record
        if self._supervisor.node is not None:
            await self._publish(self._supervisor.node)

    async def withdraw(self) -> None:
        """Replace our record by an expired one with the status LEAVING, within `WITHDRAW_S`. A failure is ignored."""
        if self._own is None:
            return
        at = max(self._now(), self._own.issued_at + 1e-3)
        farewell = replace(self._own, status=Status.LEAVING, issued_at=at, expires_at=at)
        self._own, self._sealed = None, b""
        if self._supervisor.node is not None:
            await self._store(self._supervisor.node, farewell, WITHDRAW_S)

    def set_operators(self, operators: Callable[[], Iterable[PeerId]]) -> None:
        """Set the function that returns the operator's nodes, of which those are used whose records announce that they
        serve. Until this call, the nodes of the ticket are used."""
        self._operators = operators

    def _nodes(self) -> list[str]:
        """Return the operator's nodes, at most `MAX_ASKED`. As long as they answer, records are announced and looked
        for at these nodes. Without them, the peers near the run's key would hold the records of the whole swarm, and
        send many times as much as other peers."""
        live = self._records.live(self._now())
        named = (live[peer] for peer in self._operators() if peer in live)
        found = {str(record.peer_id) for record in named if record.status in NODES and _is_seldom(record)}
        return sorted(found)[:MAX_ASKED]

    def read_everybody(self) -> None:
        """Read the records of all peers of the run from now on, as groups need it."""
        self._buckets.read_everybody()

    async def peers(self) -> dict[PeerId, PeerRecord]:
        """Return the live records of this run except our own, ordered by peer id, within `LOOK_S`.

        In a large run they are those of the buckets that we read lately. If the look fails, they are the known records
        that have not expired. While p2pd is rebuilt, they are the records that had not expired when it died."""
        node = self._supervisor.node
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

    def own(self) -> Shown:
        """See `peer.ports.directory.SharedRecords`, also for the next five methods."""
        return self._sealed

    def known(self) -> dict[PeerId, PeerRecord]:
        return self._known(self._now())

    def shown(self, peer: PeerId) -> Shown | None:
        return self._records.shown(peer)

    def learn(self, found: Shown, of: PeerId | None = None) -> bool:
        return self._lent.learn(self._records, found, self._now(), of)

    def is_lent(self, peer: PeerId) -> bool:
        return peer in self._lent

    def looks_show_all(self) -> bool:
        return not self._buckets.depth

    async def _look(self, node: DhtNode) -> bool:
        """Read the buckets of this round. Return whether our own bucket has changed."""
        buckets, round_ = self._buckets, self._own.round if self._own is not None else 0
        found, _ = await asyncio.gather(self._read(node, buckets.reads(round_)), self._ask_linked(node))
        if more := buckets.more(round_, found):
            found |= await self._read(node, more)
        return buckets.saw(found, self._now())

    async def _read(self, node: DhtNode, wanted: Sequence[str]) -> dict[str, set[PeerId]]:
        """Return the live peers in each of these buckets, and add their records to the store.

        A bucket is searched in the DHT unless one of its holders answers and shows all peers that the last look found
        there."""
        there, live, nodes = dict[str, set[PeerId]](), self._records.live(self._now()).keys(), self._nodes()
        for bits in wanted:
            known = self._seen.get(bits, set()) & live
            if not known and not nodes:
                continue
            found_near = await node.find_near(bucket_key(self._run_id, bits), nodes)
            if found_near is not None and known <= (near := self._add_found(found_near)):
                there[bits] = near
        missed = [bits for bits in wanted if bits not in there]
        found = await node.find_in([bucket_key(self._run_id, bits) for bits in missed]) if missed else []
        there |= {bits: self._add_found(values) for bits, values in zip(missed, found, strict=True)}
        self._seen |= there
        return there

    def _add_found(self, found: Sequence[bytes]) -> set[PeerId]:
        """Add the records that a look found to the store. Return the peers among them that are live."""
        now = self._now()
        for raw in found:
            self._records.add(raw, now)
        live = (live_record(raw, self._run_id, now) for raw in found)
        there = {record.peer_id for record in live if record is not None}
        self._lent.found(there)
        return there

    async def _ask_linked(self, node: DhtNode) -> None:
        """While no node of the ticket has a live record, request the records that these nodes, and some other nodes
        that we dialled, hold.

        Each node holds its own record, so this finds it even if hostile nodes around the key hide it."""
        live = self._records.live(self._now())
        if self._buckets.depth or any(PeerId(peer) in live for peer in self._ticket):
            return
        others = [peer for peer in node.linked() if peer not in live and peer not in self._ticket]
        asked = [*sorted(self._ticket), *random.sample(others, min(ALSO_ASKED, len(others)))]
        for raw in await node.find_at(asked[:MAX_ASKED], bucket_key(self._run_id)):
            self._records.add(raw, self._now())

    def _known(self, now: float) -> dict[PeerId, PeerRecord]:
        lost_at = self._supervisor.lost_at
        if lost_at is None or now - lost_at > HOLD_S:
            return self._records.live(now)
        held = now + HELD_LIFE_S
        known = self._records.live(lost_at)
        return {peer: replace(record, expires_at=max(record.expires_at, held)) for peer, record in known.items()}

    def browse_lan(self, lan: LanPeers) -> None:
        """Look for peers in our own network, too, from now on. `close` closes `lan`."""
        assert self._lan is None
        self._lan = lan
        lan.start()

    def own_network(self) -> Mapping[PeerId, tuple[str, ...]]:
        return {} if self._lan is None else self._lan.near()

    def addresses(self) -> list[str]:
        """Return multiaddrs with /p2p/ under which other peers can join the DHT through us, best first."""
        return list(self._supervisor.addresses)

    def neighbours(self) -> int:
        """Return the number of nodes in the routing table; 0: this node is alone."""
        return len(self._supervisor.node.neighbours()) if self._supervisor.node is not None else 0

    def contact(self) -> DialReport:
        return self._supervisor.contact()

    @property
    def trouble(self) -> str:
        """Fault of the directory, as text for a person; empty if there is none."""
        return self._supervisor.health.trouble()

    def report(self) -> DirectoryStatus:
        """Return the state of the directory for `peer status`."""
        node, health = self._supervisor.node, self._supervisor.health
        return DirectoryStatus(
            state=health.state,
            why=health.trouble(),
            losses=health.losses,
            last_loss=health.cause,
            pid=self.helper_pid,
            memory=0 if node is None else node.resident_bytes(),
            neighbours=self.neighbours(),
            own_network="not looked at" if self._lan is None else self._lan.summary(self._records.live(self._now())),
        )

    @property
    def dropped(self) -> Counter[Code]:
        """Number of invalid records that were found in answers or refused by our node, by the code of InvalidRecord."""
        return self._records.dropped + self._gate.refused

    @property
    def helper_pid(self) -> int | None:
        """Process id of p2pd; None while it is dead."""
        return self._supervisor.node.pid if self._supervisor.node is not None else None

    async def close(self) -> None:
        """End p2pd and every task within a few seconds. Call `withdraw` first. Never raises."""
        if self._lan is not None:
            await self._lan.close()
        await self._supervisor.close()

    async def _publish(self, node: DhtNode) -> None:
        if self._own is not None:
            await self._store(node, self._own, STORE_S)

    async def _store(self, node: DhtNode, record: PeerRecord, timeout_s: float) -> None:
        raw = seal(record, self._identity)
        try:
            async with asyncio.timeout(timeout_s):
                keys = [bucket_key(self._run_id, bits) for bits in self._buckets.places(self._now())]
                node.hold({*keys, bucket_key(self._run_id)}, self._identity.public_key, raw, dht_expiry(record))
                await node.store_in(keys, self._identity.public_key, raw, dht_expiry(record), self._nodes())
        except LOST as error:
            log.info("could not publish our record: %r", error)


def _is_seldom(record: PeerRecord) -> bool:
    return record.expires_at - record.issued_at >= SELDOM_LIFE_S
