"""Strangers' records name foreign addresses: no address is flooded, and no private network scanned."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import NotDialled, PartnerLost
from peer.identity import Identity
from peer.lab.attack.silent_address import silent_address
from peer.node.handler import RequestHandler
from peer.protocol.messages import Offer, PeerId, PeerRecord, RoundKey, RunId, Status
from peer.protocol.policy.dial_budget import ADDRESS, PACKETS
from peer.protocol.relay.punching import implausible
from peer.transport.client.dialling import Dialler, OwnPlace
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import OPEN, TransportPolicy
from peer.transport.relay import punch
from peer.transport.relay.caller import punch_to
from peer.transport.relay.pipe import Stream
from peer.transport.server import indirect_probe

RUN = RunId(b"N" * 32)
KEYS, AT_ONCE, CALL_S = 150, 30, 0.2
LISTEN_S = 2.5
"""Longer than gRPC waits before it dials again."""


def record_of(key: Identity, *endpoints: str) -> PeerRecord:
    now = time.time()
    return PeerRecord(PeerId(key.peer_id), RUN, endpoints, True, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)


def fresh(*endpoints: str) -> PeerRecord:
    return record_of(Identity.generate(), *endpoints)


@contextlib.asynccontextmanager
async def node(policy: TransportPolicy = OPEN) -> AsyncIterator[tuple[GrpcTransport, PeerRecord]]:
    key = Identity.generate()
    transport = GrpcTransport(key, RUN, RequestHandler(), RunClock().now, policy)
    try:
        yield transport, record_of(key, f"127.0.0.1:{await transport.start('127.0.0.1', 0)}")
    finally:
        await transport.close()


async def offer(ours: GrpcTransport, to: PeerRecord, timeout_s: float = CALL_S) -> Exception | None:
    try:
        await ours.offer(to, Offer(RoundKey(0, 0)), timeout_s)
    except PartnerLost as error:
        return error
    return None


async def offer_to_all(ours: GrpcTransport, records: list[PeerRecord]) -> list[Exception | None]:
    met: list[Exception | None] = []
    for begin in range(0, len(records), AT_ONCE):
        met += await asyncio.gather(*(offer(ours, record) for record in records[begin : begin + AT_ONCE]))
    return met


def test_an_address_that_many_records_name_is_dialled_a_few_times() -> None:
    async def main() -> None:
        async with silent_address() as silent, node() as (ours, _):
            met = await offer_to_all(ours, [fresh(silent.endpoint) for _ in range(KEYS)])
            assert silent.connections == ADDRESS.burst
            refused = [str(error) for error in met if isinstance(error, NotDialled)]
            assert len(refused) >= KEYS - AT_ONCE, "the first wait a little for those that go before"
            assert f"not dialled: {silent.endpoint} did not answer 3 others" in refused[-1]
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), LISTEN_S)
            assert silent.connections == ADDRESS.burst, "no channel that was given up dials on"

    asyncio.run(main())


def test_peers_that_answer_at_one_host_are_dialled_all() -> None:
    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            ours, _ = await stack.enter_async_context(node())
            others = [(await stack.enter_async_context(node()))[1] for _ in range(8)]
            silent = await stack.enter_async_context(silent_address())
            await offer_to_all(ours, [fresh(silent.endpoint) for _ in range(20)])
            met = await asyncio.gather(*(offer(ours, record, 10.0) for record in others))
            assert met == [None] * 8
            for record in others:
                named = fresh(*record.endpoints)
                assert await offer(ours, named) is not None, "another key does not answer there"
            assert [await offer(ours, record, 10.0) for record in others] == [None] * 8

    asyncio.run(main())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_private_address_is_not_dialled_for_one_who_is_no_neighbour(host: str) -> None:
    place = OwnPlace(endpoints=lambda: ("203.0.113.7:4810",), ticket=("198.51.100.1",))

    async def main() -> None:
        async with silent_address() as silent, node(TransportPolicy(place=place)) as (ours, _):
            error = await offer(ours, fresh(f"{host}:{silent.port}"))
            assert isinstance(error, NotDialled)
            assert silent.connections == 0

    asyncio.run(main())


def test_a_third_peer_is_not_dialled_on_behalf_of_callers_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indirect_probe, "DIAL_S", CALL_S)

    async def main() -> None:
        async with silent_address() as silent, node() as (asked, theirs), node() as (ours, _):
            named = [fresh(silent.endpoint) for _ in range(8)]
            known = {record.peer_id: record for record in named}
            asked._service.call_services.handler.on_vouch = lambda about: (known[about], None)  # type: ignore[method-assign]
            for record in named:
                asked._service.call_services.indirect_probe._asked.clear()  # as if another caller had requested it
                vouched = await ours.vouch(theirs, record.peer_id, 20.0)
            assert vouched.reaches is None, "what was not dialled is not denied"
            assert silent.connections <= 2 * ADDRESS.burst

    asyncio.run(main())


def test_a_relay_that_names_an_address_has_few_packets_sent_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address refuses every connection at once, and a hole punch retries with one packet each time."""
    sent: list[tuple[object, ...]] = []
    reusable = punch.reusable
    monkeypatch.setattr(punch, "reusable", lambda *where: sent.append(where) or reusable(*where))

    async def nobody(stream: Stream) -> bool:
        return False

    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            named = f"127.0.0.1:{closed.getsockname()[1]}"
            held: list[asyncio.StreamWriter] = []
            server = await asyncio.start_server(lambda reader, writer: held.append(writer), "127.0.0.1", 0)
            relay = await punch.connected(*server.sockets[0].getsockname(), 5.0)
            sent.clear()
            dialler = Dialler()
            for number in range(10):
                with pytest.raises((PartnerLost, TimeoutError)):
                    async with asyncio.timeout(0.5):  # a peer punches for two seconds
                        await punch_to(dialler, relay, PeerId(f"caller {number}"), named)(nobody)
            relay.abort()
            server.close()
            for writer in held:
                writer.transport.abort()

    asyncio.run(main())
    assert len(sent) == ADDRESS.burst * PACKETS


@pytest.mark.parametrize("port", [22, 80, 443, 1023])
def test_a_relay_cannot_name_a_service(port: int) -> None:
    assert implausible(f"203.0.113.7:{port}", private_run=False)
    assert not implausible("203.0.113.7:1024", private_run=False)
