"""A few hours of heavy churn: nothing is lost, nobody is misled, and who lives takes part. The whole day, 256 peers:
python -m tests.simulation --day --seeds 0:100"""

from __future__ import annotations

from tests.simulation.day import play_day


def test_a_few_hours_of_heavy_churn_break_no_promise() -> None:
    day = play_day(0, peers=16, hours=3.0)
    report = day.report
    assert not day.broken, str(day)
    assert report.ledger_imbalance == 0, str(day)
    assert report.faults["kill"] > 30, "a day without churn shows nothing"
    assert report.live_missed == 0, str(day)
    assert report.participation is not None
    assert report.participation > 0.8, str(day)
