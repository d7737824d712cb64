"""A relay reads, alters, drops or delays the forwarded bytes, or mixes up two circuits. It must learn and change
nothing, and peers must give it up."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import PartnerLost, PartnerSilent
from peer.identity import Identity
from peer.protocol.messages import PathKind, PeerId, PeerRecord, RelayAddress, RoundKey, SwapReport
from peer.protocol.relay.testimony import RelayFault
from peer.protocol.wire.payload import BufferSink, BytesSource
from peer.transport import grpc_transport
from peer.transport.client import connections, relay_fault_finder
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.policy import RelayPolicy, TransportPolicy
from peer.transport.relay import relays
from peer.transport.server import swap_rendezvous
from peer.transport.wire import payload_stream
from tests.conformance.test_transport import RUN, Owner, record_of
from tests.support.meddling_relay import Meddler, before

TIMEOUT_S = 15.0
NBYTES, NEEDS = 400_000, 1000.0
"""Of one payload, and bytes per second without which a swap would be too slow: each swap opens circuits of its own."""
STALL_S, SLOW_S = 0.7, 0.6


class Peer:
    """A production transport, with the relays that it gave up."""

    def __init__(self) -> None:
        self.identity, self.owner = Identity.generate(), Owner()
        self.left: list[PeerId] = []
        self.faults: list[RelayFault] = []
        policy = TransportPolicy(relaying=RelayPolicy(rate=1e9, left=self._leaves))
        self.transport = GrpcTransport(self.identity, RUN, self.owner, RunClock().now, policy)
        self.transport.begin_run(RunTerms(b"L" * 32, 2**26))
        self.record: PeerRecord = record_of(self.identity.peer_id, "")

    def _leaves(self, relay: PeerId, fault: RelayFault) -> None:
        self.left.append(relay)
        self.faults.append(fault)

    @property
    def me(self) -> PeerId:
        return PeerId(self.identity.peer_id)

    async def start(self) -> None:
        port = await self.transport.start("127.0.0.1", 0)
        self.record = replace(self.record, endpoints=(f"127.0.0.1:{port}",))


@dataclass
class Street:
    """Two relays, one of which lies; a closed peer with places at both; two callers."""

    liar: Peer
    honest: Peer
    home: Peer
    callers: list[Peer]
    meddler: Meddler

    @property
    def closed(self) -> PeerRecord:
        """Return the closed peer's record, which names the lying relay first."""
        return replace(self.home.record, endpoints=(), reachable=False, relays=self._relays)

    _relays: tuple[RelayAddress, ...] = ()

    async def swap(self, caller: Peer, round_: int) -> tuple[SwapReport, SwapReport]:
        """Swap between a caller and the closed peer. Check that both received the other's payload."""
        key, rng = RoundKey(round_, 0), random.Random(round_)
        one, other = rng.randbytes(NBYTES), rng.randbytes(NBYTES)
        sinks = BufferSink(NBYTES), BufferSink(NBYTES)
        reports = await asyncio.gather(
            caller.transport.swap(self.closed, key, BytesSource(one), sinks[0], TIMEOUT_S, dial=True, needs=NEEDS),
            self.home.transport.swap(caller.record, key, BytesSource(other), sinks[1], TIMEOUT_S, dial=False),
        )
        assert (bytes(sinks[0].data), bytes(sinks[1].data)) == (other, one)
        return reports[0], reports[1]


@contextlib.asynccontextmanager
async def street(*, listens: bool = False) -> AsyncIterator[Street]:
    peers = [Peer() for _ in range(5)]
    async with contextlib.AsyncExitStack() as stack:
        for peer in peers:
            await peer.start()
            stack.push_async_callback(peer.transport.close)
        liar, honest, home, *callers = peers
        made = Street(liar, honest, home, callers, Meddler(listens=listens))
        where = await stack.enter_async_context(before(liar.record.endpoints[0], made.meddler))
        liar.record = replace(liar.record, endpoints=(where,))
        made._relays = tuple(RelayAddress(one.me, one.record.endpoints[0]) for one in (liar, honest))
        for relay in (liar, honest):
            granted = asyncio.Event()
            holding = home.transport.hold_reservation(relay.record, lambda rate, word, told=granted: told.set())
            task = asyncio.create_task(holding)
            stack.push_async_callback(_cancelled, task)
            await granted.wait()
        yield made


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (payload_stream, swap_rendezvous):
        monkeypatch.setattr(module, "STALL_S", STALL_S)
    for pool in (connections, relay_fault_finder):
        monkeypatch.setattr(pool, "SLOW_S", SLOW_S)
    monkeypatch.setattr(grpc_transport, "ASK_RELAY_S", 3.0)
    monkeypatch.setattr(relays, "SETTLE_S", 0.1)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.02)


