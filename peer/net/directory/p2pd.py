"""One p2pd process and its DHT node, for as long as that process lives. The only module that knows hivemind, its
private parts included; written against hivemind 1.1.12.

hivemind imports grpc, which reads GRPC_ENABLE_FORK_SUPPORT once, at its import: without the "0" it meddles with every
process we start. We set it here, which is too late if grpc was imported before; so the command line sets it first too.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.resources
import logging
import math
import os
import sys
import warnings
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from peer.errors import DirectoryFailed
from peer.identity import peer_id_of
from peer.net.directory.address import address_taken, split
from peer.net.directory.validator import RecordGate

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("HIVEMIND_LOGLEVEL", "WARNING")
with warnings.catch_warnings():  # hivemind decorates functions with torch.jit.script, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from hivemind.dht import DHTNode
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.validation import DHTRecord, RecordValidatorBase
    from hivemind.p2p import P2P, PeerID, p2p_daemon
    from hivemind.p2p.p2p_daemon_bindings.control import P2PDaemonError
    from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
    from hivemind.proto import p2pd_pb2
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import Multiaddr

logging.addLevelName(logging.WARNING, "WARNING")  # hivemind renames the level for everybody
use_hivemind_log_handler("nowhere")  # it prints to our terminal otherwise; now it propagates to our handlers
logging.getLogger("hivemind").setLevel(logging.WARNING)

BINARY: Path | None = None
"""Another p2pd than the one hivemind ships; for tests."""

_EXCHANGE_S = 5.0
"""A question to our own p2pd, over its control socket."""
_CALL_S = 2.0
"""A question to another node of the DHT."""
_OWN_SESSION = "import os, sys; os.setsid(); os.execv(sys.argv[1], sys.argv[1:])"
LOST = (OSError, TimeoutError, EOFError, P2PDaemonError)
"""What talking to a p2pd ends in when it, or the peer behind it, does not answer."""


@contextlib.contextmanager
def _binary_path(package: Any, name: str) -> Iterator[Path]:
    with importlib.resources.as_file(importlib.resources.files(package) / name) as found:
        yield BINARY or found


# hivemind finds its binary by importlib.resources.path, which warns of its deprecation at every start.
p2p_daemon.path = _binary_path


class _Process(P2P):  # type: ignore[misc]  # hivemind has no types
    """hivemind's handle on the process, with two changes: Ctrl+C in our terminal does not reach p2pd (it would die of
    it while we still take our leave), and a dead process fails its calls at once instead of by timeout."""

    def __init__(self) -> None:
        super().__init__()
        self.gone = False

    @staticmethod
    def _make_process_args(*args: Any, **options: Any) -> list[str]:
        command: list[str] = P2P._make_process_args(*args, **options)
        return [sys.executable, "-E", "-S", "-c", _OWN_SESSION, *command]

    async def _call_unary_protobuf_handler(self, *args: Any) -> Any:
        if self.gone:
            raise ConnectionResetError("p2pd is gone")
        return await super()._call_unary_protobuf_handler(*args)

    def fail_calls(self) -> None:
        self.gone = True
        if self._client is None:
            return
        for call in self._client.control._pending_calls.values():
            if not call.done():
                call.set_exception(ConnectionResetError("p2pd is gone"))

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Everything that runs on behalf of this process, for hivemind cancels it but never waits for it."""
        own = [self._listen_task, self._reader_task]
        if self._client is not None:
            control = self._client.control
            own += [control._read_task, control._write_task, *control._handler_tasks.values()]
        return [task for task in own if task is not None]


class _Validator(RecordValidatorBase):  # type: ignore[misc]
    """Puts our gate where hivemind asks."""

    def __init__(self, gate: RecordGate) -> None:
        self._gate = gate

    def validate(self, record: DHTRecord) -> bool:
        return self._gate.admit(record.key, record.subkey, record.value, record.expiration_time)

    def prune(self, key: bytes, entries: DictionaryDHTValue) -> bool:
        """Replaces the protocol's check of a whole dictionary. hivemind refuses all of it for one bad entry: anybody
        could hide everybody by storing a record that some clocks still take and others do not."""
        with entries.freeze():
            packed = [(subkey, *entry) for subkey, entry in entries.items()]
            for subkey, value, expiry in packed:
                packed_subkey = b"\xc4" + bytes([len(subkey)]) + subkey if _is_short(subkey) else b""
                if not self.validate(DHTRecord(key, packed_subkey, value, expiry)):
                    del entries[subkey]
        return True


def _is_short(subkey: Any) -> bool:
    return isinstance(subkey, bytes) and len(subkey) < 256


class _NoCache(DHTLocalStorage):  # type: ignore[misc]
    """hivemind lets others write into a node's cache and answers from there first: one record in it would hide all."""

    def store(self, *_: Any, **__: Any) -> bool:
        return False

    def store_subkey(self, *_: Any, **__: Any) -> bool:
        return False


