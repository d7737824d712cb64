"""Tests of which peers get reservations and circuits, and which slips are valid."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.relay.circuits import (
    CIRCUITS,
    CIRCUITS_FOR_PROVEN,
    CIRCUITS_OF_CALLER,
    CIRCUITS_OF_TARGET,
    CLAIM_S,
    OF_TARGET_FOR_PROVEN,
    RESERVATIONS,
    RESERVED_FOR_PROVEN,
    SLIP_BYTES,
    Circuit,
    CircuitRefused,
    CircuitTable,
)

NOW = 1000.0
HOME, CALLER = PeerId("home"), PeerId("caller")


class Relay:
    """A circuit table, with the circuits that it closed to make room for others."""

    def __init__(self, *reserved: str, seed: int = 1) -> None:
        self.table = CircuitTable(random.Random(seed))
        self.ended: list[Circuit] = []
        for number, name in enumerate(reserved):
            self.table.reserve(PeerId(name), f"home block {number}", proven=False)

    def call(
        self, caller: str = CALLER, target: str = HOME, block: str = "here", *, proven: bool = False, now: float = NOW
    ) -> Circuit:
        circuit, ended = self.table.open_circuit(
            PeerId(caller), PeerId(target), block, bulk=True, proven=proven, now=now
        )
        if ended is not None:
            self.ended.append(ended)
        return circuit


def test_a_slip_of_each_end_leads_to_its_circuit_once() -> None:
    relay = Relay(HOME)
    circuit = relay.call()
    assert (circuit.caller_slip.owner, circuit.target_slip.owner) == (CALLER, HOME)
    assert len(circuit.caller_slip.code) == len(circuit.target_slip.code) == SLIP_BYTES
    assert relay.table.claim(circuit.target_slip.code, NOW) == (circuit, False)
    assert relay.table.claim(circuit.caller_slip.code, NOW + 1) == (circuit, True)
    assert relay.table.claim(circuit.caller_slip.code, NOW + 1) is None
    assert relay.table.claim(circuit.target_slip.code, NOW + 1) is None
    assert relay.table.open == 1, "both ends are there: it goes on"
    relay.table.close(circuit)
    assert relay.table.open == 0


def test_a_slip_is_good_for_some_seconds() -> None:
    relay = Relay(HOME)
    circuit = relay.call()
    assert relay.table.claim(circuit.target_slip.code, NOW + CLAIM_S - 0.001) == (circuit, False)
    assert relay.table.claim(circuit.caller_slip.code, NOW + CLAIM_S) is None
    assert relay.table.open == 0, "the end that came in time alone is no circuit"


@pytest.mark.parametrize("shown", [b"", b"\0" * SLIP_BYTES, b"x" * 1000])
def test_what_was_not_drawn_is_no_slip(shown: bytes) -> None:
    relay = Relay(HOME)
    circuit = relay.call()
    assert relay.table.claim(shown, NOW) is None
    assert relay.table.claim(circuit.caller_slip.code[:-1], NOW) is None
    assert relay.table.claim(circuit.caller_slip.code, NOW) == (circuit, True)


def test_no_slip_comes_twice() -> None:
    relay, slips = Relay(HOME), Counter[bytes]()
    for _ in range(500):
        circuit = relay.call()
        slips.update([circuit.caller_slip.code, circuit.target_slip.code])
        relay.table.close(circuit)
    assert len(slips) == 1000


@pytest.mark.parametrize("target", ["nobody", CALLER, ""])
def test_a_circuit_leads_to_a_reserved_peer_and_to_nobody_else(target: str) -> None:
    relay = Relay(HOME, CALLER)
    with pytest.raises(CircuitRefused) as refused:
        relay.call(target=target)
    assert refused.value.code == "unreserved"


def test_a_place_that_was_given_back_leads_nowhere_and_open_circuits_go_on() -> None:
    relay = Relay(HOME)
    circuit = relay.call()
    relay.table.release(HOME)
    relay.table.release(HOME)
    assert not relay.table.has_place(HOME)
    with pytest.raises(CircuitRefused):
        relay.call()
    assert relay.table.claim(circuit.caller_slip.code, NOW) == (circuit, True)


def test_a_peer_that_reserves_again_keeps_its_place() -> None:
    relay = Relay(HOME)
    assert relay.table.reserve(HOME, "home block 0", proven=False) is None
    assert relay.table.reserved == 1


def test_the_block_that_holds_most_places_loses_one_to_a_newcomer_and_proven_peers_lose_none() -> None:
    table = CircuitTable(random.Random(1))
    for number in range(RESERVATIONS - RESERVED_FOR_PROVEN):
        assert table.reserve(PeerId(f"sybil {number}"), "crowd", proven=False) is None
    with pytest.raises(CircuitRefused) as refused:
        table.reserve(PeerId("one more"), "crowd", proven=False)
    assert refused.value.code == "busy"
    lost = table.reserve(HOME, "home block", proven=False)
    assert lost == f"sybil {RESERVATIONS - RESERVED_FOR_PROVEN - 1}", "the youngest"
    for number in range(RESERVED_FOR_PROVEN):
        table.reserve(PeerId(f"friend {number}"), "crowd", proven=True)
    assert all(table.has_place(PeerId(f"friend {number}")) for number in range(RESERVED_FOR_PROVEN))
    assert table.reserved == RESERVATIONS


def test_a_caller_has_so_many_circuits_and_no_more() -> None:
    relay = Relay(HOME, "other")
    mine = [relay.call() for _ in range(CIRCUITS_OF_CALLER)]
    with pytest.raises(CircuitRefused) as refused:
        relay.call(target="other", proven=True)
    assert refused.value.code == "limit"
    relay.table.close(mine[3])
    relay.call(target="other")
    assert not relay.ended


def test_circuits_that_nobody_came_for_count_no_more() -> None:
    relay = Relay(HOME)
    for _ in range(CIRCUITS_OF_CALLER):
        relay.call()
    relay.call(now=NOW + CLAIM_S)
    assert relay.table.open == 1


def test_one_address_with_many_keys_does_not_take_a_peer_from_the_others() -> None:
    relay = Relay(HOME)
    strangers = CIRCUITS_OF_TARGET - OF_TARGET_FOR_PROVEN
    crowd = [relay.call(f"key {number}", block="crowd") for number in range(strangers)]
    with pytest.raises(CircuitRefused) as refused:
        relay.call("key 99", block="crowd")
    assert refused.value.code == "busy"
    relay.call("somebody", block="elsewhere")
    assert relay.ended == [crowd[-1]], "the youngest of the crowd gives way"
    assert relay.table.claim(crowd[-1].caller_slip.code, NOW) is None, "and its slips are void"
    for number in range(OF_TARGET_FOR_PROVEN):
        relay.call(f"friend {number}", block="crowd", proven=True)
    assert len(relay.ended) == 1
    assert relay.table.open == CIRCUITS_OF_TARGET


def test_one_address_with_many_keys_does_not_take_the_relay_from_the_others() -> None:
    homes = [f"home {number}" for number in range(10)]
    relay, strangers = Relay(*homes), CIRCUITS - CIRCUITS_FOR_PROVEN
    for number in range(strangers):
        relay.call(f"key {number}", homes[number % len(homes)], "crowd")
    with pytest.raises(CircuitRefused, match="ask another relay"):
        relay.call("key 99", homes[0], "crowd")
    for number in range(30):
        relay.call(f"somebody {number}", homes[number % len(homes)], f"block {number}")
    assert len(relay.ended) == 30
    assert all(ended.caller_slip.owner.startswith("key") for ended in relay.ended)
    assert relay.table.open == strangers


@pytest.mark.parametrize("seed", range(10))
def test_whatever_comes_the_books_agree(seed: int) -> None:
    """Circuits are opened, claimed, closed, late and refused at random: the limits hold, and in the end nothing is
    left."""
    rng, homes, now = random.Random(seed), [f"home {number}" for number in range(6)], NOW
    relay, open_ones = Relay(*homes, seed=seed), list[Circuit]()
    for _ in range(2000):
        now += rng.expovariate(8.0)
        relay.ended.clear()
        action = rng.random()
        if action < 0.7:
            caller, block, proven = f"key {rng.randrange(30)}", f"block {rng.randrange(5)}", rng.random() < 0.2
            try:
                open_ones.append(relay.call(caller, rng.choice(homes), block, proven=proven, now=now))
            except CircuitRefused:
                assert not relay.ended
            for ended in relay.ended:
                open_ones.remove(ended)
        elif open_ones and action < 0.9:
            circuit = rng.choice(open_ones)
            relay.table.claim(rng.choice([circuit.caller_slip, circuit.target_slip]).code, now)
        elif open_ones:
            relay.table.close(open_ones.pop(rng.randrange(len(open_ones))))
        live = list(relay.table._circuits.values())
        assert relay.table.open == len(live) == len(relay.table._shares) <= CIRCUITS
        assert max(Counter(one.caller_slip.owner for one in live).values(), default=0) <= CIRCUITS_OF_CALLER
        of_targets = Counter(one.target_slip.owner for one in live)
        assert all(count <= CIRCUITS_OF_TARGET for count in of_targets.values())
        assert of_targets == {target: len(places) for target, places in relay.table._of_target.items()}
        assert len(relay.table._slips) <= 2 * relay.table.open
    for circuit in open_ones:
        relay.table.close(circuit)
    relay.table.claim(b"", now + CLAIM_S)
    assert not relay.table._circuits
    assert not relay.table._slips
    assert not relay.table._of_target
