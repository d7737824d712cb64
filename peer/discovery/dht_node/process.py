"""The p2pd process: started with resource limits, its output read, and ended together with all its tasks and sockets.

Only this module, `node.py` and `entry_store.py` use hivemind, including private parts of it. They are written against
hivemind 1.1.12.

hivemind imports grpc, which reads GRPC_ENABLE_FORK_SUPPORT once, when it is imported. Unless that is "0", grpc runs its
fork handlers for every process that we start. This module sets it, which is too late if grpc is loaded already, so the
command line sets it first, too."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import importlib.resources
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from peer.discovery.address_book import AddressBook, AddressSharing
from peer.discovery.dht_node.entry_store import CallerBlocks, Handler, noting_callers
from peer.discovery.dht_node.exit_report import Tail, in_words, oom_kills
from peer.discovery.dht_node.hivemind_imports import without_the_rest
from peer.discovery.dht_node.launch import launched
from peer.discovery.dht_node.question_gate import STORE, QuestionGate, bounded
from peer.discovery.multiaddr import address_taken
from peer.errors import DirectoryFailed, for_shell
from peer.identity import peer_id_of
from peer.installation import install_command
from peer.observe.control_bytes import ControlMeter, Purpose

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("HIVEMIND_LOGLEVEL", "WARNING")
without_the_rest()
with warnings.catch_warnings():  # hivemind decorates functions with torch.jit.script, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
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
"""Path of a p2pd to run instead of hivemind's, for tests."""

_LIST_S = 2.0
"""Timeout in seconds of the request for p2pd's connections."""
_KEPT = 100
"""Weight of a connection to keep. Other connections have weight 0."""
LOST = (OSError, TimeoutError, EOFError, P2PDaemonError)
"""Errors of a request to a p2pd if it, or the peer behind it, does not answer."""


@contextlib.contextmanager
def _binary_path(package: Any, name: str) -> Iterator[Path]:
    with importlib.resources.as_file(importlib.resources.files(package) / name) as found:
        yield BINARY or found


# hivemind finds its binary by importlib.resources.path, which warns of its deprecation at every start.
p2p_daemon.path = _binary_path