@contextlib.contextmanager
def first_named_wins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the relay that is named first win, however busy the machine is."""
    with monkeypatch.context() as patched:
        patched.setattr(connections, "STAGGER_S", TIMEOUT_S)
        yield


WAYS = ["flips_a_bit", "drops_some", "swaps_streams", "passes_nothing_on"]


@pytest.mark.parametrize("how", WAYS)
def test_a_swap_over_a_relay_that_begins_to_lie_goes_on_over_another_one(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), street() as here:
            with first_named_wins(monkeypatch):
                for number, caller in enumerate(here.callers):
                    report, _ = await here.swap(caller, number)
                    assert report.way.via == here.liar.me, "it is honest at first"
            here.meddler.begin(getattr(here.meddler, how), after=NBYTES // 2)
            callers = here.callers if how == "passes_nothing_on" else here.callers[:1] * 2
            for number, caller in enumerate(callers):  # a single breach may be the other end's fault
                reports = await here.swap(caller, 10 + number)
                for report in reports:
                    assert report.sent_all
                    assert (report.way.path, report.way.via) == (PathKind.RELAYED, here.honest.me)
                await until(lambda caller=caller: not caller.transport._pool._lingering)
                await caller.transport.forget_connections()  # so that the next swap opens a new circuit
            await until(lambda: here.liar.me in here.callers[0].left)
            assert all(here.honest.me not in peer.left for peer in (here.home, *here.callers))

    asyncio.run(main())


@pytest.mark.parametrize("how", WAYS)
def test_a_relay_that_lies_from_the_start_is_left_after_two_calls(how: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), street() as here:
            here.meddler.begin(getattr(here.meddler, how))
            caller = here.callers[0]
            for number in range(2):
                report, _ = await here.swap(caller, number)
                assert report.way.via == here.honest.me
                await until(lambda: not caller.transport._pool._lingering)
                await caller.transport.forget_connections()
            await until(lambda: caller.left == [here.liar.me])
            assert not here.home.left

    asyncio.run(main())


@pytest.mark.parametrize("how", ["flips_a_bit", "passes_nothing_on"])
def test_where_there_is_no_other_relay_a_swap_fails_and_its_content_is_never_wrong(how: str) -> None:
    async def main() -> None:
        async with asyncio.timeout(90), street() as here:
            here._relays = here._relays[:1]
            caller = here.callers[0]
            await caller.transport.hello(here.closed, TIMEOUT_S)
            here.meddler.begin(getattr(here.meddler, how), after=NBYTES // 2)
            key, sinks = RoundKey(7, 0), (BufferSink(NBYTES), BufferSink(NBYTES))
            results = await asyncio.gather(
                caller.transport.swap(here.closed, key, BytesSource(b"1" * NBYTES), sinks[0], 1.5, dial=True),
                here.home.transport.swap(caller.record, key, BytesSource(b"2" * NBYTES), sinks[1], 1.5, dial=False),
                return_exceptions=True,
            )
            assert all(isinstance(result, PartnerLost) for result in results)
            assert set(bytes(sinks[0].data)) <= {0, ord("2")}
            assert set(bytes(sinks[1].data)) <= {0, ord("1")}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("how", "codes"),
    [
        ("flips_a_bit", {"broken"}),
        ("drops_some", {"late", "silent"}),
        ("swaps_streams", {"broken", "late", "silent"}),
        ("delays", {"late", "silent"}),
    ],
)
def test_one_that_was_honest_for_long_and_begins_to_lie_is_named_at_the_first_call(
    how: str, codes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fault: after the first failure no call uses this relay any more, so if past successes counted, the lie would
    never be reported."""

    async def main() -> None:
        async with asyncio.timeout(90), street() as here:
            caller = here.callers[0]
            with first_named_wins(monkeypatch):
                for number in range(12):
                    await caller.transport.fetch_peers(here.closed, b"", TIMEOUT_S)
                    if number % 6 == 0:
                        await here.swap(caller, number)
            assert caller.transport.answered_at(here.home.me).endswith(here.liar.me), "it is honest at first"
            here.meddler.begin(getattr(here.meddler, how))
            with contextlib.suppress(PartnerLost):
                await caller.transport.fetch_peers(here.closed, b"", 0.4)
            await until(lambda: bool(caller.left))
            assert caller.left == [here.liar.me]
            assert {fault.code for fault in caller.faults} <= codes
            await caller.transport.fetch_peers(here.closed, b"", TIMEOUT_S)
            assert caller.transport.answered_at(here.home.me).endswith(here.honest.me)

    asyncio.run(main())


def test_calls_over_a_relay_that_begins_to_stall_go_over_another_one() -> None:
    """The connection to the relay stays open but delivers nothing. Fault: callers would use it again in every round."""

    async def main() -> None:
        async with asyncio.timeout(90), street() as here:
            caller = here.callers[0].transport
            await caller.hello(here.closed, TIMEOUT_S)
            assert caller.answered_at(here.home.me).endswith(here.liar.me)
            here.meddler.begin(here.meddler.passes_nothing_on)
            with pytest.raises(PartnerSilent):
                await caller.fetch_peers(here.closed, b"", 0.4)
            await until(lambda: caller.answered_at(here.home.me).endswith(here.honest.me))
            await caller.fetch_peers(here.closed, b"", TIMEOUT_S)

    asyncio.run(main())


def test_a_relay_sees_no_payload_and_no_token() -> None:
    async def main() -> None:
        async with asyncio.timeout(90), street(listens=True) as here:
            caller, marker = here.callers[0], b"a payload that nobody else should read; "
            data, sinks = (
                marker * (NBYTES // len(marker)),
                [BufferSink(NBYTES // len(marker) * len(marker)) for _ in "12"],
            )
            await asyncio.gather(
                caller.transport.swap(here.closed, RoundKey(7, 0), BytesSource(data), sinks[0], TIMEOUT_S, dial=True),
                here.home.transport.swap(
                    caller.record, RoundKey(7, 0), BytesSource(data), sinks[1], TIMEOUT_S, dial=False
                ),
            )
            seen = bytes(here.meddler.seen)
            assert here.meddler.ends >= 4, "the circuits for control and for bulk have two ends each"
            assert len(seen) >= 2 * len(data), "all of it passed here"
            assert marker[:16] not in seen
            tokens = [held.token for peer in (caller, here.home) for held in peer.transport._pool._open.values()]
            assert len([token for token in tokens if token]) >= 2, "with the closed peer, and with the relay"
            assert all(token not in seen for token in tokens if token)
            for peer in (caller, here.home):
                assert peer.me.encode() not in seen
                assert peer.identity.public_key not in seen or peer is here.home

    asyncio.run(main())
