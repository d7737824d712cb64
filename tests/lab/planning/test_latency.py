"""The model of waiting for messages, against closed forms and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from peer.errors import UsageError
from peer.lab.planning.latency import pair_time, ratio, tree_time


@pytest.mark.parametrize("peers", [2, 4, 64, 1024, 1 << 19])
def test_with_equal_times_the_ratio_is_the_logarithm(peers: int) -> None:
    """Published: 2 log2(n) message times against 2, a ratio of ten for 1024 peers."""
    assert ratio(peers, 0.0) == math.log2(peers)


def test_a_little_scatter_changes_little() -> None:
    assert ratio(1024, 0.001) == pytest.approx(10, rel=1e-3)


@pytest.mark.parametrize("std", [0.01, 0.1, 0.5, 1.0, 2.0, 5.0])
def test_a_tree_of_two_is_a_pair(std: float) -> None:
    """The closed form E max(t1, t2) = (1 + erf(sigma/2)) exp(mu + sigma^2/2) against the grid."""
    sigma = math.sqrt(math.log(1 + std**2))
    assert pair_time(std) == pytest.approx(2 * (1 + math.erf(sigma / 2)))
    assert tree_time(2, std) == pytest.approx(pair_time(std), rel=1e-3)


@pytest.mark.parametrize(("peers", "std"), [(4, 0.5), (64, 0.5), (64, 2.0), (1024, 0.1), (1024, 0.5), (1024, 1.0)])
def test_random_trees_take_as_long(peers: int, std: float) -> None:
    """The result is within four standard errors of the mean of 800 random trees."""
    rng = np.random.default_rng(peers)
    sigma = math.sqrt(math.log(1 + std**2))
    times = np.zeros((800, peers))
    while times.shape[1] > 1:
        times = times + rng.lognormal(-(sigma**2) / 2, sigma, times.shape)
        times = np.maximum(times[:, ::2], times[:, 1::2])
    mean, error = 2 * times.mean(), 2 * times.std() / math.sqrt(800)
    assert error < 0.03 * mean
    assert abs(tree_time(peers, std) - mean) < 4 * error


def test_trees_that_are_not_full_lie_between() -> None:
    assert ratio(5, 0.0) == 3
    few = [tree_time(peers, 0.5) for peers in (4, 5, 6, 7, 8)]
    assert few == sorted(few)
    assert len(set(few)) == 5


def test_the_published_figure_ends_at_forty() -> None:
    """The axis of the published figure ends at 40, for up to 1024 peers: a standard deviation of about three mean times
    gets there."""
    assert ratio(1024, 2.5) < 40 < ratio(1024, 3.0)


@pytest.mark.parametrize(
    ("peers", "std"), [(1, 0.5), (0, 0.5), (-4, 0.5), (10**9, 0.5), (8, -0.1), (8, 100.0), (8, math.nan)]
)
def test_values_that_cannot_be_are_refused(peers: int, std: float) -> None:
    with pytest.raises(UsageError, match=r"--peers|--std") as refusal:
        ratio(peers, std)
    assert refusal.value.fix != UsageError.fix
