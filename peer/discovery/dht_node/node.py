"""One p2pd process and its DHT node, for the lifetime of that process.

Only this module, `entry_store.py` and `process.py` use hivemind, including private parts of it. They are written
against hivemind 1.1.12."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import time
import warnings
from collections.abc import Awaitable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from peer.aio.threads import LowPriorityThread
from peer.clock.monotonic import run_time
from peer.discovery.address_book import add_own_addresses
from peer.discovery.dht_node.answers import AnswerReader, reading_answers
from peer.discovery.dht_node.entry_store import EntryStore
from peer.discovery.dht_node.holders import Holders
from peer.discovery.dht_node.process import LOST, DhtNodeLimits, DhtNodeOptions, Process, failed, start_process, stop
from peer.discovery.dht_node.reaching import AskedFirst, reaching
from peer.discovery.dial_report import dial_failure_reason, tcp_failure_reason
from peer.discovery.multiaddr import split
from peer.discovery.validator import RecordGate
from peer.observe.process_stats import open_files, resident_bytes

with warnings.catch_warnings():  # hivemind decorates functions with torch.jit.script, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from hivemind.dht import DHTNode, node, protocol, routing
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase
    from hivemind.p2p import P2PHandlerError, PeerID
    from hivemind.proto import dht_pb2, p2pd_pb2
    from hivemind.utils import timed_storage
    from hivemind.utils.multiaddr import Multiaddr

for _module in (node, protocol, routing, timed_storage):
    _module.get_dht_time = run_time  # hivemind reads the wall clock: when it jumps, every record would expire at once
protocol.DHTProtocol.node_info = dht_pb2.NodeInfo()  # a node that comes back may be called before hivemind sets it

__all__ = ["LOST", "DhtNode", "DhtNodeLimits", "DhtNodeOptions", "DictionaryDHTValue"]

_EXCHANGE_S = 5.0
"""Timeout in seconds of a request to our own p2pd, over its control socket."""
_CALL_S = 2.0
"""Timeout in seconds of a request to another node of the DHT."""
_MAX_NOTED = 1024
T = TypeVar("T")


class _Validator(RecordValidatorBase):  # type: ignore[misc]
    """Adapts our gate to hivemind's interface for validators."""

    def __init__(self, gate: RecordGate) -> None:
        self._gate = gate

    def validate(self, record: DHTRecord) -> bool:
        return self._gate.admit(record.key, record.subkey, record.value, record.expiration_time)

    def prune(self, key: bytes, entries: DictionaryDHTValue) -> bool:
        """Remove the invalid entries of a dictionary. Replaces hivemind's check, which refuses a dictionary for one
        invalid entry: with a record that only some clocks accept, any peer could then hide all others."""
        with entries.freeze():
            packed = [(subkey, *entry) for subkey, entry in entries.items()]
            for subkey, value, expiry in packed:
                packed_subkey = b"\xc4" + bytes([len(subkey)]) + subkey if _is_short(subkey) else b""
                if not self.validate(DHTRecord(key, packed_subkey, value, expiry)):
                    del entries[subkey]
        return True


def _note(table: dict[str, T], of: str, word: T) -> None:
    """Set the entry of an address. Drops the oldest entry if the table is full, since the number of addresses has no
    limit."""
    table.pop(of, None)
    table[of] = word
    if len(table) > _MAX_NOTED:
        del table[next(iter(table))]


def _is_short(subkey: Any) -> bool:
    return isinstance(subkey, bytes) and len(subkey) < 256


class _NoCache(DHTLocalStorage):  # type: ignore[misc]
    """A cache that stores nothing.

    hivemind lets other nodes write into a node's cache and answers from it first, so one record in it could hide all
    others."""

    def store(self, *_: Any, **__: Any) -> bool:
        return False

    def store_subkey(self, *_: Any, **__: Any) -> bool:
        return False


