"""The loopback ports that lead to a closed peer: real sockets in front, memory behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerRefused, RelayBusy
from peer.protocol.messages import PathKind, Way
from peer.transport.relay.pipe import Stream
from peer.transport.relay.tunnel import RelayTunnel
from tests.support.memory_streams import connection, is_gone

Run = Callable[[Coroutine[Any, Any, None]], None]
RELAYED = Way(PathKind.RELAYED, "relay", "small calls stay with the relay")
PUNCHED = Way(PathKind.PUNCHED, "relay", "both routers let it through")


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda test: request.param(asyncio.wait_for(test, 20))


class Home:
    """A closed peer that echoes everything in capitals."""

    def __init__(self) -> None:
        self.asked: list[tuple[bool, float]] = []
        self.error: ExchangeError | None = None
        self.opens = asyncio.Event()
        self.opens.set()
        self.ends: list[Stream] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def open(self, bulk: bool, needs: float) -> tuple[Stream, Way]:
        self.asked.append((bulk, needs))
        await self.opens.wait()
        if self.error is not None:
            raise self.error
        near, far = connection()
        self.ends.extend((near, far))
        self.tasks.append(asyncio.create_task(self._answer(far)))
        return near, PUNCHED if bulk else RELAYED

    async def _answer(self, stream: Stream) -> None:
        while said := await stream.reader.read(100):
            stream.send(said.upper())
        stream.writer.write_eof()


async def call(address: str) -> Stream:
    host, _, port = address.rpartition(":")
    return Stream.of(*await asyncio.open_connection(host, int(port)))


async def is_over(stream: Stream) -> bool:
    try:
        return await stream.reader.read() == b""
    except ConnectionError:
        return True


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def scenario(test: Callable[[Home, RelayTunnel, str, str], Coroutine[Any, Any, None]]) -> Callable[[Run], None]:
    def wrapped(run: Run) -> None:
        async def main() -> None:
            home, before = Home(), asyncio.all_tasks()
            tunnel = RelayTunnel(home.open)
            control, bulk = await tunnel.start()
            try:
                await test(home, tunnel, control, bulk)
            finally:
                await tunnel.close()
                for stream in home.ends:
                    stream.abort()
                await asyncio.gather(*home.tasks, return_exceptions=True)
                assert asyncio.all_tasks() == before

        run(main())

    wrapped.__name__ = test.__name__
    return wrapped


@scenario
async def test_each_port_leads_there_by_a_circuit_of_its_kind(
    home: Home, tunnel: RelayTunnel, control: str, bulk: str
) -> None:
    assert tunnel.way.path is PathKind.RELAYED
    for number, address in enumerate((control, bulk, control)):
        stream = await call(address)
        stream.send(b"hello")
        assert await stream.reader.readexactly(5) == b"HELLO"
        stream.writer.write_eof()
        assert await is_over(stream)
        stream.abort()
        assert tunnel.way == (RELAYED if number == 0 else PUNCHED), "the way of payloads is the one that is told"
    assert home.asked == [(False, 0.0), (True, 0.0), (False, 0.0)]


@scenario
async def test_what_a_swap_needs_is_said_for_its_first_circuit(
    home: Home, tunnel: RelayTunnel, control: str, bulk: str
) -> None:
    tunnel.expect(5e4)
    for address in (control, bulk, bulk):
        stream = await call(address)
        stream.send(b"x")
        assert await stream.reader.readexactly(1) == b"X"
        stream.abort()
    assert home.asked == [(False, 0.0), (True, 5e4), (True, 0.0)]


@pytest.mark.parametrize(
    ("error", "refused", "no_room"),
    [
        (PartnerLost("the relay hung up"), False, ""),
        (BadPayload("clock", "nonsense"), False, ""),
        (PartnerRefused("unreserved", "that peer has no place at this relay"), True, ""),
        (RelayBusy("too slow"), True, "too slow"),
    ],
)
def test_a_circuit_that_cannot_be_opened_ends_the_connection_and_says_why(
    run: Run, error: ExchangeError, refused: bool, no_room: str
) -> None:
    @scenario
    async def attempt(home: Home, tunnel: RelayTunnel, control: str, bulk: str) -> None:
        home.error = error
        stream = await call(bulk)
        assert await is_over(stream)
        stream.abort()
        assert tunnel.trouble == str(error)
        assert (tunnel.refused, tunnel.no_room) == (refused, no_room)
        tunnel.expect(1.0)
        assert tunnel.no_room == "", "it is another swap now"

    attempt(run)
    assert RelayBusy("").code == "relay_busy"


@scenario
async def test_a_tunnel_that_closes_ends_what_is_open_and_what_is_being_opened(
    home: Home, tunnel: RelayTunnel, control: str, bulk: str
) -> None:
    stream = await call(control)
    stream.send(b"x")
    assert await stream.reader.readexactly(1) == b"X"
    home.opens.clear()
    waiting = await call(bulk)
    await until(lambda: len(home.asked) == 2)
    just_came = await call(bulk)  # the tunnel may not have accepted this call yet
    await tunnel.close()
    for one in (stream, waiting, just_came):
        assert await is_over(one)
        one.abort()
    with pytest.raises(ConnectionRefusedError):
        await call(control)
    await until(lambda: all(end.writer.is_closing() or is_gone(end) for end in home.ends[:1]))
