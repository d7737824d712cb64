"""Strangers that take the places for Hellos and for fetching, and keep them. Each /24 of loopback counts as a block
here, because normally all of loopback is one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from blake3 import blake3

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.node.handler import RequestHandler
from peer.protocol.messages import PIECE_BYTES, PeerId, Piece, RunId, StateIndex
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.server import rate_limits, state_uploads
from peer.transport.wire.refusals import TOKEN_KEY
from peer.v1 import exchange_pb2 as pb
from tests.support.hostile_client import HostileCaller, Refused, ended

RUN = RunId(b"R" * 32)
LAYOUT = b"L" * 32
CROWD = "127.0.5"
DATA = bytes(PIECE_BYTES)


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limits, "block_of_host", lambda host: host.rpartition(".")[0], raising=False)


class Donor(RequestHandler):
    """A handler with a state of one piece."""

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex:
        piece = Piece(0, 1, len(DATA), blake3(DATA).digest())
        return StateIndex("snapshot", 7, LAYOUT, (piece,))

    def on_piece(self, snapshot: str, piece: int) -> memoryview:
        return memoryview(DATA)


class Street:
    """The server, and callers from any address of loopback."""

    def __init__(self, stack: contextlib.AsyncExitStack) -> None:
        self._stack = stack
        self._identity = Identity.generate()
        self._server = GrpcTransport(self._identity, RUN, Donor(), RunClock().now)
        self._server.begin_run(RunTerms(LAYOUT, 2**26))
        self._port = 0

    async def open(self) -> None:
        self._port = await self._server.start("127.0.0.1", 0)
        self._stack.push_async_callback(self._server.close)

    async def caller(self, host: str) -> HostileCaller:
        """Return a caller with its own key, whose connections come from this address."""
        there = await self._stack.enter_async_context(_from(host, self._port))
        caller = HostileCaller(f"127.0.0.1:{there}", PeerId(self._identity.peer_id), RUN)
        return await self._stack.enter_async_context(caller)


@contextlib.asynccontextmanager
async def street() -> AsyncIterator[Street]:
    async with asyncio.timeout(180), contextlib.AsyncExitStack() as stack:
        one = Street(stack)
        await one.open()
        yield one


@contextlib.asynccontextmanager
async def _from(host: str, port: int) -> AsyncIterator[int]:
    """Open a port whose callers appear to come from `host`."""
    passing = set[asyncio.Task[None]]()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))
        passing.update((asyncio.create_task(_copy(reader, back)), asyncio.create_task(_copy(there, writer))))

    server = await asyncio.start_server(pass_on, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        for one in passing:
            one.cancel()
        await asyncio.gather(*passing, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(2**16):
                writer.write(chunk)
                await writer.drain()
    finally:
        writer.close()


def fetch(caller: HostileCaller, token: bytes) -> object:
    """Start a call for the piece without reading it."""
    return caller.channel.unary_stream("/peer.v1.Exchange/FetchPiece")(
        pb.PieceRequest(snapshot="snapshot", piece=0).SerializeToString(),
        metadata=((TOKEN_KEY, token),),
        timeout=90,
    )


async def begun(call: object) -> bool:
    """Return whether the first frame has arrived, so that the place is taken."""
    return isinstance(await call.read(), bytes)  # type: ignore[attr-defined]


def test_eight_addresses_of_a_block_do_not_hold_all_places_for_hellos() -> None:
    async def main() -> None:
        async with street() as here:
            crowd, streams = [await here.caller(f"{CROWD}.{number}") for number in range(1, 9)], []
            for one in crowd:
                streams += [one.open_hello() for _ in range(16)]
                await streams[-1].wait_for_connection()
            newcomer = await here.caller("127.0.6.1")
            assert await newcomer.hello(layout_digest=LAYOUT)
            for stream in streams:
                stream.cancel()

    asyncio.run(main())


def test_four_keys_of_a_block_do_not_shut_a_donor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_uploads, "ACTIVE_S", 60.0)  # four joiners may take longer than 3 s on a busy machine

    async def main() -> None:
        async with street() as here:
            for number in range(1, 5):
                joiner = await here.caller(f"{CROWD}.{number}")
                assert (await ended(fetch(joiner, await joiner.hello(layout_digest=LAYOUT)))).code == "OK"
            neighbour = await here.caller(f"{CROWD}.9")
            with pytest.raises(Refused, match="joiners are fetching") as refused:
                await neighbour.unary("State", await neighbour.hello(layout_digest=LAYOUT))
            assert refused.value.code == "busy"
            newcomer = await here.caller("127.0.6.1")
            token = await newcomer.hello(layout_digest=LAYOUT)
            assert await newcomer.unary("State", token)
            assert (await ended(fetch(newcomer, token))).code == "OK"

    asyncio.run(main())


def test_two_addresses_that_take_nothing_do_not_hold_all_places_for_pieces() -> None:
    async def main() -> None:
        async with street() as here:
            crowd, calls = [await here.caller(f"{CROWD}.{number}") for number in (1, 2)], []
            for one in crowd:
                token = await one.hello(layout_digest=LAYOUT)
                for _ in range(3):  # six in all; the rest is for proven peers
                    calls.append(fetch(one, token))
                    assert await begun(calls[-1])
            newcomer = await here.caller("127.0.6.1")
            token = await newcomer.hello(layout_digest=LAYOUT)
            assert (await ended(fetch(newcomer, token))).code == "OK"
            assert (await ended(calls[-1])).code == "busy", "the youngest of the crowd"
            for call in calls:
                call.cancel()

    asyncio.run(main())
