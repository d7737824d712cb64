"""The reservations of a closed peer at relays, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from peer.errors import ExchangeError, PartnerLost, PartnerRefused
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.membership.relay_reservations import LOOK_EVERY_S, SILENT_S, Granted, RelayReservations, RelaySetting
from peer.observe import events
from peer.observe.status.codec import to_json
from peer.protocol.endpoints import host_of
from peer.protocol.messages import MAX_RELAYS, PeerId, PeerRecord, RelayAddress, RelayAttestation, RunId, Status
from peer.protocol.relay.testimony import RelayFault
from peer.protocol.swarm.relay_choice import AGAIN_S, BUSY_S, SHUNNED_S

ME = PeerId("me")
RATE = 5e4


def record(name: str, host: str = "", *, reachable: bool = True) -> PeerRecord:
    endpoint = f"{host or f'203.0.{sum(name.encode()) % 250}.7'}:4810"
    return PeerRecord(
        PeerId(name), RunId(b"r" * 32), (endpoint,), reachable, 1, 1, 0, 1.0, Status.TRAINING, EPOCH, EPOCH + 900
    )


class Swarm:
    """Relays that hold reservations until the test ends them."""

    def __init__(self, *names: str) -> None:
        self.clock = VirtualClock()
        self.records = {PeerId(name): record(name) for name in names}
        self.closed = True
        self.near: set[PeerId] = set()
        self.asked: list[tuple[float, str]] = []
        self.answers: dict[str, ExchangeError] = {}
        """The refusals of these relays."""
        self.held: dict[str, tuple[Granted, asyncio.Future[None]]] = {}
        self.journal: list[events.Event] = []
        self.changes = 0
        self.reservations = RelayReservations(
            self,
            self.clock,
            random.Random(1),
            RelaySetting(
                me=ME,
                closed=lambda: self.closed,
                near=lambda: self.near,
                nodes={PeerId("node")},
                emit=self.journal.append,
                changed=self._changed,
            ),
        )

    def _changed(self) -> None:
        self.changes += 1

    async def hold_reservation(self, relay: PeerRecord, granted: Granted) -> None:
        self.asked.append((self.clock.now() - EPOCH, relay.peer_id))
        await asyncio.sleep(0.2)
        if (error := self.answers.get(relay.peer_id)) is not None:
            raise error
        ended = asyncio.get_running_loop().create_future()
        self.held[relay.peer_id] = granted, ended
        try:
            granted(RATE)
            await ended
        finally:
            del self.held[relay.peer_id]

    def ends(self, name: str, error: ExchangeError) -> None:
        self.held[name][1].set_exception(error)

    def named(self) -> set[str]:
        """Return the relays in our record."""
        return {relay.peer_id for relay in self.reservations.relays()}

    def told(self, kind: type[events.RelayReserved] | type[events.RelayLeft]) -> list[tuple[str, str]]:
        return [(one.relay, one.reason) for one in self.journal if isinstance(one, kind)]

    def left(self) -> list[tuple[str, str]]:
        return self.told(events.RelayLeft)


async def passes(seconds: float) -> None:
    await asyncio.sleep(seconds)  # virtual


def scenario(*names: str) -> Callable[[Callable[[Swarm], Coroutine[Any, Any, None]]], Callable[[], None]]:
    def decorate(test: Callable[[Swarm], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                swarm = Swarm(*names)
                running = asyncio.create_task(swarm.reservations.run(lambda: swarm.records))
                try:
                    await test(swarm)
                finally:
                    running.cancel()
                    await asyncio.wait({running})
                    assert running.cancelled()
                    assert not swarm.held
                    assert not swarm.named()
                    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing is left running"

            run_virtual(main())

        run.__name__ = test.__name__
        return run

    return decorate


@scenario("a", "b", "c", "d", "e", "node")
async def test_a_closed_peer_keeps_three_places_and_names_them(swarm: Swarm) -> None:
    await passes(1.0)
    assert len(swarm.held) == MAX_RELAYS
    assert swarm.named() == set(swarm.held)
    assert "node" in swarm.held, "one of them is the operator's"
    assert {relay.endpoint for relay in swarm.reservations.relays()} == {
        swarm.records[PeerId(name)].endpoints[0] for name in swarm.held
    }
    assert {name for name, _ in swarm.told(events.RelayReserved)} == set(swarm.held)
    assert all(reason for _, reason in swarm.told(events.RelayReserved))
    assert swarm.changes == MAX_RELAYS
    assert swarm.reservations.rate() == RATE
    assert [set(one) for one in to_json(swarm.reservations.report())] == [{"peer_id", "endpoint", "rate"}] * 3
    await passes(3600.0)
    assert len(swarm.asked) == MAX_RELAYS
    assert swarm.changes == MAX_RELAYS
    assert not swarm.left()


@scenario("a", "b", "c")
async def test_an_open_peer_asks_nobody(swarm: Swarm) -> None:
    swarm.closed = False
    await passes(1000.0)
    assert not swarm.asked
    assert not swarm.changes


@scenario("a", "b", "c")
async def test_places_are_given_back_when_others_can_dial_us(swarm: Swarm) -> None:
    await passes(1.0)
    changes = swarm.changes
    swarm.closed = False
    await passes(60.0)
    assert not swarm.held
    assert not swarm.named()
    assert sorted(swarm.left()) == [(name, "others can dial us now") for name in "abc"]
    assert swarm.changes > changes
    swarm.closed = True
    await passes(60.0)
    assert swarm.named() == set("abc"), "nobody is shunned for it"


@scenario()
async def test_only_open_peers_of_other_hosts_and_networks_are_asked(swarm: Swarm) -> None:
    twins = [record(f"twin {number}", "198.51.100.7") for number in range(3)]
    closed, nowhere = record("closed", reachable=False), replace(record("nowhere"), endpoints=())
    others = [record("open", "192.0.2.7"), record("neighbour"), record(ME)]
    swarm.records = {one.peer_id: one for one in [*twins, closed, nowhere, *others]}
    swarm.near = {PeerId("neighbour")}
    await passes(100.0)
    assert len({host_of(relay.endpoint) for relay in swarm.reservations.relays()}) == 2
    assert len(swarm.named()) == 2
    assert "open" in swarm.named()
    assert len({name for _, name in swarm.asked}) == 2


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (PartnerLost("the relay gave no sign of life for 40 s"), "the relay gave no sign of life for 40 s"),
        (PartnerRefused("busy", "your place at this relay went to another peer"), "your place"),
    ],
)
def test_a_relay_that_ends_is_replaced_at_once(error: ExchangeError, reason: str) -> None:
    @scenario("a", "b", "c", "d")
    async def attempt(swarm: Swarm) -> None:
        await passes(1.0)
        lost = next(iter(swarm.held))
        swarm.ends(lost, error)
        await passes(0.5)
        assert len(swarm.named()) == MAX_RELAYS
        assert lost not in swarm.named()
        ((name, why),) = swarm.left()
        assert name == lost
        assert reason in why

    attempt()


@scenario("a", "b", "c", "d")
async def test_a_relay_that_refuses_or_is_not_reached_gives_way_to_another(swarm: Swarm) -> None:
    swarm.answers = {"a": PartnerRefused("off", "this peer relays nothing"), "b": PartnerLost("b: unavailable")}
    await passes(1.0)
    assert swarm.named() == {"c", "d"}
    assert not swarm.left(), "it never was one of ours"
    await passes(BUSY_S - 2.0)
    assert [name for _, name in swarm.asked].count("a") == 1
    swarm.answers.clear()
    await passes(SILENT_S + LOOK_EVERY_S)
    assert len(swarm.named()) == MAX_RELAYS, "it is asked again in a while"


@scenario("a", "b", "c", "d")
async def test_a_relay_that_failed_us_is_left_and_its_name_is_told(swarm: Swarm) -> None:
    await passes(1.0)
    bad = next(iter(swarm.held))
    swarm.reservations.leave(PeerId(bad), RelayFault("broken", "2 of its circuits failed"))
    assert bad not in swarm.named(), "at once"
    assert swarm.left() == [(bad, "2 of its circuits failed")]
    await passes(SHUNNED_S - 10.0)
    assert len(swarm.named()) == MAX_RELAYS
    assert [name for _, name in swarm.asked].count(bad) == 1


@scenario("a", "b", "c")
async def test_a_relay_of_others_that_failed_us_is_told_too_and_not_asked(swarm: Swarm) -> None:
    swarm.reservations.leave(PeerId("a"), RelayFault("broken", "2 of its circuits failed"))
    await passes(1.0)
    assert swarm.left() == [("a", "2 of its circuits failed")]
    assert swarm.named() == {"b", "c"}
    await passes(SHUNNED_S)
    assert swarm.named() == {"a", "b", "c"}


@scenario("a", "b", "c")
async def test_whatever_callers_say_the_last_relay_stays(swarm: Swarm) -> None:
    await passes(1.0)
    for name in list(swarm.held):
        swarm.reservations.leave(PeerId(name), RelayFault("broken", f"{name} failed"))
    (last,) = swarm.named()
    told = [(name, f"{name} failed") for name in "abc"]
    assert sorted(swarm.left()) == told
    swarm.answers = {name: PartnerRefused("busy", "no place") for name in "abc"}
    await passes(SHUNNED_S / 2)
    assert swarm.named() == {last}
    swarm.records[PeerId("d")] = record("d")
    await passes(2 * LOOK_EVERY_S)
    assert swarm.named() == {"d"}, "until there is another one"
    assert sorted(swarm.left()) == told, "and that is told once"


@scenario("a", "b", "c")
async def test_relays_that_failed_are_taken_back_where_there_are_no_others(swarm: Swarm) -> None:
    await passes(1.0)
    for name in list(swarm.held):
        swarm.reservations.leave(PeerId(name), RelayFault("broken", f"{name} failed"))
    await passes(AGAIN_S + 2 * LOOK_EVERY_S)
    assert len(swarm.named()) >= MAX_RELAYS - 1
    asked, left = len(swarm.asked), swarm.left()
    for _ in range(10):
        await passes(SHUNNED_S / 10)
        assert len(swarm.named()) >= MAX_RELAYS - 1, "and kept"
    assert len(swarm.asked) <= asked + 1
    assert swarm.left() == left


@scenario("a", "b", "c")
async def test_a_line_that_was_down_costs_no_more_than_some_seconds(swarm: Swarm) -> None:
    for _ in range(5):
        await passes(600.0)
        assert swarm.named() == set("abc")
        swarm.answers = {name: PartnerLost("network is unreachable") for name in "abc"}
        for name in list(swarm.held):
            swarm.ends(name, PartnerLost("the connection broke"))
        await passes(60.0)
        assert not swarm.named()
        swarm.answers.clear()
        await passes(AGAIN_S + 2 * LOOK_EVERY_S)
        assert swarm.named(), "others can call us again"


@scenario("only")
async def test_an_only_relay_that_restarts_is_found_again_soon_and_not_pestered(swarm: Swarm) -> None:
    await passes(600.0)
    swarm.ends("only", PartnerLost("unavailable"))
    swarm.answers = {"only": PartnerLost("connection refused")}
    asked = len(swarm.asked)
    await passes(600.0)
    assert len(swarm.asked) - asked <= 600.0 / AGAIN_S + 1
    swarm.answers.clear()
    await passes(AGAIN_S + LOOK_EVERY_S + 1.0)
    assert swarm.named() == {"only"}


@scenario("a")
async def test_what_a_relay_says_later_is_in_our_record(swarm: Swarm) -> None:
    await passes(1.0)
    granted, _ = swarm.held["a"]
    word, changes = RelayAttestation("192.0.2.0/24", 77, b"s" * 64), swarm.changes
    granted(2 * RATE, word)
    assert swarm.reservations.relays() == (RelayAddress(PeerId("a"), swarm.records[PeerId("a")].endpoints[0], word),)
    assert swarm.changes == changes + 1
    granted(3 * RATE)
    assert swarm.reservations.relays()[0].attestation == word
    assert swarm.reservations.rate() == 3 * RATE
    assert swarm.changes == changes + 1, "others need not know that"


@scenario("a", "b")
async def test_one_that_breaks_in_an_unforeseen_way_is_forgotten_as_well(swarm: Swarm) -> None:
    await passes(1.0)
    swarm.held["a"][1].cancel()  # as gRPC cancels a call
    await passes(0.1)
    assert "a" in {name for name, _ in swarm.left()}
    await passes(LOOK_EVERY_S + 1.0)
    assert swarm.named() == {"a", "b"}


def test_a_cancellation_while_relays_are_asked_leaves_nothing() -> None:
    @scenario("a", "b", "c")
    async def attempt(swarm: Swarm) -> None:
        await passes(0.1)
        assert len(swarm.asked) == MAX_RELAYS
        assert not swarm.held

    attempt()
