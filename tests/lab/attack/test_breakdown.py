"""The share of hostile meetings up to which honest pairs stay together: the formula against simulated trials."""

from __future__ import annotations

import math

import pytest

from peer.lab.attack.breakdown import LOST_SHARE, GossipRule, GossipTrial, drift, growth, safe_share
from tests.support.seeds import seeds

NOLOCO = GossipRule()


def test_the_share_that_is_promised() -> None:
    share = safe_share(NOLOCO)
    assert share == pytest.approx(0.126, abs=0.001)
    assert growth(0.9 * share, NOLOCO) < 1 < growth(1.1 * share, NOLOCO)
    assert growth(0.0, NOLOCO) < 0.9, "without liars a swarm draws together"


def test_momentum_costs_resistance() -> None:
    without = safe_share(GossipRule(outer_momentum=0.0))
    assert safe_share(NOLOCO) < without < 0.23
    assert safe_share(GossipRule(slack=1.0)) > safe_share(NOLOCO)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_below_the_share_the_spread_stays_bounded(seed: int) -> None:
    trial = GossipTrial(peers=32, liars=3, seed=seed)
    assert trial.liars / (trial.peers - 1) < safe_share(NOLOCO)
    spreads, _ = trial.spreads(300)
    assert max(spreads) < 5, "lengths of an honest peer's work"
    assert max(spreads[200:]) < 2 * max(spreads[50:100])


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_above_the_share_the_spread_grows_without_bound(seed: int) -> None:
    spreads, _ = GossipTrial(peers=32, liars=8, seed=seed).spreads(200)
    assert spreads[99] > 5 * spreads[49]
    assert spreads[199] > 5 * spreads[99] > 50


@pytest.mark.parametrize(("peers", "liars", "most"), [(8, 1, 6), (32, 8, 15), (16, 4, 25)])
def test_a_cap_by_own_work_bounds_the_spread_at_larger_shares(peers: int, liars: int, most: float) -> None:
    spreads, _ = GossipTrial(peers=peers, liars=liars, seed=0, capped=True).spreads(300)
    assert max(spreads) < most
    assert max(spreads[200:]) < 1.5 * max(spreads[100:200])


def test_no_cap_helps_where_pushes_are_longer_than_pulls() -> None:
    spreads, _ = GossipTrial(peers=16, liars=8, seed=0, capped=True).spreads(300)
    assert LOST_SHARE < 8 / 15
    assert spreads[299] > spreads[199] + 30 > spreads[99] + 60


@pytest.mark.parametrize(("peers", "liars"), [(8, 1), (32, 3)])
def test_colluders_move_the_mean_no_farther_than_the_formula_says(peers: int, liars: int) -> None:
    spreads, moved = GossipTrial(peers=peers, liars=liars, seed=0, push="together").spreads(300)
    assert max(spreads) < 4, "they do not drive the honest apart"
    most = drift(liars / (peers - 1), NOLOCO)
    assert 0.7 * most < moved <= most


def test_the_drift_is_infinite_where_the_spread_is() -> None:
    assert drift(1 / 7, NOLOCO) == pytest.approx(0.36, abs=0.01)
    assert drift(0.9, NOLOCO) == math.inf
