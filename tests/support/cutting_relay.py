"""A TCP relay in front of one endpoint that can break the link and counts bytes. For tests and benchmarks of transfers
over unreliable links."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

CHUNK = 2**16


class Wire:
    """The state of the relay's link. there: bytes received from callers. back: bytes sent to callers. calls:
    connections accepted."""

    def __init__(self, rate: float | None = None) -> None:
        """`rate`: bytes per second in each direction. None: unlimited."""
        self._rate = rate
        self.there = self.back = self.calls = 0
        self._whole = asyncio.Event()
        self._whole.set()
        self._passing = asyncio.Event()
        self._passing.set()
        self._severed = False
        self._due: list[tuple[int, Callable[[], None]]] = []
        self._writers: set[asyncio.StreamWriter] = set()

    def when(self, back: int, then: Callable[[], None]) -> None:
        """Call `then` once `back` bytes have arrived for callers, which may be in the middle of a chunk."""
        self._due.append((back, then))

    def sever(self) -> None:
        """Break all connections and refuse new ones, until `mend`."""
        self._severed = True
        for writer in list(self._writers):
            writer.transport.abort()

    def silence(self) -> None:
        """Let no more bytes pass, but leave connections open."""
        self._whole.clear()

    def hold(self) -> None:
        """Hold back bytes for callers until `mend`. They are lost on `sever`."""
        self._passing.clear()

    def forget(self) -> None:
        """Let nothing more pass over the present connections, which stay open, as behind a restarted router. New
        connections work."""
        self._whole.clear()
        self._whole = asyncio.Event()
        self._whole.set()

    def mend(self) -> None:
        self._severed = False
        self._whole.set()
        self._passing.set()

    async def relay(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection to its end."""
        host, _, port = target.rpartition(":")
        if self._severed:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port), limit=CHUNK)
        # nobody listens there any more, so the caller sees the same; or the relay is closed
        except BaseException as error:
            self._writers.discard(writer)
            writer.transport.abort()
            if isinstance(error, OSError):
                return
            raise
        self.calls += 1
        whole = self._whole
        self._writers.add(far_writer)
        try:
            with contextlib.suppress(OSError, ExceptionGroup):  # one end broke, so break the other
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, far_writer, whole, "there"))
                    group.create_task(self._pump(far_reader, writer, whole, "back"))
        finally:
            for one in (writer, far_writer):
                self._writers.discard(one)
                one.transport.abort()

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        whole: asyncio.Event,
        way: Literal["there", "back"],
    ) -> None:
        while chunk := await reader.read(CHUNK if self._rate is None else 4096):
            if way == "there":
                self.there += len(chunk)
            else:
                self.back += len(chunk)
                while self._due and self.back >= self._due[0][0]:
                    self._due.pop(0)[1]()
            await whole.wait()
            if way == "back":
                await self._passing.wait()
            if self._rate is not None:
                await asyncio.sleep(len(chunk) / self._rate)
            if writer.is_closing():
                raise ConnectionResetError
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError  # break both directions when one ends


@asynccontextmanager
async def before(target: str, wire: Wire) -> AsyncIterator[str]:
    """Run a relay. Yield the address to call instead of `target` (host:port). It accepts connections by itself, because
    asyncio's server does not close those that arrive while it is being closed, and neither does a cancelled
    `sock_accept`."""
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    async def taken_on(connection: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=connection, limit=CHUNK)
        except BaseException:
            connection.close()
            raise
        writers.append(writer)
        await wire.relay(target, reader, writer)

    def accept() -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # the caller is already gone
            return
        connection.setblocking(False)
        task = loop.create_task(taken_on(connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listening:
        listening.setblocking(False)
        loop.add_reader(listening, accept)
        try:
            host, port = listening.getsockname()[:2]
            yield f"{host}:{port}"
        finally:
            loop.remove_reader(listening)
            listening.close()
            await _turns()  # so that relays of connections accepted just now have begun
            for task in list(tasks):
                task.cancel()
            if tasks:
                await asyncio.wait(list(tasks))
            await _turns()  # so that sockets get closed
            for writer in writers:
                writer.transport.abort()
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        await writer.wait_closed()


async def _turns() -> None:
    """Run the event loop a few times, so that asyncio completes pending socket operations."""
    for _ in range(5):
        await asyncio.sleep(0)
