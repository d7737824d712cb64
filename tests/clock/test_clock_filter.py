from __future__ import annotations

import math

import pytest

from peer.clock.clock_filter import KEPT_OFFSETS, MAX_VOICES, OPERATOR, ClockFilter


def heard(*words: tuple[float, str], bound_s: float = math.inf) -> float | None:
    found = ClockFilter()
    found.bound(bound_s)
    for offset_s, voice in words:
        found.observe(offset_s, voice)
    return found.correction()


def test_nothing_measured_corrects_nothing() -> None:
    assert heard() is None


def test_the_keys_of_one_network_have_one_voice() -> None:
    liars = [(50.0, "liars")] * 40
    assert heard(*liars, (1.0, "a"), (2.0, "b")) == 2.0
    assert heard(*liars, (1.0, "a")) == 1.0, "of two it is the one that moves the clock less"


def test_within_one_network_the_middle_counts() -> None:
    assert heard((1.0, "a"), (50.0, "a"), (2.0, "a")) == 2.0


def test_the_operators_nodes_are_believed_against_one_network() -> None:
    assert heard((0.0, "liars"), (20.0, OPERATOR)) == 20.0
    assert heard((0.0, "a"), (0.1, "b"), (50.0, OPERATOR)) == 0.1, "they have one voice"


@pytest.mark.parametrize("offset_s", [60.1, -60.1, math.inf, math.nan])
def test_what_is_beyond_the_bound_is_dropped(offset_s: float) -> None:
    assert heard((offset_s, "a"), bound_s=60.0) is None


def test_what_it_keeps_is_bounded() -> None:
    found = ClockFilter()
    for number in range(1000):
        found.observe(1.0, f"network {number}")
        found.observe(1.0, "one")
    assert len(found._voices) <= MAX_VOICES
    assert max(map(len, found._voices.values())) <= KEPT_OFFSETS