@dataclasses.dataclass(frozen=True, slots=True)
class NodeOptions:
    """What a node is started with; the same again after a crash."""

    identity_path: Path
    public_key: bytes
    """Its hash is our place in the DHT, so that a restart leaves no ghost of the former node."""
    announce_maddrs: tuple[str, ...] = ()
    """What to tell others instead of the addresses p2pd sees itself under. Empty: those."""
    startup_s: float = 30.0


class Node:
    """A running p2pd and the DHT node on top. Belongs to the loop it was started in."""

    def __init__(self, process: _Process, dht: DHTNode) -> None:
        self._process = process
        self._dht = dht
        self._searches: set[asyncio.Task[Any]] = set()
        self.pid: int = process._child.pid

    @classmethod
    async def start(cls, options: NodeOptions, listen: Sequence[str], gate: RecordGate | None) -> Node:
        """Start p2pd and join nobody yet. `gate` None: store whatever comes (tests of hostile nodes).

        Raises AddressError when the port is taken, DirectoryFailed when p2pd cannot be started, both within
        `startup_s` and a few seconds."""
        process = await _start_process(options, listen)
        try:
            async with asyncio.timeout(options.startup_s):
                dht = await _start_dht(process, options, gate)
        except LOST as error:
            await _stop(process)
            raise _failed(f"died right after its start ({error!r})") from error
        except BaseException:
            await _stop(process)
            raise
        return cls(process, dht)

    async def died(self) -> int:
        """Wait for the process to end, by whatever cause; its exit code, -N for signal N. (P2P.is_alive stays True.)"""
        code: int = await self._process._child.wait()
        return code

    def neighbours(self) -> set[str]:
        """Peer ids in the routing table."""
        return {str(peer.to_base58()) for peer in self._dht.protocol.routing_table.peer_id_to_uid}

    async def link(self, address: str, timeout_s: float) -> bool:
        """Dial `address` and ping the node there: puts each into the other's routing table. Whether it answered."""
        plain, peer_id = split(address)
        peer = PeerID.from_base58(peer_id)
        # Without its /p2p part: hivemind's Multiaddr encodes that one in a way p2pd cannot read.
        dial = p2pd_pb2.ConnectRequest(peer=peer.to_bytes(), addrs=[Multiaddr(plain).to_bytes()])
        try:
            await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=dial), timeout_s)
            return await self._dht.protocol.call_ping(peer) is not None
        except LOST:
            return False

    async def refresh(self) -> None:
        """Look for the nodes nearest to us: finds new ones, drops dead ones from the routing table."""
        async with asyncio.timeout(4 * _EXCHANGE_S):
            await self._search(self._dht.find_nearest_nodes([self._dht.node_id]))

    async def addresses(self) -> list[str]:
        """Where we can be seen, our peer id at the end. Raises OSError or EOFError when p2pd does not answer."""
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY), _EXCHANGE_S)
        return _full_addresses(answer.identify.id, answer.identify.addrs)

    async def seen_addresses(self) -> list[str]:
        """The remote ends of our connections to nodes in the routing table. Raises as `addresses` does."""
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), _EXCHANGE_S)
        nodes = {peer.to_bytes() for peer in self._dht.protocol.routing_table.peer_id_to_uid}
        return [text for peer in answer.peers if peer.id in nodes for text in _full_addresses(peer.id, peer.addrs)]

    async def store(self, key: bytes, subkey: bytes, value: bytes, expiry: float, others_only: bool = False) -> bool:
        """Put an entry into the DHT. True means little: stored somewhere, maybe here only, unless `others_only`."""
        ok: bool = await self._search(self._dht.store(key, value, expiry, subkey=subkey, exclude_self=others_only))
        return ok

    async def find(self, key: bytes) -> list[bytes]:
        """The values of all entries under `key` that can be found, this node's own included."""
        # NaN: nothing is recent enough to end the search early. hivemind's `latest` asks for an expiry of infinity, and
        # a hostile node that claims to have just that would be the only one asked.
        found = (await self._search(self._dht.get_many([key], sufficient_expiration_time=math.nan)))[key]
        if found is None or not isinstance(found.value, dict):
            return []
        return [entry.value for entry in found.value.values() if isinstance(entry.value, bytes)]

    async def close(self) -> None:
        """End process and node and wait for all they left behind; within a few seconds. Never raises."""
        if self._process._child.returncode is None:
            with contextlib.suppress(*LOST):
                async with asyncio.timeout(1.0):
                    await self._dht.shutdown()
        self._process.fail_calls()
        if self._searches:
            await asyncio.wait(self._searches, timeout=2.0)
        await _stop(self._process)

    async def _search(self, search: Coroutine[Any, Any, Any]) -> Any:
        """Await a search without handing our cancellation on: a cancelled search of hivemind leaves tasks behind that
        nobody owns. It ends by itself, for each of its calls has a deadline; `close` waits for it."""
        task = asyncio.create_task(search)
        self._searches.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._searches.discard(task)
        if not task.cancelled():
            task.exception()  # its caller has it, or has stopped waiting

    async def _ask(self, request: Any, timeout_s: float) -> Any:
        """One question over p2pd's control socket. hivemind's own version has no deadline and leaks the socket."""
        async with asyncio.timeout(timeout_s):
            reader, writer = await self._process._client.control.daemon_connector.open_connection()
            try:
                await write_pbmsg(writer, request)
                answer = p2pd_pb2.Response()
                await read_pbmsg_safe(reader, answer)
            finally:
                writer.close()
        if answer.type == p2pd_pb2.Response.ERROR:
            raise ConnectionError(answer.error.msg)
        return answer


