"""Callers and closed peers with a real front and relay server, over loopback and without gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from peer.errors import PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.observe.status.codec import to_json
from peer.protocol.messages import PathKind, PeerId, RelayAddress, Way
from peer.protocol.relay.circuits import CIRCUITS_OF_TARGET
from peer.protocol.relay.punching import PunchMemory
from peer.transport.client.dialling import Dialler, OwnPlace
from peer.transport.front.callers import CallerTable
from peer.transport.front.front import AcceptingFront
from peer.transport.front.inner_socket import InnerSocket
from peer.transport.relay import caller as caller_module
from peer.transport.relay import negotiation
from peer.transport.relay.caller import CircuitCaller, punch_to
from peer.transport.relay.pipe import Stream
from peer.transport.relay.reception import CircuitReception
from peer.transport.relay.relay_server import RelayServer
from peer.transport.relay.throttle import RelayThrottle
from peer.transport.relay.wire import PREAMBLE_BYTES, encode_address
from peer.transport.server.bind import bind
from peer.transport.tls import RenewedLeaf
from peer.transport.wire.pacing import Pacer
from peer.transport.wire.payload_stream import Caps, Meter
from tests.support.memory_streams import connection

Run = Callable[[Coroutine[Any, Any, None]], None]
HOME, OTHER, RELAY = PeerId("home"), PeerId("other"), PeerId("relay")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda test: request.param(asyncio.wait_for(test, 20))


def private_run() -> Dialler:
    """Return a dialler that treats loopback like any other address."""
    return Dialler(OwnPlace(endpoints=lambda: ["127.0.0.1:1"], ticket=("127.0.0.1",)))


class Setting:
    """A relay, a closed peer with a place at it, and a caller."""

    def __init__(self, port: int, relay_server: RelayServer, dialler: Dialler) -> None:
        self.port, self.relay_server = port, relay_server
        self.address = f"127.0.0.1:{port}"
        self.failed: list[tuple[PeerId, PeerId]] = []
        self.served: list[Way] = []
        self.reception = CircuitReception(self._serve, dialler, lambda *told: self.failed.append(told[:2]))
        self.memory = PunchMemory()
        self.caller = CircuitCaller(self._ask, dialler, self.memory)
        self.held = relay_server.reserve(HOME, "home block", proven=False)
        self.takes = True

    async def open(self, *, bulk: bool) -> tuple[Stream, Way]:
        return await self.caller.open(RelayAddress(RELAY, self.address), HOME, bulk=bulk)

    async def _ask(self, relay: RelayAddress, target: PeerId, bulk: bool, needs: float) -> tuple[bytes, str]:
        slip = self.relay_server.call(OTHER, target, "caller block", bulk=bulk, proven=False, needs=needs)
        theirs = self.held.calls.get_nowait()
        if self.takes:
            self.reception.accept(RELAY, self.address, theirs)
        return slip, self.address

    async def _serve(self, stream: Stream, way: Way) -> None:
        """Echo everything in capital letters."""
        self.served.append(way)
        try:
            while said := await stream.reader.read(100):
                stream.send(said.upper())
        finally:
            stream.abort()


@contextlib.asynccontextmanager
async def setting(dialler: Dialler | None = None) -> AsyncIterator[Setting]:
    caps = Caps(Pacer(None), Pacer(None), Meter())
    relay_server, table = RelayServer(RelayThrottle(1e9, caps), time.monotonic), CallerTable()
    front, inside = AcceptingFront(table, RenewedLeaf(Identity.generate()), relay_server), InnerSocket()
    sockets, port = bind(["127.0.0.1"], 0)
    await front.open(sockets, inside)
    made = Setting(port, relay_server, dialler or Dialler())
    before = asyncio.all_tasks()
    try:
        yield made
    finally:
        await made.reception.close()
        await relay_server.close()
        await front.close()
        inside.close()
        assert len(table) == 0
        assert asyncio.all_tasks() <= before


async def speaks(stream: Stream) -> bool:
    stream.send(b"hello")
    said = await stream.reader.readexactly(5)
    stream.abort()
    return said == b"HELLO"


@pytest.mark.parametrize("bulk", [True, False])
def test_a_caller_comes_to_the_closed_peer_over_the_relay(run: Run, bulk: bool) -> None:
    async def main() -> None:
        async with setting() as here:
            stream, way = await here.open(bulk=bulk)
            why = "the relay tells a private address of the other end" if bulk else "small calls stay with the relay"
            assert way == Way(PathKind.RELAYED, RELAY, why)
            assert await speaks(stream)
            assert here.served == [Way(PathKind.RELAYED, RELAY, "nobody can dial us")]
            assert not here.failed

    run(main())


class Router:
    """Opens a connection when both ends punch, as the routers of two homes do."""

    def __init__(self) -> None:
        self.waiting: dict[frozenset[int], tuple[Stream, asyncio.Event]] = {}
        self.made: list[Stream] = []

    async def punched(self, through: Stream, host: str, port: int, attempts: int) -> Stream:
        key = frozenset({int(through.writer.get_extra_info("sockname")[1]), port})
        if key in self.waiting:
            stream, met = self.waiting.pop(key)
            met.set()
            return stream
        one, other = connection()
        self.made.extend((one, other))
        met = asyncio.Event()
        self.waiting[key] = other, met
        await met.wait()
        return one


def test_both_punch_from_the_addresses_that_the_relay_sees(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    router = Router()
    monkeypatch.setattr(caller_module, "punched", router.punched)

    async def main() -> None:
        async with setting(private_run()) as here:
            stream, way = await here.open(bulk=True)
            assert (way.path, way.via) == (PathKind.PUNCHED, RELAY)
            assert await speaks(stream)
            assert [one.path for one in here.served] == [PathKind.PUNCHED]
            stream, way = await here.open(bulk=False)
            assert way.path is PathKind.RELAYED, "control stays with the relay"
            assert await speaks(stream)
        for one in router.made:
            one.abort()

    run(main())


def test_the_relay_carries_on_where_nothing_opens_and_it_is_not_tried_again_soon(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negotiation, "PUNCH_S", 0.3)

    async def main() -> None:
        async with setting(private_run()) as here:
            stream, way = await here.open(bulk=True)  # loopback refuses punched connections at once
            assert (way.path, way.why) == (PathKind.RELAYED, "punching opened nothing within 2 s")
            assert await speaks(stream)
            stream, way = await here.open(bulk=True)
            assert "tried again in" in way.why
            assert await speaks(stream)

    run(main())


def test_a_third_party_that_a_relay_names_is_dialled_within_the_budget_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third party accepts every connection. If that counted as an answer, dials to it would cost no budget."""
    dials = 0

    async def punched(through: Stream, host: str, port: int, attempts: int) -> Stream:
        nonlocal dials
        dials += 1
        return connection()[0]

    async def check(stream: Stream) -> bool:
        return False

    monkeypatch.setattr(caller_module, "punched", punched)

    async def main() -> None:
        through, _ = connection()
        for number in range(20):
            punch = punch_to(Dialler(), through, PeerId(f"caller {number}"), "203.0.113.7:80")
            with pytest.raises(PartnerLost, match="somebody else answers there"):
                await punch(check)
        assert dials == 20, "each has a dialler of its own here"
        dialler = Dialler()
        for number in range(20):
            with pytest.raises(PartnerLost):
                await punch_to(dialler, through, PeerId(f"caller {number}"), "203.0.113.7:80")(check)
        assert dials <= 20 + 6

    run(main())