@dataclasses.dataclass(frozen=True, slots=True)
class DhtNodeLimits:
    """Resource limits of a p2pd."""

    memory: int = 384 * 2**20
    """Bytes of main memory. A p2pd that uses more is replaced."""
    heap: int = 192 * 2**20
    """Bytes of heap that its garbage collector tries to stay below, however much processor time that takes."""
    connections: int = 256
    """Most connections. Above this, the least used ones are closed until `kept` are left."""
    kept: int = 4
    """Connections that are left when the least used ones are closed. An idle connection costs far more in a day than
    dialling again whenever a node is called."""
    grace: float = 30.0
    """Seconds for which a new connection is not closed."""
    files: int = 8192
    """Open files, sockets included. The system may grant fewer."""
    data: int = 768 * 2**20
    """Bytes of writable memory that the system grants. A p2pd that requests more dies, and is replaced."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeStanding:
    """How a node behaves towards others at the moment."""

    closed: bool = False
    """Other nodes cannot call it, so it does not advertise itself."""
    seldom: bool = False
    """It rarely calls other nodes, so connections beyond `DhtNodeLimits.kept` are closed."""


@dataclasses.dataclass(frozen=True, slots=True)
class DhtNodeOptions:
    """Options with which a node is started, and restarted after a crash."""

    identity_path: Path
    public_key: bytes
    """Public key, whose hash is our position in the DHT. A restart therefore leaves no second entry of the former
    node."""
    announce_maddrs: tuple[str, ...] = ()
    """Addresses to advertise to other peers; empty: those that p2pd sees."""
    startup_s: float = 30.0
    limits: DhtNodeLimits = DhtNodeLimits()
    control: ControlMeter = dataclasses.field(default_factory=ControlMeter)
    """Counts the bytes sent to and received from other nodes."""
    book: AddressBook = dataclasses.field(default_factory=AddressBook)
    """Addresses of other nodes."""
    standing: Callable[[], NodeStanding] = lambda: NodeStanding()
    """Called every few seconds."""


class Process(P2P):  # type: ignore[misc]  # hivemind has no types
    """hivemind's handle on the process, with eight changes.

    - Ctrl+C in our terminal does not reach p2pd, which would end before our farewell is sent.
    - Its resources are limited, and it gets nothing that it does not need.
    - Its output is kept.
    - The store of the DHT learns which peer asks it to store.
    - Requests of others are limited in size, number and processor time.
    - It has no Kademlia of its own, which would keep a connection to every node. The nodes send each other addresses
    instead.
    - The bytes exchanged with other nodes are counted.
    - Once it is dead, calls to it fail at once instead of after a timeout."""

    limits = DhtNodeLimits()
    control = ControlMeter()
    book = AddressBook()

    def __init__(self) -> None:
        super().__init__()
        self.gone = False
        self.tail = Tail()
        self._oom_kills = oom_kills()
        self._callers = CallerBlocks(self._connections, time.monotonic)
        self.gate = QuestionGate(self._callers, time.monotonic)

    def _make_process_args(self, *args: Any, **options: Any) -> list[str]:
        limits = self.limits
        bounds = {"connLo": limits.kept, "connHi": limits.connections, "connGrace": f"{limits.grace}s"}
        kept = {name: value for name, value in options.items() if not name.startswith("dht")}
        command: list[str] = P2P._make_process_args(*args, **kept, **bounds)
        return launched(command, files=limits.files, heap=limits.heap, data=limits.data)

    async def _read_outputs(self, ready: asyncio.Future[None]) -> None:
        """Read the output of p2pd.

        hivemind's own reader gives up at a line of 64 KiB, and a p2pd whose output is not read blocks. It also logs
        each line, of which a p2pd that has run out of file descriptors writes an endless number."""
        while chunk := await self._child.stdout.read(16384):
            for line in self.tail.feed(chunk):
                if line.startswith("Peer ID:") and not ready.done():
                    ready.set_result(None)
        if not ready.done():
            ready.set_exception(P2PDaemonError(f"Daemon failed to start: {self.tail.last()}"))

    async def _call_unary_protobuf_handler(self, *args: Any) -> Any:
        if self.gone:
            raise ConnectionResetError("p2pd is gone")
        _, _, asked, _ = args
        self.control.count(Purpose.DIRECTORY, sent=asked.ByteSize())
        answer = await super()._call_unary_protobuf_handler(*args)
        self.control.count(Purpose.DIRECTORY, received=answer.ByteSize())
        return answer

    async def add_protobuf_handler(self, name: str, handler: Any, *args: Any, **options: Any) -> None:
        if name.endswith(STORE):
            handler = noting_callers(handler, self._callers)
        handler = counting(AddressSharing(self.book).wrap(self.gate.wrap(name, handler)), self.control)
        await super().add_protobuf_handler(name, handler, *args, **options)
        unary = self._client.control.unary_handlers
        unary[name] = bounded(name, unary[name], self.gate)

    async def ask(self, request: p2pd_pb2.Request, timeout_s: float) -> p2pd_pb2.Response:
        """Make one request over p2pd's control socket. hivemind's own version has no deadline and leaks the socket."""
        async with asyncio.timeout(timeout_s):
            reader, writer = await self._client.control.daemon_connector.open_connection()
            try:
                await write_pbmsg(writer, request)
                answer = p2pd_pb2.Response()
                await read_pbmsg_safe(reader, answer)
            finally:
                writer.close()
        if answer.type == p2pd_pb2.Response.ERROR:
            raise ConnectionError(answer.error.msg)
        return answer

    async def connections(self, timeout_s: float) -> dict[bytes, list[str]]:
        """Return the remote addresses of each connected node, by peer id. Raises one of LOST."""
        answer = await self.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), timeout_s)
        return {peer.id: [str(Multiaddr(raw)) for raw in peer.addrs] for peer in answer.peers}

    async def keep_connected(self, peers: Sequence[bytes]) -> None:
        """Protect the connections to these peers (by peer id): when p2pd has too many connections, it closes all others
        first."""
        for peer in peers:
            tag = p2pd_pb2.ConnManagerRequest(
                type=p2pd_pb2.ConnManagerRequest.TAG_PEER, peer=peer, tag="kept", weight=_KEPT
            )
            with contextlib.suppress(*LOST):
                await self.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNMANAGER, connManager=tag), _LIST_S)

    async def trim(self) -> None:
        """Have p2pd close connections now until `DhtNodeLimits.kept` are left; new ones are kept."""
        trim = p2pd_pb2.ConnManagerRequest(type=p2pd_pb2.ConnManagerRequest.TRIM)
        await self.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNMANAGER, connManager=trim), _LIST_S)

    async def _connections(self) -> dict[str, list[str]]:
        found = await self.connections(_LIST_S)
        return {PeerID(peer).to_base58(): addresses for peer, addresses in found.items()}

    def fail_calls(self) -> None:
        self.gone = True
        if self._client is None:
            return
        for call in self._client.control._pending_calls.values():
            if not call.done():
                call.set_exception(ConnectionResetError("p2pd is gone"))

    def tasks(self) -> list[asyncio.Task[Any]]:
        """Return all tasks of this process, to await them: hivemind only cancels them."""
        own = [self._listen_task, self._reader_task]
        if self._client is not None:
            control = self._client.control
            own += [control._read_task, control._write_task, *control._handler_tasks.values()]
        return [task for task in own if task is not None]

    async def ended(self) -> str:
        """Wait until the process ends, and return how it ended, as text. (P2P.is_alive stays True.)"""
        code: int = await self._child.wait()
        await asyncio.wait({self._reader_task}, timeout=0.5)  # its last lines are still in the pipe
        return in_words(code, self.tail.words(), oom_kills() > self._oom_kills)


async def start_process(options: DhtNodeOptions, listen: Sequence[str]) -> Process:
    """Start p2pd. Raises AddressError if the port is taken, DirectoryFailed if p2pd cannot be started."""
    made: list[Process] = []
    if not os.access(SOCKETS, os.W_OK | os.X_OK):  # hivemind would raise another error while it cleans up
        raise failed("no folder for its sockets")
    try:
        process = await _create(options, listen, made)
    except P2PDaemonError as error:
        message = str(error)
        if "address already in use" in message:
            raise address_taken(", ".join(listen)) from error
        raise failed(message) from error
    except (OSError, EOFError) as error:
        raise failed(f"died right after its start ({error!r})") from error
    finally:
        if made and made[0].peer_id is None:  # the last thing that `create` sets
            await stop(made[0])
    assert process.peer_id.to_base58() == peer_id_of(options.public_key), "the key file holds another identity"
    return process


async def _create(options: DhtNodeOptions, listen: Sequence[str], made: list[Process]) -> Process:
    class Bounded(Process):
        """A `Process` that is registered in `made` even if `create` fails, so that it can be stopped."""

        limits = options.limits
        control = options.control
        book = options.book

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    process: Process = await Bounded.create(
        host_maddrs=list(listen),
        announce_maddrs=list(options.announce_maddrs) or None,
        identity_path=str(options.identity_path),
        check_if_identity_free=False,  # it reads RSA keys only
        auto_nat=False,  # nodes would dial each other for ever; `peer` tests reachability itself
        nat_port_map=False,
        use_relay=False,
        startup_timeout=options.startup_s,
    )
    return process


def counting(handler: Handler, control: ControlMeter) -> Handler:
    """Wrap hivemind's request handler so that the bytes of request and answer are counted."""

    async def wrapped(request: Any, context: Any) -> Any:
        answer = await handler(request, context)
        control.count(Purpose.DIRECTORY, sent=answer.ByteSize(), received=request.ByteSize())
        return answer

    return wrapped


