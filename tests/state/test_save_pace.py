"""When a checkpoint is due, and how long saving one may take."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from peer.state.checkpoint import TRAINER_SHARE, checkpoint_bytes
from peer.state.save_pace import FACTOR, LEAST_S, TRIAL_BYTES, UNKNOWN_STEP_S, SavePace

BIG = checkpoint_bytes(110_000_000)


def test_without_a_measurement_a_save_gets_the_least() -> None:
    pace = SavePace(1000, 15.0, lambda: math.nan)
    assert (pace.write_s, pace.limit_s(), pace.boundary_s) == (0.0, LEAST_S, UNKNOWN_STEP_S)
    assert pace.write_s_source == "1.00 kB, by nothing was written yet"


def test_the_slowest_of_the_last_three_checkpoints_counts() -> None:
    pace = SavePace(BIG, 15.0, lambda: 3.0)
    for seconds in (80.0, 10.0, 20.0, 40.0):
        pace.record_write(0.0, seconds, BIG)
    assert pace.write_s == pytest.approx(40.0)
    assert pace.trainer_limit_s() == pytest.approx(LEAST_S + FACTOR * (3.0 + TRAINER_SHARE * 40.0))
    assert pace.write_s_source == "2.20 GB at 55.0 MB/s, by the last checkpoints"


def test_a_trial_tells_before_the_first_checkpoint_and_a_checkpoint_corrects_it(tmp_path: Path) -> None:
    pace = SavePace(BIG, 15.0, lambda: 3.0)
    pace.try_disk(tmp_path / "new")
    assert pace.write_s > 0
    assert f"a trial of {TRIAL_BYTES / 1e6:.1f} MB" in pace.write_s_source
    assert list((tmp_path / "new").iterdir()) == []
    pace.record_write(0.0, 1e-6, BIG)
    assert pace.write_s == pytest.approx(1e-6)
    pace.try_disk(tmp_path / "new")
    assert "the last checkpoints" in pace.write_s_source


def test_a_small_checkpoint_needs_no_trial_and_a_bad_disk_no_word(tmp_path: Path) -> None:
    small, bad = SavePace(10**6, 15.0, lambda: 3.0), SavePace(BIG, 15.0, lambda: 3.0)
    small.try_disk(tmp_path)
    (tmp_path / "file").write_text("")
    bad.try_disk(tmp_path / "file")
    assert (small.write_s, bad.write_s) == (0.0, 0.0)


def test_a_save_that_misses_its_bound_names_what_took_the_time() -> None:
    pace = SavePace(BIG, 15.0, lambda: 3.0)
    pace.record_write(0.0, 40.0, BIG)
    assert pace.timeout_reason(62.0, 0) == (
        "the trainer did not answer within 62 s: it is still in a step (its longest recent step took 3.0 s, writing "
        "takes 24.0 s)"
    )
    assert "it had written 400.0 MB" in pace.timeout_reason(62.0, 400 * 10**6)


def test_large_checkpoints_are_written_less_often() -> None:
    pace = SavePace(BIG, 15.0, lambda: 3.0)
    assert pace.due()
    pace.record_start(1e12)
    assert not pace.due()
    pace.record_write(-1e6, 1.0, BIG)
    assert pace.due()
    pace.record_write(-1e6, 1e5, BIG)
    assert not pace.due()
