"""A few hours of heavy churn: no work is lost, no peer gets wrong state, and live peers take part. The whole day with
256 peers: python -m tests.simulation --day --seeds 0:100"""

from __future__ import annotations

import pytest

from tests.simulation.day import play_day
from tests.support.seeds import seeds


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_few_hours_of_heavy_churn_break_no_promise(seed: int) -> None:
    day = play_day(seed, peers=16, hours=1.5)
    report = day.report
    assert not day.broken, str(day)
    assert report.ledger_imbalance == 0, str(day)
    assert report.faults["kill"] > 15, "a day without churn shows nothing"
    assert report.live_missed == 0, str(day)
    assert report.participation is not None
    assert report.participation > 0.8, str(day)
