"""A closed peer's choice of relays: which relays it reserves, tries and gives up."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from peer.protocol.endpoints import block_of, host_of
from peer.protocol.messages import MAX_RELAYS, PeerId, RelayAddress
from peer.protocol.swarm.relay_choice import (
    AGAIN_S,
    BUSY_S,
    MOST_SHUNNED_S,
    MUCH,
    SETTLED_S,
    SHUNNED_S,
    HeldRelay,
    RelayCandidate,
    RelayMemory,
    choose_relays,
)

NOW = 10_000.0


def relay(
    name: str, host: str, *, trip_s: float | None = 0.05, offered: float | None = None, node: bool = False
) -> RelayCandidate:
    return RelayCandidate(RelayAddress(PeerId(name), f"{host}:4810"), trip_s, offered, node)


def many(count: int) -> list[RelayCandidate]:
    return [relay(f"relay {n}", f"203.0.{n}.7") for n in range(count)]


def hold(*relays: RelayCandidate, since: float = NOW - 60) -> list[HeldRelay]:
    return [HeldRelay(one, since) for one in relays]


def names(asked: dict[RelayAddress, str]) -> list[str]:
    return [address.peer_id for address in asked]


def test_a_peer_without_relays_asks_three_of_different_blocks() -> None:
    near = [relay(f"near {n}", f"198.51.100.{n}") for n in range(20)]
    chosen = choose_relays([*near, *many(2)], [], RelayMemory(), NOW, random.Random(1))
    assert len(chosen.ask) == MAX_RELAYS
    assert len({block_of(one.endpoint) for one in chosen.ask}) == MAX_RELAYS
    assert set(chosen.ask.values()) == {"another host and address block"}


def test_one_block_is_better_than_nothing_but_one_host_gets_one_reservation() -> None:
    near = [relay(f"near {n}", f"198.51.100.{n % 2}") for n in range(20)]
    chosen = choose_relays(near, [], RelayMemory(), NOW, random.Random(1))
    assert len(chosen.ask) == 2
    assert len({host_of(one.endpoint) for one in chosen.ask}) == 2
    assert list(chosen.ask.values()) == ["another host and address block", "another host"]


def test_an_only_relay_is_enough() -> None:
    node = relay("node", "192.0.2.1", node=True)
    assert names(dict(choose_relays([node], [], RelayMemory(), NOW, random.Random(1)).ask)) == ["node"]
    held = choose_relays([node], hold(node), RelayMemory(), NOW, random.Random(1))
    assert (held.keep, held.ask, held.leave) == (("node",), {}, {})


def test_one_of_the_three_is_a_node_of_the_operator_though_it_is_slow() -> None:
    node = relay("node", "192.0.2.1", trip_s=2.0, node=True)
    chosen = choose_relays([*many(20), node], [], RelayMemory(), NOW, random.Random(1))
    assert chosen.ask[node.address] == "a node of the operator"
    others = many(3)
    later = choose_relays([node], hold(*others, since=NOW - SETTLED_S), RelayMemory(), NOW, random.Random(1))
    assert later.ask == {node.address: "a node of the operator"}
    four = choose_relays([], [*hold(*others), HeldRelay(node, NOW)], RelayMemory(), NOW, random.Random(1))
    assert list(four.leave.values()) == ["one too many, and the worst of them"]
    assert node.peer_id in four.keep


def test_of_like_relays_lots_decide() -> None:
    turns = Counter[str]()
    for seed in range(400):
        turns.update(names(dict(choose_relays(many(8), [], RelayMemory(), NOW, random.Random(seed)).ask)))
    assert len(turns) == 8
    assert max(turns.values()) < 1.3 * min(turns.values())


def test_a_faster_relay_comes_first() -> None:
    found = [*many(5), relay("fast", "192.0.2.9", offered=1e6)]
    for seed in range(20):
        assert names(dict(choose_relays(found, [], RelayMemory(), NOW, random.Random(seed)).ask))[0] == "fast"


def test_a_relay_that_failed_is_left_and_shunned_longer_each_time() -> None:
    memory, (first, *rest) = RelayMemory(), many(4)
    memory.failed(first.peer_id, "it swapped two streams", NOW)
    chosen = choose_relays([first, *rest], hold(first), memory, NOW + 1, random.Random(1))
    assert chosen.leave == {first.peer_id: "it swapped two streams"}
    assert chosen.keep == ()
    assert first.address not in chosen.ask
    assert not memory.shunned(first.peer_id, NOW + SHUNNED_S)
    memory.failed(first.peer_id, "it stalled", NOW + SHUNNED_S)
    assert memory.shunned(first.peer_id, NOW + 2.5 * SHUNNED_S) == "it stalled"
    for again in range(10):
        memory.failed(first.peer_id, "it stalled", NOW + again)
    assert not memory.shunned(first.peer_id, NOW + 10 + MOST_SHUNNED_S)


def test_where_there_is_no_other_relay_one_that_failed_is_asked_again_soon_and_kept() -> None:
    memory, (first, second, other) = RelayMemory(), many(3)
    for one in (first, second):
        memory.failed(one.peer_id, "our line was down", NOW)
    memory.busy(second.peer_id, NOW)
    assert not choose_relays([first, second], [], memory, NOW + AGAIN_S - 1, random.Random(1)).ask
    assert names(dict(choose_relays([first, second], [], memory, NOW + AGAIN_S, random.Random(1)).ask)) == ["relay 0"]
    assert names(dict(choose_relays([first, other], [], memory, NOW + AGAIN_S, random.Random(1)).ask)) == ["relay 2"]
    held = hold(first, since=NOW + AGAIN_S)
    assert choose_relays([first], held, memory, NOW + AGAIN_S + 1, random.Random(1)).keep == ("relay 0",)
    memory.failed(first.peer_id, "it stalled", NOW + AGAIN_S + 1)
    assert choose_relays([first], held, memory, NOW + AGAIN_S + 1, random.Random(1)).leave == {"relay 0": "it stalled"}


def test_a_busy_relay_is_not_asked_for_a_while_but_kept_if_it_is_held() -> None:
    memory, (first, *rest) = RelayMemory(), many(3)
    memory.busy(first.peer_id, NOW)
    assert first.address not in choose_relays([first, *rest], [], memory, NOW + 1, random.Random(1)).ask
    assert first.address in choose_relays([first, *rest], [], memory, NOW + BUSY_S, random.Random(1)).ask
    assert choose_relays([], hold(first), memory, NOW + 1, random.Random(1)).keep == (first.peer_id,)


@pytest.mark.parametrize(("factor", "changes"), [(1.5, False), (1.05 * MUCH, True)])
def test_a_relay_that_works_is_only_left_for_a_much_better_one(factor: float, changes: bool) -> None:
    slow = [relay(f"slow {n}", f"198.51.{n}.1", trip_s=4.0, offered=1e9) for n in range(3)]
    other = relay("other", "192.0.2.9", trip_s=4.0 / factor, offered=1e9)
    young = choose_relays([other], hold(*slow, since=NOW - SETTLED_S + 1), RelayMemory(), NOW, random.Random(1))
    assert not young.ask
    settled = choose_relays([other], hold(*slow, since=NOW - SETTLED_S), RelayMemory(), NOW, random.Random(1))
    assert bool(settled.ask) is changes
    assert not settled.leave, "the new one is asked first"
    four = choose_relays([], [*hold(*slow), HeldRelay(other, NOW)], RelayMemory(), NOW, random.Random(1))
    assert other.peer_id in four.keep
    assert len(four.leave) == 1


def test_what_is_remembered_is_bounded() -> None:
    memory = RelayMemory()
    for number in range(10_000):
        memory.failed(PeerId(f"relay {number}"), "gone", NOW)
        memory.busy(PeerId(f"relay {number}"), NOW, 1e30)
    assert len(memory._failures) < 1000
    assert len(memory._busy_until) < 1000
    assert not memory.avoid_reason(PeerId("relay 9999"), NOW + MOST_SHUNNED_S)


@pytest.mark.parametrize("seed", range(30))
def test_whatever_comes_choices_keep_their_bounds_and_settle(seed: int) -> None:
    """Relays fail, are busy and come back. Each choice respects the bounds, and without new events the choice is
    stable."""
    print(f"seed {seed}")
    rng, memory, now = random.Random(seed), RelayMemory(), NOW
    everybody = [
        relay(f"r{n}", f"10.{rng.randrange(4)}.{rng.randrange(3)}.{rng.randrange(3)}", trip_s=rng.uniform(0.01, 1))
        for n in range(rng.randrange(1, 15))
    ]
    held = dict[PeerId, HeldRelay]()
    for step in range(200):
        quiet = step > 100
        now += rng.expovariate(1 / 30) if not quiet else SETTLED_S
        if not quiet:
            for peer in [peer for peer in held if rng.random() < 0.1]:
                memory.failed(peer, "gone", now)
        chosen = choose_relays(everybody, list(held.values()), memory, now, rng)
        assert not set(chosen.keep) & chosen.leave.keys()
        assert len(chosen.keep) <= MAX_RELAYS
        assert not {address.peer_id for address in chosen.ask} & held.keys()
        assert all(chosen.ask.values())
        for peer in chosen.leave:
            del held[peer]
        for address in chosen.ask:
            (found,) = [one for one in everybody if one.address == address]
            if not quiet and rng.random() < 0.3:
                memory.busy(found.peer_id, now)
            else:
                held[found.peer_id] = HeldRelay(found, now)
        assert len(held) <= MAX_RELAYS + 1
        assert len({host_of(one.relay.address.endpoint) for one in held.values()}) == len(held)
        if step > 150:
            assert not chosen.leave
            assert not chosen.ask
