"""The front with a relay server: connections that start with a preamble are ends of circuits, and gRPC never sees
them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId
from peer.transport.front.callers import CallerTable, FrontLimits
from peer.transport.front.front import AcceptingFront
from peer.transport.relay.pipe import CHUNK, Stream
from peer.transport.relay.relay_server import RelayServer
from peer.transport.relay.throttle import RelayThrottle
from peer.transport.relay.wire import MARK, PREAMBLE_BYTES, preamble
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter
from tests.support.behind_front import behind, until

Run = Callable[[Coroutine[Any, Any, None]], None]
HOME = PeerId("home")
BIG = 8 * 2**20
ONE_READ = 2**18


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda test: request.param(asyncio.wait_for(test, 20))


class Here:
    """A front with a relay server, and a gRPC stand-in that must receive nothing."""

    def __init__(self, front: AcceptingFront, table: CallerTable, relay_server: RelayServer, port: int) -> None:
        self.front, self.table, self.relay_server, self.port = front, table, relay_server, port
        self.held = relay_server.reserve(HOME, "home block", proven=False)
        self.inside = 0

    async def call(self) -> Stream:
        return Stream.of(*await asyncio.open_connection("127.0.0.1", self.port))

    def slips(self) -> tuple[bytes, bytes]:
        slip = self.relay_server.call(PeerId("caller"), HOME, "caller block", bulk=True, proven=False)
        return slip, self.held.calls.get_nowait()

    async def circuit(self) -> tuple[Stream, Stream]:
        ends = []
        for slip in self.slips():
            ends.append(await self.call())
            ends[-1].send(preamble(slip))
        for end in ends:
            await end.reader.readexactly((await end.reader.readexactly(1))[0])
        return ends[0], ends[1]


@contextlib.asynccontextmanager
async def here(limits: FrontLimits | None = None) -> AsyncIterator[Here]:
    caps = Caps(Pacer(None), Pacer(None), Meter())
    relay_server = RelayServer(RelayThrottle(1e9, caps), time.monotonic)

    async def heard(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.inside += 1
        writer.close()

    async with behind(heard, limits, relay_server=relay_server) as front:
        made = Here(front.front, front.table, relay_server, front.port)
        yield made


async def is_over(stream: Stream) -> bool:
    try:
        return await stream.reader.read() == b""
    except ConnectionError:
        return True
    finally:
        stream.abort()


def test_a_preamble_may_come_in_single_bytes(run: Run) -> None:
    async def main() -> None:
        async with here() as relay:
            slip, other = relay.slips()
            one, two = await relay.call(), await relay.call()
            for number in range(PREAMBLE_BYTES):
                one.send(preamble(slip)[number : number + 1])
                while number + 1 < PREAMBLE_BYTES and _early(relay) <= number:
                    await asyncio.sleep(0)
            two.send(preamble(other) + b"at once")
            await one.reader.readexactly((await one.reader.readexactly(1))[0])
            assert await one.reader.readexactly(7) == b"at once"
            assert relay.inside == 0
            for end in (one, two):
                end.abort()

    run(main())


def _early(relay: Here) -> int:
    """Return the bytes of the preamble received so far."""
    return max(len(session._early) for session in relay.front._sessions)


@pytest.mark.parametrize(
    "said",
    [MARK + b"x" * 16, MARK + b"\0" * 500, preamble(b"s" * 16) + b"\x16\x03\x01", MARK[:-1] + b"\1"],
    ids=["guessed slip", "garbage", "guessed slip and TLS", "another mark"],
)
def test_what_follows_a_mark_and_is_no_slip_is_dropped(run: Run, said: bytes) -> None:
    async def main() -> None:
        async with here() as relay:
            relay.slips()
            stream = await relay.call()
            stream.send(said)
            assert await is_over(stream)
            assert relay.inside == 0
            await until(lambda: len(relay.table) == 0)

    run(main())


@pytest.mark.parametrize("said", [MARK[:1], MARK, preamble(b"s" * 16)[:-1]])
def test_half_a_preamble_and_an_end_is_over(run: Run, said: bytes) -> None:
    async def main() -> None:
        async with here() as relay:
            stream = await relay.call()
            stream.send(said)
            stream.writer.write_eof()
            assert await is_over(stream)
            await until(lambda: len(relay.table) == 0)
            assert relay.inside == 0

    run(main())


def test_half_a_preamble_holds_its_place_no_longer_than_silence(run: Run) -> None:
    async def main() -> None:
        async with here(FrontLimits(greet_s=0.2)) as relay:
            stream = await relay.call()
            stream.send(MARK)
            assert await is_over(stream)

    run(main())


def test_an_end_that_sends_much_before_the_other_one_is_there_has_to_wait(run: Run) -> None:
    async def main() -> None:
        async with here() as relay:
            slip, other = relay.slips()
            one = await relay.call()
            one.writer.write(preamble(slip) + bytes(BIG))
            await until(lambda: bool(relay.relay_server._ends))
            ((stream, _),) = next(iter(relay.relay_server._ends.values())).here.values()
            await until(lambda: not stream.writer.transport.is_reading())  # type: ignore[attr-defined]
            assert len(stream.reader._buffer) <= 2 * CHUNK + ONE_READ  # type: ignore[attr-defined]
            two = await relay.call()
            two.send(preamble(other))
            await two.reader.readexactly((await two.reader.readexactly(1))[0])
            assert len(await two.reader.readexactly(BIG)) == BIG
            for end in (one, two):
                end.abort()

    run(main())


def test_an_end_that_is_gone_frees_its_place(run: Run) -> None:
    async def main() -> None:
        async with here() as relay:
            one, two = await relay.circuit()
            assert len(relay.table) == 2
            one.abort()
            assert await is_over(two)
            await until(lambda: len(relay.table) == 0)
            await until(lambda: to_json(relay.relay_server.report())["circuits"] == 0)

    run(main())


def test_each_end_belongs_to_the_key_that_got_its_slip(run: Run) -> None:
    async def main() -> None:
        async with here() as relay:
            one, two = await relay.circuit()
            keys = {session.caller.key for session in relay.front._sessions if session.caller is not None}
            assert keys == {HOME, PeerId("caller")}
            for end in (one, two):
                end.abort()

    run(main())


def test_a_front_that_closes_drops_circuits_too(run: Run) -> None:
    async def main() -> None:
        async with here() as relay:
            one, two = await relay.circuit()
            await relay.relay_server.close()
            await relay.front.close()
            assert await is_over(one)
            assert await is_over(two)

    run(main())
