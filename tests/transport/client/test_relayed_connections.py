"""Connections to a closed peer over relays that work, refuse, fail or stall. A real server is behind them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest

from peer.clock.run_clock import RunClock
from peer.codes import Code
from peer.errors import ExchangeError, NotDialled, PartnerLost, PartnerRefused
from peer.identity import Identity
from peer.protocol.messages import PathKind, PeerId, PeerRecord, RelayAddress, Way
from peer.protocol.relay.testimony import RelayFault
from peer.transport.client import connections, relay_fault_finder
from peer.transport.client.connections import Connection, ConnectionPool
from peer.transport.client.dialling import Dialler, OwnPlace
from peer.transport.client.relay_fault_finder import RelayFaultFinder
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from peer.transport.relay.pipe import Stream
from peer.transport.relay.tunnel import RelayTunnel
from tests.conformance.test_transport import RUN, Owner, record_of

TIMEOUT_S = 5.0


class Relays:
    """Relays to one server. `errors`: relay -> error with which opening a circuit fails. `stalled`: relays that never
    answer."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.errors: dict[str, ExchangeError] = {}
        self.stalled: set[str] = set()
        self.asked_s: float | None = 0.01
        self.late: dict[str, float] = {}
        self.left: set[PeerId] = set()
        self.opened: list[str] = []
        self.blamed: list[tuple[str, str]] = []
        self.records: dict[PeerId, PeerRecord] = {}
        self.tries: list[tuple[PeerId, Mapping[PeerId, RelayFault | None]]] = []

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        async def opened(bulk: bool, needs: float) -> tuple[Stream, Way]:
            self.opened.append(relay.peer_id)
            await asyncio.sleep(self.late.get(relay.peer_id, 0.0))
            if relay.peer_id in self.stalled:
                await asyncio.Event().wait()
            if (error := self.errors.get(relay.peer_id)) is not None:
                raise error
            stream = Stream.of(*await asyncio.open_connection("127.0.0.1", self.port))
            return stream, Way(PathKind.RELAYED, relay.peer_id)

        made = RelayTunnel(opened)
        if self.asked_s is not None:
            made.relay_answered(self.asked_s)
        return made

    def known(self, peer: PeerId) -> PeerRecord | None:
        return self.records.get(peer)

    def tried(self, relay: PeerId, found: Mapping[PeerId, RelayFault | None]) -> None:
        self.tries.append((relay, found))

    def standing(self, relays: Iterable[PeerId], to: PeerId) -> Sequence[PeerId]:
        named = list(relays)
        return [relay for relay in named if relay not in self.left] or named

    def may_punch(self, target: PeerId) -> bool:
        return False

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault) -> None:
        self.blamed.append((relay, fault.why))


class Here:
    def __init__(self, home: PeerRecord, relays: Relays, pool: ConnectionPool) -> None:
        self.home, self.relays, self.pool = home, relays, pool
        self.fault_finder = RelayFaultFinder(pool, relays)

    def seek(self, used: Connection, *names: str, silent: bool = True) -> None:
        self.fault_finder.seek(self.over(*names), used, silent=silent)

    def over(self, *names: str) -> PeerRecord:
        relays = tuple(RelayAddress(PeerId(name), "192.0.2.1:4810") for name in names)
        return replace(self.home, endpoints=(), reachable=False, relays=relays)


@contextlib.asynccontextmanager
async def here(dialler: Dialler | None = None) -> AsyncIterator[Here]:
    identity = Identity.generate()
    server = GrpcTransport(identity, RUN, Owner(), RunClock().now)
    server.begin_run(RunTerms(b"L" * 32, 2**20))
    port = await server.start("127.0.0.1", 0)
    relays = Relays(port)
    before = asyncio.all_tasks()
    pool = ConnectionPool(dialler or Dialler(), relays)
    try:
        yield Here(record_of(identity.peer_id, f"127.0.0.1:{port}"), relays, pool)
    finally:
        await pool.close()
        assert not {task.get_name() for task in asyncio.all_tasks() - before} & {"tunnel", "slow relay", "path"}
        await server.close()


def scenario(test: Callable[[Here], Awaitable[None]]) -> Callable[[], None]:
    def run() -> None:
        async def main() -> None:
            async with asyncio.timeout(60), here() as one:
                await test(one)

        asyncio.run(main())

    run.__name__ = test.__name__
    return run


@pytest.fixture(autouse=True)
def _soon_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connections, relay_fault_finder):
        monkeypatch.setattr(module, "SLOW_S", 0.3)


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


