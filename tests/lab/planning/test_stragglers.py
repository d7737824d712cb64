"""The model of slow steps, against the published figure and closed forms."""

from __future__ import annotations

import math

import pytest

from peer.errors import UsageError
from peer.lab.planning.stragglers import PAPER_STD, round_times


@pytest.mark.parametrize(("peers", "steps", "overhead"), [(1024, 100, 1.19), (1024, 1, 3.29), (16, 100, 1.07)])
def test_the_published_figure(peers: int, steps: int, overhead: float) -> None:
    """arXiv 2506.10911, Figure 5B, to the last published digit."""
    assert round_times(peers, steps, PAPER_STD).overhead == pytest.approx(overhead, abs=0.01 * overhead)


def test_two_peers_are_a_pair() -> None:
    """In a group of two the members always wait for each other, as in a pair: both take the expected maximum of two
    log-normal times."""
    times = round_times(2, 1, PAPER_STD)
    assert times.group == pytest.approx(times.pair)
    assert times.pair == pytest.approx(1 + math.erf(math.sqrt(0.5) / 2), rel=0.05)


def test_equal_steps_cost_nothing() -> None:
    times = round_times(64, 10, 0.0)
    assert (times.group, times.pair) == (pytest.approx(1), pytest.approx(1))


def test_a_delay_spreads_from_pair_to_pair() -> None:
    """A round of pairs takes longer than that of two isolated peers, but less than that of the whole group."""
    times = round_times(256, 1, PAPER_STD)
    assert 1.1 * (1 + math.erf(math.sqrt(0.5) / 2)) < times.pair < 0.6 * times.group


@pytest.mark.parametrize(("peers", "steps", "std"), [(1, 10, 0.5), (10**6, 10, 0.5), (8, 0, 0.5), (8, 10, -1.0)])
def test_values_that_are_no_swarm_are_refused(peers: int, steps: int, std: float) -> None:
    with pytest.raises(UsageError, match=r"--peers|--steps|--std"):
        round_times(peers, steps, std)