def test_a_target_that_does_not_come_costs_the_caller_some_seconds(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller_module, "CLAIM_S", 0.2)

    async def main() -> None:
        async with setting() as here:
            here.takes = False
            with pytest.raises(PartnerLost, match="passed nothing on"):
                await here.open(bulk=False)
            assert to_json(here.relay_server.report())["circuits"] == 1, "until its slips have run out"

    run(main())


def test_a_refusal_of_the_relay_comes_to_the_caller(run: Run) -> None:
    async def main() -> None:
        async with setting() as here:
            here.relay_server.release(here.held)
            with pytest.raises(PartnerRefused, match="no place"):
                await here.open(bulk=False)

    run(main())


def test_a_relay_is_not_blamed_for_a_caller_that_does_not_come_or_speaks_nonsense(run: Run) -> None:
    async def main() -> None:
        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(PREAMBLE_BYTES)
            writer.write(said.pop(0))
            writer.close()

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        address_told = encode_address("ipv4:198.51.100.7:4810")
        said = [b"", address_told, address_told + b"\x16\x03\x01", address_told + b"Pshort"]
        async with setting() as here:
            for _ in range(len(said)):
                here.reception.accept(RELAY, address, b"s" * 16)
            await _until(lambda: not here.reception._tasks)
            assert not said
            assert not here.failed
            assert not here.served
        server.close()

    run(main())


def test_a_relay_whose_port_does_not_answer_has_failed(run: Run) -> None:
    async def main() -> None:
        async with setting() as here:
            sockets, port = bind(["127.0.0.1"], 0)
            sockets[0].close()
            here.reception.accept(RELAY, f"127.0.0.1:{port}", b"s" * 16)
            await _until(lambda: bool(here.failed))
            assert here.failed == [(RELAY, RELAY)]

    run(main())


def test_no_relay_takes_the_places_of_the_others(run: Run) -> None:
    async def main() -> None:
        async with setting() as here:
            silent = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
            held: list[asyncio.StreamWriter] = []
            for _ in range(3 * CIRCUITS_OF_TARGET):
                here.reception.accept(PeerId("greedy"), f"127.0.0.1:{silent.sockets[0].getsockname()[1]}", b"s" * 16)
            await _until(lambda: len(held) == CIRCUITS_OF_TARGET)
            stream, _ = await here.open(bulk=False)
            assert await speaks(stream)
            for writer in held:
                writer.transport.abort()
            await _until(lambda: not here.reception._taking["greedy"])
            assert not here.failed
            silent.close()

    run(main())


def test_once_closed_no_call_is_taken(run: Run) -> None:
    async def main() -> None:
        async with setting() as here:
            stream, _ = await here.open(bulk=False)
            await here.reception.close()
            with contextlib.suppress(ConnectionError):
                assert await stream.reader.read() == b""
            stream.abort()
            here.reception.accept(RELAY, here.address, b"s" * 16)
            assert not here.reception._tasks

    run(main())


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)
