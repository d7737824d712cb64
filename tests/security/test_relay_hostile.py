"""Attacks of strangers on a relay over real gRPC, TLS and sockets: nothing is relayed for them, and the relay's own
exchanges continue."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from peer.clock.run_clock import RunClock
from peer.errors import PartnerRefused
from peer.identity import Identity
from peer.observe.status.codec import to_json
from peer.protocol.messages import PeerId, PeerRecord, RelayAddress, RoundKey, RunId
from peer.protocol.relay.circuits import CIRCUITS_OF_CALLER
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.calls import reserve
from peer.transport.config import RunTerms
from peer.transport.front import callers
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import RelayPolicy, TransportPolicy
from peer.transport.relay.wire import MARK, preamble
from peer.v1 import exchange_pb2 as pb
from tests.conformance.test_transport import RUN, TIMEOUT, Owner, record_of
from tests.support.hostile_client import HostileCaller, Refused, ended

LAYOUT = b"L" * 32
CROWD = 1000
MIB = 2**20


class Peer:
    """A production transport on loopback."""

    def __init__(self, rate: float = 1e9) -> None:
        self.identity = Identity.generate()
        self.banned: set[PeerId] = set()
        policy = TransportPolicy(relaying=RelayPolicy(rate=rate))
        self.transport = GrpcTransport(self.identity, RUN, Owner(), RunClock().now, policy)
        self.transport.begin_run(RunTerms(LAYOUT, 2**26, ban_reason=self._ban_reason))
        self.record: PeerRecord = record_of(self.identity.peer_id, "")

    def _ban_reason(self, peer: PeerId) -> str:
        return "it lied" if peer in self.banned else ""

    @property
    def me(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    @property
    def endpoint(self) -> str:
        return self.record.endpoints[0]

    async def start(self) -> None:
        self.record = replace(self.record, endpoints=(f"127.0.0.1:{await self.transport.start('127.0.0.1', 0)}",))


class Street:
    """A relay, and a closed peer with a place there."""

    def __init__(self, relay: Peer, home: Peer, stack: contextlib.AsyncExitStack) -> None:
        self.relay, self.home, self._stack = relay, home, stack
        self.holding: asyncio.Task[None] | None = None

    @property
    def closed(self) -> PeerRecord:
        relays = (RelayAddress(self.relay.me, self.relay.endpoint),)
        return replace(self.home.record, endpoints=(), reachable=False, relays=relays)

    async def peer(self) -> Peer:
        made = Peer()
        await made.start()
        self._stack.push_async_callback(made.transport.close)
        return made

    async def stranger(self, identity: Identity | None = None, run_id: RunId = RUN) -> HostileCaller:
        caller = HostileCaller(self.relay.endpoint, self.relay.me, run_id, identity)
        return await self._stack.enter_async_context(caller)

    async def call(
        self, said: bytes = b"", host: str = "127.0.0.1"
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a plain connection to the relay's port."""
        there, _, port = self.relay.endpoint.rpartition(":")
        reader, writer = await asyncio.open_connection(there, int(port), local_addr=(host, 0))
        self._stack.callback(lambda: writer.transport.abort())
        writer.write(said)
        return reader, writer


@contextlib.asynccontextmanager
async def street() -> AsyncIterator[Street]:
    async with asyncio.timeout(120), contextlib.AsyncExitStack() as stack:
        made = Street(Peer(), Peer(), stack)
        for peer in (made.relay, made.home):
            await peer.start()
            stack.push_async_callback(peer.transport.close)
        granted = asyncio.Event()
        holding = made.home.transport.hold_reservation(made.relay.record, lambda rate, word: granted.set())
        made.holding = asyncio.create_task(holding)
        stack.push_async_callback(_ended, made.holding)
        await granted.wait()
        yield made


