"""A relay dies during a swap: the swap continues over another relay, and no relay is blamed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from peer.clock.run_clock import RunClock
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, RelayAddress, RoundKey, SwapReport
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import RelayPolicy, TransportPolicy
from peer.transport.relay import relays
from tests.conformance.test_transport import RUN, Owner, record_of
from tests.support.cutting_relay import Wire, before

TIMEOUT_S = 10.0
NBYTES = 2_400_000  # many times what buffers hold, which is lost with the relay


@pytest.fixture(autouse=True)
def _settle_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "SETTLE_S", 0.6)


class Peer:
    """A production transport. `known`: the newest records that it can find. `left`: the relays that it gave up."""

    def __init__(self) -> None:
        self.identity = Identity.generate()
        self.me = PeerId(self.identity.peer_id)
        self.left, self.known = list[PeerId](), dict[PeerId, PeerRecord]()
        relaying = RelayPolicy(
            rate=1e9, left=lambda relay, why: self.left.append(relay), record_of=lambda peer: self.known.get(peer)
        )
        policy = TransportPolicy(relaying=relaying)
        self.transport = GrpcTransport(self.identity, RUN, Owner(), RunClock().now, policy)
        self.transport.begin_run(RunTerms(b"L" * 32, 2**26))
        self.record = record_of(self.me, "")


@dataclass
class Village:
    """Two relays, each behind its own wire; a closed peer with a place at both; a caller."""

    relays: list[Peer]
    wires: list[Wire]
    home: Peer
    caller: Peer
    addresses: list[RelayAddress] = field(default_factory=list)

    def dies(self, number: int) -> None:
        """Break all connections of a relay, and make it unreachable."""
        self.wires[number].sever()

    async def swap(self, round_: int, *named: RelayAddress) -> tuple[SwapReport, SwapReport]:
        """Swap over the relays that the closed peer names. Check that both sides received the other's payload."""
        closed = replace(self.home.record, endpoints=(), reachable=False, relays=named)
        key, rng = RoundKey(round_, 0), random.Random(round_)
        one, other = rng.randbytes(NBYTES), rng.randbytes(NBYTES)
        sinks = BufferSink(NBYTES), BufferSink(NBYTES)
        caller, home = self.caller, self.home
        reports = await asyncio.gather(
            caller.transport.swap(closed, key, BytesSource(one), sinks[0], TIMEOUT_S, dial=True),
            home.transport.swap(caller.record, key, BytesSource(other), sinks[1], TIMEOUT_S, dial=False),
        )
        assert (bytes(sinks[0].data), bytes(sinks[1].data)) == (other, one)
        return reports[0], reports[1]


@contextlib.asynccontextmanager
async def village() -> AsyncIterator[Village]:
    made = Village([Peer(), Peer()], [Wire(), Wire()], Peer(), Peer())
    async with asyncio.timeout(90), contextlib.AsyncExitStack() as stack:
        for peer in (*made.relays, made.home, made.caller):
            inner = f"127.0.0.1:{await peer.transport.start('127.0.0.1', 0)}"
            stack.push_async_callback(peer.transport.close)
            peer.record = replace(peer.record, endpoints=(inner,))
        for relay, wire in zip(made.relays, made.wires, strict=True):
            where = await stack.enter_async_context(before(relay.record.endpoints[0], wire))
            made.addresses.append(RelayAddress(relay.me, where))
            granted = asyncio.Event()
            holding = made.home.transport.hold_reservation(
                replace(relay.record, endpoints=(where,)), lambda rate, word, told=granted: told.set()
            )
            stack.push_async_callback(_ended, asyncio.create_task(holding))
            await granted.wait()
        yield made


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def test_a_swap_goes_on_over_another_relay_and_the_dead_one_is_not_left() -> None:
    """The relay returns after some seconds. Peers that gave it up for minutes would soon have no relay."""

    async def main() -> None:
        async with village() as here:
            here.wires[0].when(here.wires[0].back + NBYTES, lambda: here.dies(0))  # of two payloads
            first, second = here.addresses
            reports = await here.swap(1, first, second)
            assert [report.way.via for report in reports] == [second.peer_id] * 2
            assert here.wires[1].back < 1.6 * NBYTES, "it went on at the last byte that was there"
            await asyncio.sleep(2 * relays.SETTLE_S)  # what broke has settled
            for peer, other in ((here.caller, here.home), (here.home, here.caller)):
                assert peer.left == []
                assert peer.transport.relays.standing([first.peer_id, second.peer_id]) == [second.peer_id]
                assert peer.transport.relay_gone(other.me, 5.0) == first.peer_id
                assert peer.transport.relay_gone(PeerId("somebody else"), 5.0) is None

    asyncio.run(main())


def test_a_swap_goes_on_over_a_relay_that_the_partner_has_named_since() -> None:
    async def main() -> None:
        async with village() as here:
            first, second = here.addresses

            def dies() -> None:
                here.dies(0)
                newer = replace(here.home.record, endpoints=(), reachable=False, relays=(second,))
                here.caller.known[here.home.me] = newer

            here.wires[0].when(here.wires[0].back + NBYTES // 2, dies)
            report, _ = await here.swap(1, first)
            assert report.way.via == second.peer_id

    asyncio.run(main())


def test_a_list_of_relays_that_changes_breaks_no_swap() -> None:
    """During a swap over a relay, another call uses a newer record that no longer names it."""

    async def main() -> None:
        async with village() as here:
            first, second = here.addresses
            newer = replace(here.home.record, endpoints=(), reachable=False, relays=(second,))
            asking = list[asyncio.Task[object]]()

            def ask() -> None:
                asking.append(asyncio.create_task(here.caller.transport.hello(newer, TIMEOUT_S)))

            here.wires[0].when(here.wires[0].back + NBYTES // 2, ask)
            reports = await here.swap(1, first)
            await asking[0]
            assert [report.way.via for report in reports] == [first.peer_id] * 2

    asyncio.run(main())