def _full_addresses(peer_id: bytes, maddrs: Sequence[bytes]) -> list[str]:
    tail = f"/p2p/{PeerID(peer_id).to_base58()}"
    return [f"{Multiaddr(raw)}{tail}" for raw in maddrs]


async def _start_process(options: NodeOptions, listen: Sequence[str]) -> _Process:
    made: list[_Process] = []
    try:
        process = await _create_process(options, listen, made)
    except P2PDaemonError as error:
        said = str(error)
        if "address already in use" in said:
            raise address_taken(", ".join(listen)) from error
        raise _failed(said) from error
    except (OSError, EOFError) as error:
        raise _failed(f"died right after its start ({error!r})") from error
    finally:
        if made and made[0].peer_id is None:  # the last thing that `create` sets
            await _stop(made[0])
    assert process.peer_id.to_base58() == peer_id_of(options.public_key), "the key file holds another identity"
    return process


async def _create_process(options: NodeOptions, listen: Sequence[str], made: list[_Process]) -> _Process:
    class Process(_Process):
        """`create` hands out its object only when all went well; this way we can clean up when it did not."""

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    process: _Process = await Process.create(
        host_maddrs=list(listen),
        announce_maddrs=list(options.announce_maddrs) or None,
        identity_path=str(options.identity_path),
        check_if_identity_free=False,  # it reads RSA keys only
        nat_port_map=False,
        use_relay=False,
        startup_timeout=options.startup_s,
    )
    return process


def _failed(said: str) -> DirectoryFailed:
    if "failed to start in" in said:
        found = "the DHT helper (p2pd) did not get ready in time"
        return DirectoryFailed(f"{found}: {said}", "The machine may be overloaded. Try again.")
    if "FileNotFoundError" in said or "not found" in said:
        found = "the DHT helper (p2pd) is missing from the installation of hivemind"
        return DirectoryFailed(found, "Reinstall the package hivemind; some virus scanners remove its p2pd.")
    if said.endswith("Daemon failed to start: None"):
        found = "the DHT helper (p2pd) ended without a word; it was killed, or may not run here"
        return DirectoryFailed(
            found, "Look for it in the log of your virus scanner, or free some memory, then try again."
        )
    return DirectoryFailed(
        f"the DHT helper (p2pd) cannot be started: {said}", "Try again; if it stays, reinstall hivemind."
    )


async def _start_dht(process: _Process, options: NodeOptions, gate: RecordGate | None) -> DHTNode:
    validator = _Validator(gate) if gate is not None else None
    dht = await DHTNode.create(
        p2p=process,
        node_id=DHTID.generate(options.public_key),
        wait_timeout=_CALL_S,
        cache_locally=False,
        cache_nearest=0,
        cache_on_store=False,
        reuse_get_requests=False,  # it never forgets a key it was asked for
        record_validator=validator,
    )
    if validator is not None:
        dht.protocol._validate_dictionary = validator.prune
        dht.protocol.cache = _NoCache()
    return dht


async def _stop(process: _Process) -> None:
    process.fail_calls()
    tasks = process.tasks()
    if process._child is not None and process._child.stdout.at_eof():  # it is ending by itself: a signal would only
        with contextlib.suppress(TimeoutError):  # make Popen take the exit code that asyncio waits for
            async with asyncio.timeout(1.0):
                await process._child.wait()
    process._terminate()
    if process._child is not None:
        try:
            async with asyncio.timeout(2.0):
                await process._child.wait()
        except TimeoutError:
            process._child.kill()
            await process._child.wait()
    for task in tasks:
        task.cancel()
    # Also takes their exceptions: writing to a dead p2pd ends in ConnectionResetError, which is what we are here for.
    await asyncio.gather(*tasks, return_exceptions=True)
    for maddr in (process._daemon_listen_maddr, process._client_listen_maddr):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(maddr["unix"])  # noqa: PTH108  (a socket in /tmp: no disk is waited for)
