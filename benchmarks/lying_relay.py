"""A box in front of a relay that corrupts circuits and nothing else. To the two ends of a circuit it looks like a lying
relay.

The box runs in the relay's network namespace, where nftables redirects connections to the relay's port to it. The relay
sees the caller's own address with another port. Direct TLS connections pass unchanged."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from benchmarks.nat_network import inside, run

LIES = ("drop", "delay", "flip", "swap")
CLIENT_HELLO = b"\x16\x03\x01"
"""Begin of a caller's first record (RFC 8446, 5.1)."""
TLS = b"\x16"
"""First byte of a TLS connection (RFC 8446, 5.1)."""
BOX_PORT = 4899
IP_TRANSPARENT = 19  # of <linux/in.h>
RULES = """
table inet box {
  chain in {
    type nat hook prerouting priority -100
    iifname "wan" tcp dport PORT redirect to :BOX
  }
  chain out {
    type route hook output priority -150
    tcp sport PORT meta mark set 1
  }
}
"""
"""nftables rules: connections of callers go to the box, and so do the relay's answers, because the box uses its
callers' addresses."""
CHUNK = 2**16
DELAY_S = 5.0
DROP_AFTER = 20_000
"""Bytes after which a box that drops closes a circuit."""
LEAST = 512
"""Least size of a chunk that counts as use of a circuit and is corrupted. Larger than a keep-alive."""


@dataclass(eq=False)
class Circuit:
    """One end of a circuit. `to_relay`: stream on which its bytes are passed to the relay."""

    host: str
    to_relay: asyncio.StreamWriter
    calls: bool = False
    """Whether it is the caller's end, which sends the first TLS message. A called peer has not chosen the relay."""
    passed: int = 0
    """Bytes passed since the lies began."""
    noted_at: float = 0.0


@dataclass
class LyingBox:
    """The box. `uses`: (time, host, whether it calls) of circuits that passed bytes under the lie, recorded at most
    once per second."""

    lie: str
    lies_from: float = float("inf")
    """Seconds since the epoch."""
    uses: list[tuple[float, str, bool]] = field(default_factory=list)
    spoilt: int = 0
    """Bytes received on circuits since the lies began."""
    _circuits: list[Circuit] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self) -> None:
        """Start to lie, on open circuits too."""
        self.lies_from = time.time()

    @contextlib.asynccontextmanager
    async def beside(self, namespace: str, public: str, port: int) -> AsyncIterator[None]:
        """Run the box in front of the relay that listens at this address."""
        rules = RULES.replace("PORT", str(port)).replace("BOX", str(BOX_PORT))
        run("ip", "netns", "exec", namespace, "nft", "-f", "-", given=rules)
        run("ip", "-n", namespace, "rule", "add", "fwmark", "1", "lookup", "100")
        run("ip", "-n", namespace, "route", "add", "local", "0.0.0.0/0", "dev", "lo", "table", "100")
        with inside(namespace):
            listening = socket.create_server(("0.0.0.0", BOX_PORT), backlog=1024)

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):
                await self._serve(reader, writer, namespace, (public, port))

        server = await asyncio.start_server(accept, sock=listening, limit=CHUNK)
        try:
            yield
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            run("ip", "netns", "exec", namespace, "nft", "delete", "table", "inet", "box")
            run("ip", "-n", namespace, "route", "flush", "table", "100")
            run("ip", "-n", namespace, "rule", "del", "fwmark", "1")

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, namespace: str, relay: tuple[str, int]
    ) -> None:
        host = writer.get_extra_info("peername")[0]
        with inside(namespace):
            dialling = socket.socket()
        dialling.setblocking(False)
        dialling.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        dialling.bind((host, 0))
        circuit = None
        ends = [writer]
        try:
            await asyncio.get_running_loop().sock_connect(dialling, relay)
            from_relay, to_relay = await asyncio.open_connection(sock=dialling, limit=CHUNK)
            ends.append(to_relay)
            first = await reader.readexactly(1)
            if first != TLS:
                circuit = Circuit(host, to_relay)
                self._circuits.append(circuit)
            to_relay.write(first)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(reader, to_relay, circuit, outward=True))
                group.create_task(self._pump(from_relay, writer, circuit, outward=False))
        except* (OSError, EOFError):
            pass
        finally:
            if len(ends) == 1:
                dialling.close()
            if circuit is not None:
                self._circuits.remove(circuit)
            for end in ends:
                end.transport.abort()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, circuit: Circuit | None, *, outward: bool
    ) -> None:
        """Pass bytes on in one direction. Raises EOFError at the end, which ends the other direction too."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(1024)
        async with asyncio.TaskGroup() as group:
            group.create_task(_deliver(late, writer))
            while chunk := await reader.read(CHUNK):
                if circuit is not None and outward and CLIENT_HELLO in chunk[:LEAST]:
                    circuit.calls = True
                if circuit is None or time.time() < self.lies_from:
                    await late.put((0.0, chunk))
                    continue
                self._note(circuit, len(chunk))
                # flip in one direction only: a bit flipped at both ends of the circuit is right again
                if not outward and self.lie != "drop":
                    await late.put((0.0, chunk))
                elif self.lie == "delay":
                    await late.put((time.monotonic() + DELAY_S, chunk))
                elif self.lie == "drop" and circuit.passed > DROP_AFTER:
                    raise EOFError
                elif self.lie == "flip" and len(chunk) >= LEAST:
                    middle = len(chunk) // 2
                    await late.put((0.0, chunk[:middle] + bytes([chunk[middle] ^ 1]) + chunk[middle + 1 :]))
                elif self.lie == "swap" and (other := self._another(circuit)) is not None:
                    other.to_relay.write(chunk)
                else:
                    await late.put((0.0, chunk))
            await late.put((0.0, b""))

    def _note(self, circuit: Circuit, size: int) -> None:
        now = time.time()
        circuit.passed += size
        self.spoilt += size
        if size >= LEAST and now - circuit.noted_at >= 1.0:
            circuit.noted_at = now
            self.uses.append((now, circuit.host, circuit.calls))

    def _another(self, circuit: Circuit) -> Circuit | None:
        """Return an end of another home's circuit, as which this one's bytes are sent. None: there is none."""
        return next((other for other in self._circuits if other.host != circuit.host), None)


async def _deliver(late: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    while True:
        at, chunk = await late.get()
        if not chunk:
            raise EOFError
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        writer.write(chunk)
        await writer.drain()