async def _ended(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def is_over(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def asked(caller: HostileCaller, token: bytes, target: PeerId) -> bytes:
    """Request a circuit. Return the slip. Raises Refused."""
    reply = await caller.unary("Relay", token, pb.RelayRequest(target=target).SerializeToString())
    return pb.RelayReply.FromString(reply).slip


async def reserved(caller: HostileCaller, token: bytes) -> Refused:
    """Request a place. Return how that ended."""
    call = caller.open("Reserve", token)
    with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        await call.write(b"")
        await call.done_writing()
    return await ended(call)


# -- who gets nothing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [b"", b"x" * 32])
def test_without_a_token_there_is_neither_a_place_nor_a_circuit(token: bytes) -> None:
    async def main() -> None:
        async with street() as here:
            stranger = await here.stranger()
            with pytest.raises(Refused) as refused:
                await asked(stranger, token, here.home.me)
            assert refused.value.code == "no_token"
            assert (await reserved(stranger, token)).code == "no_token"
            assert to_json(here.relay.transport.relay_server.report())["circuits"] == 0
            assert to_json(here.relay.transport.relay_server.report())["reservations"] == 1

    asyncio.run(main())


def test_a_key_of_another_run_gets_no_token() -> None:
    async def main() -> None:
        async with street() as here:
            stranger = await here.stranger(run_id=RunId(b"S" * 32))
            with pytest.raises(Refused) as refused:
                await stranger.hello(layout_digest=LAYOUT)
            assert refused.value.code == "wrong_run"

    asyncio.run(main())


def test_a_banned_key_gets_neither_a_place_nor_a_circuit() -> None:
    async def main() -> None:
        async with street() as here:
            stranger = await here.stranger()
            token = await stranger.hello(layout_digest=LAYOUT)
            here.relay.banned.add(stranger.me)
            with pytest.raises(Refused) as refused:
                await asked(stranger, token, here.home.me)
            assert refused.value.code == "banned"
            assert (await reserved(stranger, token)).code == "banned"

    asyncio.run(main())


def test_a_peer_that_is_banned_loses_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "ALIVE_EVERY_S", 0.1)

    async def main() -> None:
        async with street() as here:
            here.relay.banned.add(here.home.me)
            assert here.holding is not None
            with pytest.raises(PartnerRefused) as refused:
                await here.holding
            assert refused.value.code == "banned"
            assert to_json(here.relay.transport.relay_server.report())["reservations"] == 0

    asyncio.run(main())


def test_a_circuit_leads_to_reserved_peers_alone() -> None:
    async def main() -> None:
        async with street() as here:
            open_one, stranger = await here.peer(), await here.stranger()
            token = await stranger.hello(layout_digest=LAYOUT)
            for target in (open_one.me, here.relay.me, stranger.me, PeerId(""), PeerId("127.0.0.1:22")):
                with pytest.raises(Refused) as refused:
                    await asked(stranger, token, target)
                assert refused.value.code == "unreserved"
            assert len(await asked(stranger, token, here.home.me)) == 16

    asyncio.run(main())


# -- slips -------------------------------------------------------------------------------------------------------------


def test_a_slip_works_once_and_no_other_works() -> None:
    async def main() -> None:
        async with street() as here:
            stranger = await here.stranger()
            slip = await asked(stranger, await stranger.hello(layout_digest=LAYOUT), here.home.me)
            guesses = [bytes(16), slip[:-1] + bytes([slip[-1] ^ 1]), slip[::-1]]
            for guess in guesses:
                reader, _ = await here.call(preamble(guess))
                assert await is_over(reader)
            reader, writer = await here.call()
            for number in range(len(preamble(slip))):
                writer.write(preamble(slip)[number : number + 1])
                await writer.drain()
            told = await reader.readexactly((await reader.readexactly(1))[0])
            assert told.startswith(b"ipv4:127.0.0.1:"), "the closed peer has come"
            again, _ = await here.call(preamble(slip))
            assert await is_over(again)
            writer.write(b"C\x16\x03\x01garbage instead of TLS")
            assert await is_over(reader), "the closed peer's gRPC hangs up"

    asyncio.run(main())


@pytest.mark.parametrize("said", [MARK + b"garbage" * 9, MARK + b"\0" * 16 + b"\x16\x03\x01"])
def test_garbage_after_a_mark_is_dropped(said: bytes) -> None:
    async def main() -> None:
        async with street() as here:
            reader, _ = await here.call(said)
            assert await is_over(reader)

    asyncio.run(main())


def test_a_caller_has_so_many_circuits_and_others_still_get_theirs() -> None:
    async def main() -> None:
        async with street() as here:
            stranger, other = await here.stranger(), await here.peer()
            token = await stranger.hello(layout_digest=LAYOUT)
            for _ in range(CIRCUITS_OF_CALLER):
                await asked(stranger, token, here.home.me)
            with pytest.raises(Refused) as refused:
                await asked(stranger, token, here.home.me)
            assert refused.value.code == "limit"
            await other.transport.hello(here.closed, TIMEOUT)

    asyncio.run(main())


def test_a_relay_that_relays_nothing_says_so() -> None:
    async def main() -> None:
        async with asyncio.timeout(60), contextlib.AsyncExitStack() as stack:
            idle, home = Peer(rate=0.0), Peer()
            for peer in (idle, home):
                await peer.start()
                stack.push_async_callback(peer.transport.close)
            with pytest.raises(PartnerRefused) as refused:
                await home.transport.hold_reservation(idle.record, lambda rate, word: None)
            assert refused.value.code == "off"

    asyncio.run(main())


def test_the_relay_itself_calls_its_closed_peer_too() -> None:
    async def main() -> None:
        async with street() as here:
            await here.relay.transport.hello(here.closed, TIMEOUT)

    asyncio.run(main())


# -- what strangers cost -----------------------------------------------------------------------------------------------


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what a process has in memory")
def test_a_thousand_connections_that_say_nothing_or_half_a_preamble_disturb_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(callers, "block_of_host", lambda host: host.rpartition(".")[0])  # each /24 of loopback

    async def main() -> None:
        async with street() as here, contextlib.AsyncExitStack() as stack:
            partner, caller = await here.peer(), await here.peer()
            await _swap(partner, here.relay, here.relay.record, 0)
            await _swap(caller, here.home, here.closed, 1)
            before, taken = _resident(), 0
            host, _, port = here.relay.endpoint.rpartition(":")
            for number in range(CROWD):
                one = stack.enter_context(socket.socket())
                one.bind((f"127.0.5.{1 + number % 250}", 0))
                one.setblocking(False)
                one.connect_ex((host, int(port)))
                await asyncio.sleep(0)
                with contextlib.suppress(OSError):
                    one.send((b"", MARK, MARK + b"x" * 15, b"\0")[number % 4])
                    taken += 1
            newcomer = await here.peer()
            await _swap(newcomer, here.relay, here.relay.record, 2)
            await _swap(partner, here.relay, here.relay.record, 3)
            await _swap(caller, here.home, here.closed, 4)
            await newcomer.transport.hello(here.closed, TIMEOUT)
            assert here.holding is not None
            assert not here.holding.done()
            grown = _resident() - before
            print(f"{taken} of {CROWD} connections were made, and the process grew by {grown / MIB:.1f} MiB")
            assert grown < 64 * MIB, f"{grown / MIB:.1f} MiB"

    asyncio.run(main())


async def _swap(caller: Peer, other: Peer, called: PeerRecord, round_: int) -> None:
    key, sinks = RoundKey(round_, 0), (BufferSink(50_000), BufferSink(50_000))
    await asyncio.gather(
        caller.transport.swap(called, key, BytesSource(b"1" * 50_000), sinks[0], TIMEOUT, dial=True),
        other.transport.swap(caller.record, key, BytesSource(b"2" * 50_000), sinks[1], TIMEOUT, dial=False),
    )
    assert (sinks[0].data, sinks[1].data) == (b"2" * 50_000, b"1" * 50_000)