SOCKETS = Path("/tmp")  # noqa: S108 - hivemind's own choice
"""Folder of the sockets between hivemind and p2pd."""


def failed(message: str) -> DirectoryFailed:
    """Return the error for a message of p2pd, or of hivemind about it, with the fix for its cause. Reinstalling
    hivemind is advised only if p2pd is missing or damaged."""
    if "failed to start in" in message:
        found = "the DHT helper (p2pd) did not get ready in time"
        return DirectoryFailed(f"{found}: {message}", "The machine may be overloaded. Try again.")
    binary = BINARY or Path(str(importlib.resources.files("hivemind.hivemind_cli") / "p2pd"))
    reinstall = f"Run: {install_command(['hivemind'], again=True, alone=True)}"
    if not Path(sys.executable).exists():
        found = f"the Python that runs this program is gone: there is no {sys.executable}"
        return DirectoryFailed(found, "Install this program again, and start it anew: peer help install")
    if not os.access(SOCKETS, os.W_OK | os.X_OK):
        found = f"the DHT helper (p2pd) makes its sockets in {SOCKETS}, which this user cannot write to"
        return DirectoryFailed(found, f"Make {SOCKETS} writable. In a container: docker run --tmpfs {SOCKETS}")
    if not binary.exists():
        found = f"the DHT helper (p2pd) is missing from the installation of hivemind: there is no {binary}"
        return DirectoryFailed(found, f"{reinstall}   (some virus scanners remove its p2pd)")
    if "Exec format error" in message:
        found = f"the DHT helper {binary} is damaged, or made for another processor than {platform.machine()}"
        return DirectoryFailed(found, reinstall)
    if "PermissionError" in message:
        found = f"the DHT helper {binary} may not be run: permission denied"
        if binary.stat().st_mode & 0o111:
            return DirectoryFailed(found, "Install this program on a disk that is not mounted with noexec.")
        return DirectoryFailed(found, f"Run: chmod +x {for_shell(binary)}")
    if message.endswith("Daemon failed to start: None"):
        found = "the DHT helper (p2pd) ended without a word; it was killed, or may not run here"
        return DirectoryFailed(
            found, "Look for it in the log of your virus scanner, or free some memory, then try again."
        )
    return DirectoryFailed(f"the DHT helper (p2pd) cannot be started: {message}")


async def stop(process: Process, at_once: bool = False) -> None:
    """End the process and all its tasks within a few seconds. `at_once`: kill it without waiting for it to end by
    itself."""
    process.fail_calls()
    tasks = process.tasks()
    if at_once and process._child is not None and process._child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process._child.kill()
        await process._child.wait()
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
    # Also takes their exceptions: a write to a dead p2pd raises ConnectionResetError.
    await asyncio.gather(*tasks, return_exceptions=True)
    for maddr in (process._daemon_listen_maddr, process._client_listen_maddr):
        with contextlib.suppress(OSError):  # nothing is there, or /tmp cannot be written: the first error matters
            os.unlink(maddr["unix"])  # noqa: PTH108  (a socket in /tmp: no disk is waited for)
