"""Tests of which swaps a relay admits."""

from __future__ import annotations

import random

import pytest

from peer.protocol.swarm.relay_load import RelayLoad


def test_a_relay_takes_swaps_as_long_as_each_gets_what_it_needs() -> None:
    load, taken = RelayLoad(128_000.0), 0
    while not load.refusal_reason(15_000.0):
        load.begins(taken, 15_000.0)
        taken += 1
    assert taken == 4
    assert load.refusal_reason(15_000.0) == "4 swaps pass this relay, and one more would be too slow"
    assert load.refusal_reason(1.0), "the four would be too slow"
    load.ends(0)
    assert not load.refusal_reason(15_000.0)
    load.ends("somebody else")
    assert load.swaps == 3


def test_a_swap_that_needs_more_than_the_whole_relay_is_told_so() -> None:
    load = RelayLoad(64_000.0)
    assert load.refusal_reason(40_000.0) == "a swap needs 40000 bytes per second each way, more than this relay has"
    assert not load.refusal_reason(32_000.0)


def test_what_is_offered_is_what_the_next_gets() -> None:
    load = RelayLoad(64_000.0)
    assert load.offered == 32_000.0
    load.begins("one", 0.0)
    assert load.offered == 16_000.0


@pytest.mark.parametrize("seed", range(20))
def test_whoever_is_taken_has_enough_until_the_end(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    load, needs, cap = RelayLoad(1e6), dict[int, float](), 1e6
    for step in range(500):
        if needs and rng.random() < 0.4:
            gone = rng.choice(list(needs))
            load.ends(gone)
            del needs[gone]
        need = rng.expovariate(1 / 50_000)
        if not load.refusal_reason(need):
            load.begins(step, need)
            needs[step] = need
        if needs:
            assert max(needs.values()) <= cap / (2 * len(needs))
        assert load.swaps == len(needs)
