from __future__ import annotations

import math

import pytest

from peer.protocol.summary.weighing import Quartiles, lower_median, mean, quartiles, voices


def of_one_block(*values: float | None) -> list[tuple[str, float | None]]:
    return [("here", value) for value in values]


def test_one_liar_of_seven_moves_the_median_to_a_neighbour_at_most() -> None:
    honest = (3.0, 3.1, 3.2, 3.3, 3.4, 3.5)
    assert quartiles(voices(of_one_block(*honest))) == Quartiles(3.1, 3.25, 3.4)
    assert quartiles(voices(of_one_block(*honest, 1e9))) == Quartiles(3.1, 3.3, 3.5)
    assert quartiles(voices(of_one_block(*honest, -1e9))) == Quartiles(3.0, 3.2, 3.4)


def test_what_is_not_finite_is_dropped() -> None:
    assert voices(of_one_block(math.nan, math.inf, -math.inf, None, 2.0)) == [(2.0, 1.0)]
    assert quartiles(voices(of_one_block(math.nan))) is None
    assert mean([]) is None


def test_a_hundred_keys_of_one_block_have_one_voice() -> None:
    homes = [(f"home {number}", 3.0 + number / 10) for number in range(5)]
    sybils = [("block", 0.0)] * 100
    found = quartiles(voices([*homes, *sybils]))
    assert found is not None
    assert 3.0 <= found.median <= 3.2
    assert mean(voices([*homes, *sybils])) == pytest.approx((3.0 + 3.1 + 3.2 + 3.3 + 3.4 + 0.0) / 6)


def test_in_one_block_each_peer_has_a_voice() -> None:
    assert mean(voices(of_one_block(1.0, 2.0, 6.0))) == 3.0


def test_a_lower_median_is_a_value_that_was_said() -> None:
    assert lower_median(voices(of_one_block(15.0, 20.0))) == 15.0
    assert lower_median(voices([("a", 15.0), ("b", 20.0), *[("crowd", 900.0)] * 50])) == 20.0
    assert lower_median([]) is None