@scenario
async def test_the_first_relay_that_leads_there_is_used(one: Here) -> None:
    connection = await one.pool.get(one.over("a", "b"), TIMEOUT_S)
    assert connection.relay == "a"
    assert connection.way().via in ("", "a")
    assert await one.pool.get(one.over("b", "a"), TIMEOUT_S) is connection
    assert one.relays.opened == ["a"]
    assert (await one.pool.get(one.over("b"), TIMEOUT_S)).relay == "b", "it has left that relay"
    assert not one.relays.blamed


@scenario
async def test_one_that_fails_gives_way_at_once_and_is_blamed(one: Here) -> None:
    one.relays.errors["a"] = PartnerLost("the relay hung up")
    assert (await one.pool.get(one.over("a", "b"), TIMEOUT_S)).relay == "b"
    assert one.relays.blamed == [("a", "the relay hung up")]


@scenario
async def test_one_that_refuses_is_not_blamed(one: Here) -> None:
    """A relay that refuses a call is not at fault: the peer's record may name a relay at which the peer no longer has a
    place."""
    one.relays.errors["a"] = PartnerRefused("unreserved", "that peer has no place at this relay")
    assert (await one.pool.get(one.over("a", "b"), TIMEOUT_S)).relay == "b"
    with pytest.raises(PartnerLost, match="no place at this relay"):
        await one.pool.get(one.over("a"), TIMEOUT_S)
    assert not one.relays.blamed


@scenario
async def test_one_that_stalls_is_found_out_though_another_one_wins(one: Here) -> None:
    one.relays.stalled.add("a")
    assert (await one.pool.get(one.over("a", "b"), TIMEOUT_S)).relay == "b"
    await until(lambda: bool(one.relays.blamed))
    assert one.relays.blamed == [("a", "nobody answered over it within 0 s")]
    await until(lambda: not one.pool._lingering)


@scenario
async def test_a_peer_that_is_silent_over_one_relay_is_looked_for_over_the_others(one: Here) -> None:
    """Fault: every call to this peer would use the stalling relay, round after round."""
    await one.pool.get(one.over("a", "b"), TIMEOUT_S)
    another = PeerId("another")
    one.pool._open[another] = one.pool._open.pop(one.home.peer_id)
    first = await one.pool.get(one.over("a", "b"), TIMEOUT_S)
    one.seek(first, "a", "b")
    one.seek(first, "a", "b")
    await until(lambda: not one.pool._lingering)
    assert (await one.pool.get(one.over("a", "b"), TIMEOUT_S)).relay == "b"
    assert one.relays.opened[:2] == ["a", "a"]
    assert sorted(one.relays.opened[2:]) == ["a", "b"], "it was asked once more over both"
    assert one.pool.open_connection(another) is None, "nor is another peer asked over it first"
    assert one.relays.blamed == [("a", "a peer was silent over it, and answered over another relay")]


def witness(one: Here, name: str, *relays: str) -> PeerId:
    """Let another peer be called over the first of these relays. It shares the first peer's address, so only the first
    peer's key answers there, and calls with its own key fail."""
    peer = PeerId(name)
    one.relays.records[peer] = replace(one.over(*relays), peer_id=peer)
    one.pool._open[peer] = one.pool._open.pop(one.home.peer_id)
    return peer


@pytest.mark.parametrize("silent", [True, False])
def test_a_relay_over_which_a_peer_answers_no_more_is_tried_and_who_is_not_there_is_no_witness(silent: bool) -> None:
    @scenario
    async def attempt(one: Here) -> None:
        await one.pool.get(one.over("a", "b"), TIMEOUT_S)
        witness(one, Identity.generate().peer_id, "a", "b")
        first = await one.pool.get(one.over("a", "b"), TIMEOUT_S)
        one.relays.stalled.add("a")
        one.seek(first, "a", "b", silent=silent)
        await until(lambda: not one.fault_finder._sought)
        ((relay, found),) = one.relays.tries
        assert (relay, list(found)) == ("a", [one.home.peer_id])
        (fault,) = found.values()
        assert fault is not None
        assert fault.code == Code.LATE
        assert (await one.pool.get(one.over("a", "b"), TIMEOUT_S)).relay == "b"

    attempt()


@scenario
async def test_a_slow_relay_that_answers_slowly_itself_is_waited_for(one: Here) -> None:
    first = await one.pool.get(one.over("a", "b"), TIMEOUT_S)
    one.relays.late["a"] = 0.6
    one.relays.asked_s = 0.3
    one.seek(first, "a", "b", silent=False)
    await until(lambda: not one.fault_finder._sought)
    assert not one.relays.tries
    assert not one.relays.blamed
    one.relays.asked_s = 0.01
    one.seek(first, "a", "b", silent=False)
    await until(lambda: not one.fault_finder._sought)
    assert [relay for relay, _ in one.relays.tries] == ["a"], "one that answers at once has no reason"


