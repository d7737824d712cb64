"""A real peer that is killed at seeded moments resumes from the newest valid checkpoint, neither repeats nor skips a
batch, and its ledger balances. `benchmarks/restarts.py` repeats this fifty times."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.restarts import measure

pytestmark = [pytest.mark.processes, pytest.mark.nightly]


def test_three_kills(tmp_path: Path) -> None:
    report = asyncio.run(measure(tmp_path, kills=3, seed=3))
    assert report["wrong"] == []
    assert report["lives"] == 4
    assert report["steps_in_the_line"] > 0
    assert report["ledger_imbalance"] == 0
