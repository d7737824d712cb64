"""Each tracker's process logs the daemon's records correctly; they are read back by the tracker's own reader."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.trackers.sinks import SINKS, curves, follow

PAGE = """\
# HELP peer_rounds_total Rounds by outcome.
# TYPE peer_rounds_total counter
peer_rounds_total{outcome="exchanged"} %d.0
peer_rounds_total{outcome="missed"} 0.0
# HELP peer_train_loss_nats Loss.
# TYPE peer_train_loss_nats gauge
peer_train_loss_nats %.1f
# HELP peer_exchange_duration_seconds Seconds.
# TYPE peer_exchange_duration_seconds histogram
peer_exchange_duration_seconds_bucket{le="+Inf"} 2.0
peer_exchange_duration_seconds_count 2.0
peer_exchange_duration_seconds_sum 3.5
"""
RECORDS = [
    {"at": 100.5, "run": "tiny", "peer": "12D3KooWabcdef", "step": 512, "logged": {}, "metrics": PAGE % (0, 5.5)},
    {"at": 110.5, "run": "tiny", "peer": "12D3KooWabcdef", "step": 256, "logged": {}, "metrics": PAGE % (1, 4.5)},
    {"at": 120.5, "run": "tiny", "peer": "12D3KooWabcdef", "step": 1024, "logged": {"loop/hits": 0.25}, "metrics": ""},
]
LOSSES = [(512, 5.5), (512, 4.5)]
"""Steps and losses. The step does not decrease, although a peer restored from a checkpoint counts fewer tokens than
before."""


def lines() -> list[bytes]:
    return [json.dumps(record).encode() + b"\n" for record in RECORDS]


def played(kind: str, place: str, folder: Path, **env: str) -> None:
    """Run the tracker's process on the records."""
    command = [sys.executable, "-m", "peer.trackers.sinks", kind, place]
    environment = {**os.environ, "HOME": str(folder), **env}
    done = subprocess.run(
        command, input=b"".join(lines()), cwd=folder, env=environment, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


def test_samples_that_are_no_curves_are_left_out() -> None:
    assert list(curves(PAGE % (1, 4.5))) == [
        ("peer_rounds_total/exchanged", 1.0, True),
        ("peer_rounds_total/missed", 0.0, True),
        ("peer_train_loss_nats", 4.5, False),
        ("peer_exchange_duration_seconds_count", 2.0, False),
        ("peer_exchange_duration_seconds_sum", 3.5, False),
    ]


def test_a_csv_file_has_every_value_and_is_appended_to(tmp_path: Path) -> None:
    file = tmp_path / "new" / "metrics.csv"
    for _ in range(2):
        follow(iter(lines()), "csv", str(file))
    rows = list(csv.DictReader(file.read_text().splitlines()))
    losses = [(int(row["step"]), float(row["value"])) for row in rows if row["name"] == "peer_train_loss_nats"]
    assert losses == 2 * LOSSES
    hits = [row for row in rows if row["name"] == "loop/hits"]
    assert [(row["time"], row["step"], row["value"]) for row in hits] == 2 * [("120.500", "1024", "0.25")]
    assert {row["name"] for row in rows if row["name"].startswith("peer_rounds")} == {"peer_rounds_total/exchanged"}
    assert not [row for row in rows if row["name"] == "peer_rounds_total/exchanged" and row["time"] == "100.500"], (
        "a labelled value begins when it is not 0"
    )


def test_tensorboard_reads_the_curves(tmp_path: Path) -> None:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    follow(iter(lines()), "tensorboard", str(tmp_path))
    read = accumulators.EventAccumulator(str(tmp_path))
    read.Reload()
    scalars = [(one.step, one.value, one.wall_time) for one in read.Scalars("peer_train_loss_nats")]
    assert scalars == [(step, loss, at) for (step, loss), at in zip(LOSSES, (100.5, 110.5), strict=True)]
    assert [(one.step, one.value) for one in read.Scalars("loop/hits")] == [(1024, 0.25)]


@pytest.mark.processes
def test_trackio_keeps_the_curves_without_an_account(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    played("trackio", "demo", tmp_path, TRACKIO_DIR=str(tmp_path / "kept"))
    with sqlite3.connect(tmp_path / "kept" / "demo.db") as kept:
        rows: list[tuple[str, int, Any]] = list(kept.execute("select run_name, step, metrics from metrics order by id"))
    assert [(name, step) for name, step, _ in rows] == [
        ("tiny-abcdef", 512),
        ("tiny-abcdef", 512),
        ("tiny-abcdef", 1024),
    ]
    assert [json.loads(values).get("peer_train_loss_nats") for _, _, values in rows] == [5.5, 4.5, None]


@pytest.mark.processes
@pytest.mark.nightly
def test_wandb_takes_the_curves_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    played("wandb", "demo", tmp_path, WANDB_MODE="offline", WANDB_DIR=str(tmp_path))
    assert list(tmp_path.glob("wandb/offline-run-*/*.wandb"))


@pytest.mark.parametrize("kind", SINKS)
def test_every_kind_is_one_that_the_option_takes(kind: str) -> None:
    from peer.trackers.feed import PLACES

    assert kind in PLACES
    assert set(PLACES) == set(SINKS)