class DhtNode:
    """A running p2pd with the DHT node on top. It belongs to the event loop in which it was started."""

    def __init__(self, process: Process, dht: DHTNode, thread: LowPriorityThread) -> None:
        """`thread`: verifies the answers of other nodes; closed with the node."""
        self._process = process
        self._thread = thread
        self._dht = dht
        self._searches: set[asyncio.Task[Any]] = set()
        self._holders: Holders[PeerID] = Holders(time.monotonic)
        self._first = AskedFirst(time.monotonic)
        self.pid: int = process._child.pid
        self.tried: dict[str, str] = {}
        """For each address that was dialled: why it did not answer the last time; empty: it did."""
        self.clock_offsets: dict[str, float] = {}
        """For each peer id: its clock minus ours at the last dial, in seconds."""

    @classmethod
    async def start(cls, options: DhtNodeOptions, listen: Sequence[str], gate: RecordGate | None) -> DhtNode:
        """Start p2pd without joining any node. `gate` None: store any entry, for tests of hostile nodes.

        Raises AddressError if the port is taken, DirectoryFailed if p2pd cannot be started; both within `startup_s` and
        a few seconds."""
        process, thread = await start_process(options, listen), LowPriorityThread()
        try:
            async with asyncio.timeout(options.startup_s):
                dht = await _start_dht(process, options, gate, thread)
        except LOST as error:
            await stop(process)
            raise failed(f"died right after its start ({error!r})") from error
        except BaseException:
            await stop(process)
            raise
        self = cls(process, dht, thread)
        dht.protocol.get_stub = reaching(dht.protocol.get_stub, process.book, self._dial)
        return self

    async def ended(self) -> str:
        """Wait until the process ends, and return how it ended, as text."""
        return await self._process.ended()

    async def answers(self, timeout_s: float) -> None:
        """Make a small request to the process. Raises one of LOST if it does not answer in time."""
        await self._process.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), timeout_s)

    def resident_bytes(self) -> int:
        """Return the bytes of main memory that the process holds."""
        return resident_bytes(self.pid)

    def neighbours(self) -> set[str]:
        """Return the peer ids in the routing table."""
        return {str(peer.to_base58()) for peer in self._dht.protocol.routing_table.peer_id_to_uid}

    async def link(self, address: str, timeout_s: float) -> bool:
        """Dial `address` and ping the node there, which adds each to the other's routing table. Return whether it
        answered."""
        plain, peer_id = split(address)
        peer = PeerID.from_base58(peer_id)
        # Try a TCP connection first: p2pd backs off longer and longer from an address that did not answer.
        if deaf := await tcp_failure_reason(plain, timeout_s):
            _note(self.tried, address, deaf)
            return False
        try:
            await self._connect(peer, [plain], timeout_s)
            self._process.book.add_reported(peer.to_bytes(), [plain])
            answered = await self._dht.protocol.call_ping(peer) is not None
        except TimeoutError:
            _note(self.tried, address, f"no answer within {timeout_s:.0f} s")
            return False
        except LOST as error:
            _note(
                self.tried, address, dial_failure_reason(str(error), plain) or self.tried.get(address, "no answer yet")
            )
            return False
        _note(self.tried, address, "" if answered else "connected, but it does not answer as a node of the directory")
        if answered:
            await self._compare_clocks(peer_id, peer)
        return answered

    async def trim(self) -> None:
        """Close the connections that are used least. Raises one of LOST if p2pd does not answer."""
        await self._process.trim()

    async def _connect(self, peer: PeerID, plain: Sequence[str], timeout_s: float) -> None:
        # Addresses go without their /p2p part, which hivemind's Multiaddr encodes in a way that p2pd cannot read.
        dial = p2pd_pb2.ConnectRequest(peer=peer.to_bytes(), addrs=[Multiaddr(one).to_bytes() for one in plain])
        await self._process.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=dial), timeout_s)

    async def _dial(self, peer: PeerID) -> None:
        """Connect to a node before it is called, if its address is known."""
        if plain := self._process.book.of(peer.to_bytes()):
            await self._connect(peer, plain, _CALL_S)

    def set_advertised(self, addresses: Sequence[str], *, closed: bool) -> None:
        """Set the addresses (with our peer id) that other nodes get from now on. `closed`: other nodes cannot call us,
        so they get none."""
        protocol = self._dht.protocol
        said = dht_pb2.NodeInfo() if closed else dht_pb2.NodeInfo(node_id=protocol.node_id.to_bytes())
        if not closed:
            add_own_addresses(said, [split(address)[0] for address in addresses])
        protocol.node_info.CopyFrom(said)

    async def _compare_clocks(self, peer_id: str, peer: PeerID) -> None:
        """Measure the clock offset to a node, ignoring failures. hivemind's own ping measures it too, but does not
        return it."""
        before = run_time()
        with contextlib.suppress(P2PHandlerError, *LOST):
            answer = await self._dht.protocol.get_stub(peer).rpc_ping(dht_pb2.PingRequest(), timeout=_CALL_S)
            _note(self.clock_offsets, peer_id, answer.dht_time - (before + run_time()) / 2)

    def open_files(self) -> int:
        """Return the number of files and sockets that the process holds open."""
        return open_files(self.pid)

    async def refresh(self) -> None:
        """Search for the nodes nearest to us. This finds new nodes, and drops dead ones from the routing table."""
        async with asyncio.timeout(4 * _EXCHANGE_S):
            await self._search(self._dht.find_nearest_nodes([self._dht.node_id]))

    async def addresses(self) -> list[str]:
        """Return the addresses that p2pd sees of itself, with our peer id. Raises OSError or EOFError if p2pd does not
        answer."""
        answer = await self._process.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), _EXCHANGE_S)
        return _full_addresses(answer.identify.id, [str(Multiaddr(raw)) for raw in answer.identify.addrs])

    async def seen_addresses(self) -> list[str]:
        """Return the addresses of the connected nodes in the routing table: those that they advertise, and the remote
        ends of the connections. Raises as `addresses` does."""
        connected = await self._process.connections(_EXCHANGE_S)
        nodes = {peer.to_bytes() for peer in self._dht.protocol.routing_table.peer_id_to_uid}
        told = self._process.book.of
        ends = {peer: dict.fromkeys([*told(peer)[:2], *seen]) for peer, seen in connected.items() if peer in nodes}
        return [text for peer, found in ends.items() for text in _full_addresses(peer, list(found))]

    async def store(self, key: bytes, subkey: bytes, value: bytes, expiry: float, others_only: bool = False) -> bool:
        """Put an entry into the DHT. Return whether a node stored it, which may be this one unless `others_only`."""
        ok: bool = await self._search(self._dht.store(key, value, expiry, subkey=subkey, exclude_self=others_only))
        return ok

    async def store_in(
        self, keys: Sequence[bytes], subkey: bytes, value: bytes, expiry: float, first: Sequence[str] = ()
    ) -> None:
        """Put an entry under each of several keys, at the nodes nearest to the key. `first`: peer ids of nodes that
        hold all entries; if one of them accepts the entry, no other node gets it."""
        packed = self._dht.protocol.serializer.dumps(value)
        await self._search(_all(*(self._store_near(key, subkey, packed, expiry, first) for key in keys)))

    async def _store_near(self, key: bytes, subkey: bytes, packed: bytes, expiry: float, first: Sequence[str]) -> None:
        """Put an entry at the `first` nodes, otherwise at the known holders of the key, otherwise at the nearest nodes
        that a search finds."""
        dht, slot = self._dht, DHTID.generate(key)

        async def store_at(peer: PeerID) -> bool:
            answer = await dht.protocol.call_store(peer, [slot], [packed], [expiry], subkeys=[subkey])
            if answer is None:
                self._first.failed(peer.to_base58())
            return bool(any(answer or ()))

        if nodes := [PeerID.from_base58(node) for node in self._first.of(first)]:
            await self._process.keep_connected([peer.to_bytes() for peer in nodes])
            if any(await _all(*map(store_at, nodes))):
                return
        if holders := self._holders.of(key, self._nearest(slot)):
            if all(await _all(*map(store_at, holders))):
                return
            self._holders.lost(key)
        found = await dht.find_nearest_nodes([slot], k_nearest=dht.protocol.bucket_size, exclude_self=True)
        met, took = list(found[slot].values()), list[PeerID]()
        nearest = met
        while nearest and (wanted := dht.num_replicas - len(took)) > 0:
            asked, nearest = nearest[:wanted], nearest[wanted:]
            took += [peer for peer, taken in zip(asked, await _all(*map(store_at, asked)), strict=True) if taken]
        self._holders.searched(key, took, met)

    def _nearest(self, slot: DHTID) -> list[PeerID]:
        """Return the known nodes nearest to a key, as many as store an entry."""
        dht = self._dht
        known = dht.protocol.routing_table.get_nearest_neighbors(slot, dht.num_replicas, exclude=dht.node_id)
        return [peer for _, peer in known]

    async def find_near(self, key: bytes, first: Sequence[str] = ()) -> list[bytes] | None:
        """Return the values of all entries under a key that this node and one other node hold. The other node is one of
        `first` (peer ids of nodes that hold all entries), or else a holder of the key. None: none of them answers; use
        `find_in`, which searches."""
        slot, protocol = DHTID.generate(key), self._dht.protocol
        nodes = self._first.of(random.sample(first, len(first)))
        for node in nodes:
            if answer := await self._search(protocol.call_find(PeerID.from_base58(node), [slot])):
                return [*self._own_values(slot), *self._values_in(answer[slot][0])]
            self._first.failed(node)
        if not (holders := self._holders.of(key, self._nearest(slot))):
            return None
        answer = await self._search(protocol.call_find(random.choice(holders), [slot]))
        if not answer:
            self._holders.lost(key)
            return None
        return [*self._own_values(slot), *self._values_in(answer[slot][0])]

    def _own_values(self, slot: DHTID) -> list[bytes]:
        """Return the values under a key in this node's own store."""
        return self._values_in(self._dht.protocol.storage.get(slot))

    def _values_in(self, found: Any) -> list[bytes]:
        """Return the values of a dictionary as a single node returns it. Unlike the result of hivemind's search, it is
        still packed."""
        if found is None or not isinstance(found.value, DictionaryDHTValue):
            return []
        return [self._dht.protocol.serializer.loads(entry.value) for _, entry in found.value.items()]

    def hold(self, keys: Collection[bytes], subkey: bytes, value: bytes, expiry: float) -> None:
        """Put an entry into this node's own store, even if the DHT would place it elsewhere."""
        protocol = self._dht.protocol
        for key in keys:
            protocol.storage.store(DHTID.generate(key), protocol.serializer.dumps(value), expiry, subkey=subkey)

    def linked(self) -> list[str]:
        """Return the peer ids of the addresses that answered when they were last dialled."""
        return [split(address)[1] for address, deaf in self.tried.items() if not deaf]

    async def find_at(self, peers: Sequence[str], key: bytes) -> list[bytes]:
        """Return the values of all entries that these nodes hold under `key`, asked directly. Nodes that do not answer
        are skipped."""
        slot, protocol = DHTID.generate(key), self._dht.protocol
        asked = (protocol.call_find(PeerID.from_base58(peer), [slot]) for peer in peers)
        answers = await self._search(_all(*asked))
        return [value for answer in answers if answer for value in self._values_in(answer[slot][0])]

    async def find(self, key: bytes) -> list[bytes]:
        """Return the values of all entries under `key` that a search finds, including this node's own."""
        return (await self.find_in([key]))[0]

    async def find_in(self, keys: Sequence[bytes]) -> list[list[bytes]]:
        """As `find`, for several keys, in their order."""
        # NaN: nothing is recent enough to end the search early. hivemind's `latest` asks for an expiry of infinity, and
        # a hostile node that claims to hold such an entry would be the only one asked.
        found = await self._search(self._dht.get_many(list(keys), sufficient_expiration_time=math.nan))
        return [_values(found[key]) for key in keys]

    async def close(self, at_once: bool = False) -> None:
        """End the process and the node, and wait for everything they started, within a few seconds. Never raises.
        `at_once`: kill a process that hangs without waiting for it."""
        if self._process._child.returncode is None and not at_once:
            with contextlib.suppress(*LOST):
                async with asyncio.timeout(1.0):
                    await self._dht.shutdown()
        self._process.fail_calls()
        if self._searches:
            await asyncio.wait(self._searches, timeout=2.0)
        self._thread.close()  # only now, because the searches above still use it
        await stop(self._process, at_once)

    async def _search(self, search: Coroutine[Any, Any, Any]) -> Any:
        """Await a search, and let it continue if we are cancelled: a cancelled search of hivemind would leave unawaited
        tasks behind. It ends by itself, since each of its calls has a deadline, and `close` waits for it."""
        task = asyncio.create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._searches.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as retrieved: the caller has it, or was cancelled


