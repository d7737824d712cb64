"""TCP relays in front of every node of a local swarm, which can slow down, silence or break the links between nodes.

Node k listens on 127.2.0.k+1 and announces 127.1.0.k+1, where a relay of ours listens on the same ports. The relay
finds the calling node by the source port of the connection, and connects onwards from 127.1.0.(caller+1), so that the
called node sees the caller at an address where others can reach it. Loopback addresses other than 127.0.0.1 need
Linux."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from peer.aio.servers import close_servers
from peer.lab.localswarm.socket_owners import owner

CHUNK = 2**16
CONNECT_S = 5.0
LINK_RATE = 1.25e6
"""Rate of a link, in bytes per second each way, of which `slow_link` leaves a share: 10 Mbit/s. A link without a fault
has no limit."""


def inside(node: int) -> str:
    """Return the address where node `node` (0: the bootstrap node) listens."""
    return f"127.2.0.{node + 1}"


def outside(node: int) -> str:
    """Return the address where the others reach a node: its relay's."""
    return f"127.1.0.{node + 1}"


def free_port(host: str) -> int:
    """Return an unused port at this address."""
    with socket.socket() as trial:
        trial.bind((host, 0))
        port: int = trial.getsockname()[1]
        return port


@dataclass(frozen=True, slots=True)
class Effect:
    """A fault of all links for which `touches` (sender, receiver; None: an unknown process) returns True. `silent`:
    nothing passes. `broken`: connections break, and new ones are refused."""

    touches: Callable[[int | None, int | None], bool]
    silent: bool = False
    broken: bool = False
    rate: float | None = None
    """Bytes per second. None: no limit."""
    delay_s: float = 0.0


@dataclass
class Links:
    """The faults of all links now. Relays call `passed` for every chunk; silenced transfers wait there for a change."""

    effects: list[Effect] = field(default_factory=list)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _pipes: set[_Pipe] = field(default_factory=set)

    def begin(self, effect: Effect) -> None:
        """Add a fault. Connections that it breaks are aborted at once."""
        self.effects.append(effect)
        if effect.broken:
            for pipe in list(self._pipes):
                if effect.touches(pipe.caller, pipe.callee) or effect.touches(pipe.callee, pipe.caller):
                    pipe.abort()
        self._wake()

    def end(self, effect: Effect) -> None:
        """Undo `begin`."""
        self.effects.remove(effect)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def broken(self, caller: int | None, callee: int) -> bool:
        """Return whether connections between two nodes break."""
        return any(e.broken and (e.touches(caller, callee) or e.touches(callee, caller)) for e in self.effects)

    async def passed(self, sender: int | None, receiver: int | None, nbytes: int) -> None:
        """Wait until a chunk of `nbytes` bytes may pass."""
        while any(effect.silent for effect in self._touching(sender, receiver)):
            await self._changed.wait()
        touching = self._touching(sender, receiver)
        rates = [effect.rate for effect in touching if effect.rate is not None]
        seconds = sum(effect.delay_s for effect in touching) + (nbytes / min(rates) if rates else 0.0)
        if seconds > 0:
            await asyncio.sleep(seconds)

    def _touching(self, sender: int | None, receiver: int | None) -> list[Effect]:
        return [effect for effect in self.effects if effect.touches(sender, receiver)]


@dataclass(eq=False)
class _Pipe:
    """One relayed connection from `caller` to `callee`. None: an unknown caller."""

    caller: int | None
    callee: int
    writers: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def abort(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Relay:
    """The relay in front of one node. `processes`: returns pid -> node number for all processes of the swarm, from
    which callers are identified."""

    def __init__(self, node: int, ports: tuple[int, ...], links: Links, processes: Callable[[], Mapping[int, int]]):
        self._node, self._ports, self._links, self._processes = node, ports, links, processes
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on all ports. Raises OSError if an address is not available."""
        for port in self._ports:
            server = await asyncio.start_server(self._accepted, outside(self._node), port, limit=CHUNK)
            self._servers.append(server)

    async def close(self) -> None:
        await close_servers(self._servers)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._relay(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # a task cancelled before it began would not close its connection
        task.add_done_callback(lambda _: writer.transport.abort())

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        source, here = writer.get_extra_info("peername")[:2], writer.get_extra_info("sockname")[:2]
        caller = _node_of(source[0])
        if caller is None:
            caller = owner(source, here, self._processes())
        if self._links.broken(caller, self._node):
            writer.transport.abort()
            return
        from_ = None if caller is None else (outside(caller), 0)
        try:
            async with asyncio.timeout(CONNECT_S):
                there = await asyncio.open_connection(inside(self._node), here[1], limit=CHUNK, local_addr=from_)
        except OSError:  # the node is dead or does not answer; its caller sees the same as without a relay
            writer.transport.abort()
            return
        pipe = _Pipe(caller, self._node, (writer, there[1]))
        self._links._pipes.add(pipe)
        try:
            await self._both_ways(pipe, reader, there[0])
        finally:
            self._links._pipes.discard(pipe)
            pipe.abort()

    async def _both_ways(self, pipe: _Pipe, near: asyncio.StreamReader, far: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(near, pipe.writers[1], pipe.caller, pipe.callee))
                group.create_task(self._pump(far, pipe.writers[0], pipe.callee, pipe.caller))

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sender: int | None, receiver: int | None
    ) -> None:
        try:
            while chunk := await reader.read(CHUNK):
                await self._links.passed(sender, receiver, len(chunk))
                if writer.is_closing():
                    return
                writer.write(chunk)
                await writer.drain()
            if not writer.is_closing():
                writer.write_eof()
        except OSError:  # one end broke, so break the other
            writer.transport.abort()


def _node_of(host: str) -> int | None:
    """Return the node of a caller that bound to the node's own address, as p2pd does. None: another address."""
    return int(host.rpartition(".")[2]) - 1 if host.startswith("127.2.0.") else None
