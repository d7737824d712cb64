"""Strangers that open connections and keep them, against a real server over TLS. Each /24 of loopback counts as a block
here, because normally all of loopback is one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from peer.clock.run_clock import RunClock
from peer.errors import AddressError
from peer.identity import Identity
from peer.membership.reputation import Reputation
from peer.node.handler import RequestHandler
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.transport.config import RunTerms
from peer.transport.front import callers
from peer.transport.front.callers import FrontLimits
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import TransportPolicy
from tests.support.hostile_client import HostileCaller, ended
from tests.support.http2_abuse import anybody

RUN = RunId(b"R" * 32)
LIMITS = FrontLimits(connections=24, reserve=4, greet_s=60.0)
CROWD = "127.0.5"
ANSWER_S = 5.0

Ends = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


@pytest.fixture
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "block_of_host", lambda host: host.rpartition(".")[0])


class Served:
    """A peer that strangers call. `proven`: callers that have become proven peers."""

    def __init__(self, limits: FrontLimits, *proven: PeerId) -> None:
        self.identity = Identity.generate()
        reputation = Reputation(RunClock().now, lambda event: None)
        for peer in proven:
            while peer not in reputation.proven:
                reputation.proven.accepted(peer)
        policy = TransportPolicy(reputation=reputation, front=limits)
        self.transport = GrpcTransport(self.identity, RUN, RequestHandler(), RunClock().now, policy)
        self.transport.begin_run(RunTerms(b"L" * 32, 2**20))
        self.port = 0

    def record(self, host: str = "127.0.0.1") -> PeerRecord:
        now = RunClock().now()
        me, endpoint = PeerId(self.identity.peer_id), f"{host}:{self.port}"
        return PeerRecord(me, RUN, (endpoint,), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)

    async def idle(self, host: str, *, tls: bool = True) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection from this address that sends nothing after TLS."""
        return await asyncio.open_connection(
            "127.0.0.1",
            self.port,
            ssl=anybody() if tls else None,
            local_addr=(host, 0),
            server_hostname="x" if tls else None,
        )

    async def crowd(self, many: int, *, tls: bool = True) -> Ends:
        """Open idle connections of one block, as far as they are accepted."""
        ends: Ends = []
        for number in range(many):
            with contextlib.suppress(OSError):
                ends.append(await self.idle(f"{CROWD}.{1 + number}", tls=tls))
        return ends


@contextlib.asynccontextmanager
async def served(limits: FrontLimits = LIMITS, *proven: PeerId) -> AsyncIterator[Served]:
    one = Served(limits, *proven)
    one.port = await one.transport.start("127.0.0.1", 0)
    try:
        yield one
    finally:
        await one.transport.close()


@contextlib.asynccontextmanager
async def caller(identity: Identity | None = None) -> AsyncIterator[GrpcTransport]:
    one = GrpcTransport(identity or Identity.generate(), RUN, RequestHandler(), RunClock().now)
    one.begin_run(RunTerms(b"L" * 32, 2**20))
    try:
        yield one
    finally:
        await one.close()


async def hang_up(ends: Ends) -> None:
    for _, writer in ends:
        writer.transport.abort()


async def until_over(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(2**16):
            continue


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize("tls", [True, False], ids=["idle after TLS", "idle before TLS"])
def test_idle_connections_of_one_block_leave_a_place_to_others(tls: bool) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), served() as server, caller() as honest:
            ends = await server.crowd(LIMITS.connections + 10, tls=tls)
            for _ in range(3):
                await honest.hello(server.record(), ANSWER_S)
            await hang_up(ends)

    asyncio.run(main())


def test_callers_of_one_address_that_prove_no_key_lose_their_places_in_time() -> None:
    async def main() -> None:
        async with asyncio.timeout(90), served(FrontLimits(connections=24, reserve=4, greet_s=1.0)) as server:
            ends = await server.crowd(LIMITS.connections)
            async with caller() as honest:
                for reader, _ in ends:
                    await until_over(reader)
                await honest.hello(server.record(), ANSWER_S)
            await hang_up(ends)

    asyncio.run(main())


@pytest.mark.usefixtures("_blocks")
def test_a_proven_peer_keeps_its_connection_whoever_comes() -> None:
    async def main() -> None:
        me = Identity.generate()
        async with (
            asyncio.timeout(90),
            served(LIMITS, PeerId(me.peer_id)) as server,
            HostileCaller(f"127.0.0.1:{server.port}", PeerId(server.identity.peer_id), RUN, me) as friend,
        ):
            token = await friend.hello(layout_digest=b"L" * 32)
            ends: Ends = []
            for number in range(10, 40):  # one connection from each block, then a crowd from the friend's own block
                with contextlib.suppress(OSError):
                    ends.append(await server.idle(f"127.0.{number}.1"))
                with contextlib.suppress(OSError):
                    ends.append(await server.idle("127.0.0.9"))
            await friend.unary("Amendments", token)
            assert server.transport._service.admission._callers is not None
            assert len(server.transport._service.admission._callers) == LIMITS.connections - LIMITS.reserve + 1
            await hang_up(ends)

    asyncio.run(main())


@pytest.mark.usefixtures("_blocks")
def test_a_stranger_that_proved_a_key_still_loses_its_place_to_a_smaller_block() -> None:
    async def main() -> None:
        async with asyncio.timeout(90), served() as server, contextlib.AsyncExitStack() as stack:
            me = PeerId(server.identity.peer_id)
            for _ in range(LIMITS.connections - LIMITS.reserve):  # keys cost nothing
                sybil = await stack.enter_async_context(HostileCaller(f"127.0.0.1:{server.port}", me, RUN))
                await sybil.hello(layout_digest=b"L" * 32)
            reader, writer = await server.idle(f"{CROWD}.1")
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            assert await reader.read(9), "the newcomer is served"
            await hang_up([(reader, writer)])

    asyncio.run(main())


def test_grpc_behind_the_front_cannot_be_reached_by_a_name() -> None:
    async def main() -> None:
        async with asyncio.timeout(90), served() as server:
            inside = server.transport._server._inside
            assert inside is not None
            assert not inside._named.exists(), "its name is gone, and its folder with it"
            assert not inside._made.exists()

    asyncio.run(main())


def test_a_call_that_does_not_come_from_the_front_is_refused() -> None:
    async def main() -> None:
        async with asyncio.timeout(90), served() as server:
            inside = server.transport._server._inside
            assert inside is not None
            channel = grpc.aio.insecure_channel(f"unix:/proc/self/fd/{inside._socket}")
            call = channel.stream_stream("/peer.v1.Exchange/Hello")()
            assert (await ended(call)).code == "busy"
            await channel.close()

    asyncio.run(main())


def test_the_caller_is_told_its_own_address_and_not_that_of_the_front() -> None:
    async def main() -> None:
        one = Served(LIMITS)
        try:
            one.port = await one.transport.start("127.0.0.1", 0, "::1")
        except AddressError:
            pytest.skip("this machine has no IPv6")
        async with asyncio.timeout(90), caller() as honest, caller() as other:
            welcome = await honest.hello(one.record(), ANSWER_S)
            assert welcome.seen_as.startswith("ipv4:127.0.0.1:")
            welcome = await other.hello(one.record("[::1]"), ANSWER_S)
            assert welcome.seen_as.startswith("ipv6:%5B::1%5D:")
            await one.transport.close()

    asyncio.run(main())
