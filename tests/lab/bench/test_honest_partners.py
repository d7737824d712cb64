"""The arithmetic of the benchmarks of honest partners and of patient liars."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.honest_partners import HonestRun, summed
from benchmarks.patient_liars import MOST, remembered
from peer.exchange.pair.acceptance import CHECK, CLIP, FINITE


def test_costs_are_those_of_the_same_seed() -> None:
    runs = {
        CHECK: [HonestRun(2.02, Counter(taken=9, refused=1)), HonestRun(4.0, Counter(taken=10))],
        CLIP: [HonestRun(2.0), HonestRun(4.04)],
        FINITE: [HonestRun(2.0), HonestRun(4.0)],
    }
    (refused, clipped, cost), row = summed("equal", runs)

    assert (refused.value, clipped.value) == (5.0, 0.0)
    assert cost.value == pytest.approx(0.5)
    assert row[3:] == pytest.approx([0.5, 0.5, 0.0, 1.0, 0.5, 0.5, 0.0, 1.0])


def test_a_liar_that_is_every_partner_reaches_the_cap_and_no_more() -> None:
    assert max(remembered(1.0, 1.0, 100)) == pytest.approx(MOST)
    assert max(remembered(0.1, 20.0, 100)[16:]) < MOST / 2