@pytest.mark.parametrize("error", [PartnerRefused("unreserved", "no place"), PartnerLost("the relay hung up")])
def test_a_relay_that_refuses_or_is_gone_itself_is_not_tried(error: ExchangeError) -> None:
    @scenario
    async def attempt(one: Here) -> None:
        first = await one.pool.get(one.over("a", "b"), TIMEOUT_S)
        one.relays.errors["a"] = error
        one.relays.asked_s = None
        one.seek(first, "a", "b", silent=False)
        await until(lambda: not one.fault_finder._sought)
        assert not one.relays.tries

    attempt()


@scenario
async def test_where_a_peer_is_silent_over_all_relays_none_is_blamed(one: Here) -> None:
    one.relays.stalled.update("bc")
    first = await one.pool.get(one.over("a"), TIMEOUT_S)
    one.seek(first, "a", "b", "c")
    await until(lambda: not one.pool._lingering)
    one.relays.errors["b"] = PartnerLost("the relay hung up")
    one.seek(first, "a", "b")
    await until(lambda: not one.pool._lingering)
    one.seek(first, "a")
    assert not one.pool._lingering, "there is no other way"
    assert await one.pool.get(one.over("a"), TIMEOUT_S) is first
    assert not one.relays.blamed


@scenario
async def test_a_transfer_under_way_keeps_its_connection(one: Here) -> None:
    first = await one.pool.get(one.over("a", "b"), TIMEOUT_S)
    async with first.in_use():
        one.seek(first, "a", "b")
        await until(lambda: not one.pool._lingering)
        assert await one.pool.get(one.over("b"), TIMEOUT_S) is first
    assert one.relays.blamed


@scenario
async def test_one_that_stalls_alone_is_blamed_at_the_callers_deadline(one: Here) -> None:
    one.relays.stalled.add("a")
    with pytest.raises(PartnerLost, match="cannot connect to relay:a"):
        await one.pool.get(one.over("a"), 0.5)
    await until(lambda: bool(one.relays.blamed))


@scenario
async def test_a_relay_that_was_left_is_used_when_there_is_no_other(one: Here) -> None:
    one.relays.left = {PeerId("a")}
    assert (await one.pool.get(one.over("a", "b"), TIMEOUT_S)).relay == "b"
    assert (await one.pool.get(one.over("a"), TIMEOUT_S)).relay == "a"
    assert one.relays.opened == ["b", "a"]


@scenario
async def test_somebody_else_behind_a_relay_is_not_taken_for_the_peer(one: Here) -> None:
    stranger = replace(one.over("a"), peer_id=PeerId(Identity.generate().peer_id))
    with pytest.raises(PartnerLost, match="nobody answered over it with the peer's key"):
        await one.pool.get(stranger, TIMEOUT_S)
    assert [relay for relay, _ in one.relays.blamed] == ["a"]


@scenario
async def test_a_caller_that_gives_up_leaves_nothing(one: Here) -> None:
    one.relays.stalled.update("ab")
    getting = asyncio.create_task(one.pool.get(one.over("a", "b"), TIMEOUT_S))
    await until(lambda: len(one.relays.opened) == 2)
    getting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await getting
    await one.pool.close()
    assert not one.pool._lingering


@scenario
async def test_one_that_can_be_dialled_is_not_called_over_relays(one: Here) -> None:
    record = replace(one.home, relays=one.over("a").relays)
    assert (await one.pool.get(record, TIMEOUT_S)).relay is None
    nowhere = replace(one.home, endpoints=("127.0.0.1:1",), relays=one.over("a").relays)
    with pytest.raises(PartnerLost):
        await one.pool.get(nowhere, TIMEOUT_S)
    assert not one.relays.opened


def test_why_a_relay_failed_is_told_though_an_address_was_not_dialled() -> None:
    async def main() -> None:
        abroad = Dialler(OwnPlace(endpoints=lambda: ["203.0.113.7:1"], ticket=("203.0.113.9",)))
        async with asyncio.timeout(60), here(abroad) as one:
            one.relays.errors["a"] = PartnerLost("the relay hung up")
            record = replace(one.over("a"), endpoints=("10.0.0.7:4810",))
            with pytest.raises(PartnerLost, match="the relay hung up") as lost:
                await one.pool.get(record, TIMEOUT_S)
            assert not isinstance(lost.value, NotDialled)
            with pytest.raises(NotDialled):
                await one.pool.get(replace(record, relays=()), TIMEOUT_S)

    asyncio.run(main())
