"""A TCP relay in front of one endpoint that can be cut, and counts what passes. For tests and benchmarks of transfers
over links that break."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Literal

CHUNK = 2**16


class Wire:
    """`there`: bytes that came from callers; `back`: that went to them. `calls`: connections that were taken on."""

    def __init__(self, rate: float | None = None) -> None:
        """`rate`: bytes per second, each way; None: as fast as it goes."""
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
        """Call `then` when so many bytes have come for callers: in the middle of a chunk, as it happens."""
        self._due.append((back, then))

    def sever(self) -> None:
        """All connections break, and new ones too, until it is mended."""
        self._severed = True
        for writer in list(self._writers):
            writer.transport.abort()

    def silence(self) -> None:
        """Connections stay, and nothing passes."""
        self._whole.clear()

    def hold(self) -> None:
        """What goes to callers stays here until it is mended, or lost when it is severed."""
        self._passing.clear()

    def forget(self) -> None:
        """Connections stay, and nothing passes over them any more, as behind a router that was restarted; new ones are
        whole."""
        self._whole.clear()
        self._whole = asyncio.Event()
        self._whole.set()

    def mend(self) -> None:
        self._severed = False
        self._whole.set()
        self._passing.set()

    async def relay(self, target: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end."""
        host, _, port = target.rpartition(":")
        if self._severed:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection(host, int(port), limit=CHUNK)
        except BaseException as error:  # nobody listens any more, and so it is here; or the relay is closed
            self._writers.discard(writer)
            writer.transport.abort()
            if isinstance(error, OSError):
                return
            raise
        self.calls += 1
        whole = self._whole
        self._writers.add(far_writer)
        try:
            with contextlib.suppress(OSError, ExceptionGroup):  # one end broke: so does the other
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
        raise ConnectionResetError  # half a connection is none


@asynccontextmanager
async def before(target: str, wire: Wire) -> AsyncIterator[str]:
    """Where to call instead of `target` (host:port). It accepts by itself: asyncio's server forgets to close those that
    call while it is closed, and so does a `sock_accept` that is cancelled once it has one."""
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
        except OSError:  # it is gone again
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
            await _turns()  # those that were taken on just now have begun
            for task in list(tasks):
                task.cancel()
            if tasks:
                await asyncio.wait(list(tasks))
            await _turns()  # sockets close
            for writer in writers:
                writer.transport.abort()
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(1.0):
                        await writer.wait_closed()


async def _turns() -> None:
    """What asyncio has begun with a socket takes a few turns of its loop."""
    for _ in range(5):
        await asyncio.sleep(0)