async def _all(*calls: Awaitable[T]) -> list[T]:
    return await asyncio.gather(*calls)


def _values(found: Any) -> list[bytes]:
    if found is None or not isinstance(found.value, dict):
        return []
    return [entry.value for entry in found.value.values() if isinstance(entry.value, bytes)]


def _full_addresses(peer_id: bytes, plain: Sequence[str]) -> list[str]:
    tail = f"/p2p/{PeerID(peer_id).to_base58()}"
    return [f"{address}{tail}" for address in plain]


async def _start_dht(
    process: Process, options: DhtNodeOptions, gate: RecordGate | None, thread: LowPriorityThread
) -> DHTNode:
    validator = _Validator(gate) if gate is not None else None
    dht = await DHTNode.create(
        p2p=process,
        node_id=DHTID.generate(options.public_key),
        wait_timeout=_CALL_S,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        reuse_get_requests=False,  # hivemind would remember every requested key for ever
        record_validator=validator,
    )
    if gate is not None and validator is not None:
        dht.protocol._validate_dictionary = validator.prune
        loads, dumps = dht.protocol.serializer.loads, dht.protocol.serializer.dumps
        reader = AnswerReader(loads, dumps, gate.first, thread)
        dht.protocol.get_stub = reading_answers(dht.protocol.get_stub, reader, dht_pb2.FOUND_DICTIONARY)
        dht.protocol.storage = EntryStore(gate)
        dht.protocol.cache = _NoCache()
    return dht
