"""A tracker that fails, hangs or is missing does not affect the daemon."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.errors import UsageError
from peer.node.page import PageSource
from peer.observe.events import Evaluated
from peer.observe.journal import Listener
from peer.trackers import feed
from peer.trackers.feed import Tracker

DEADLINE_S = 60.0
READS = "import sys; open(sys.argv[1], 'wb').write(sys.stdin.buffer.read())"
HANGS = "import time; time.sleep(600)"
FAILS = "raise SystemExit('no room for curves')"


class Source:
    """Stands in for the daemon's page source."""

    def __init__(self, home: Path, page: bytes) -> None:
        self.listeners, self.said = list[Listener](), list[str]()
        self.status: Any = SimpleNamespace(run="", peer_id="me", training=None, view=None)
        self._lag = SimpleNamespace(run=asyncio.Event().wait)
        metrics: Any = SimpleNamespace(text=lambda: page, lag=self._lag)
        self.source = PageSource(home=home, report=lambda: self.status, metrics=metrics, listen=self.listeners.append)

    def evaluate(self) -> None:
        """Cause a record to be sent to the tracker."""
        for listener in self.listeners:
            listener(Evaluated(round=1, loss=2.0, bits_per_byte=1.0), 0.0)

    async def until_said(self, words: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not any(words in line for line in self.said):
                self.evaluate()
                await asyncio.sleep(0.01)


def replaced(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Run a script in place of the tracker's process."""

    async def start(module: str, kind: str, place: str, **how: Any) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(sys.executable, "-c", script, place, **how)

    monkeypatch.setattr(feed, "start_python", start)


@pytest.mark.processes
def test_records_carry_the_page_the_step_and_what_the_loop_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, READS)

    async def main() -> None:
        source = Source(tmp_path, b"peer_round 3\n")
        async with Tracker.parse("csv").opened(source.source, source.said.append) as place:
            source.evaluate()
            await asyncio.sleep(0)  # before the manifest is known there is nothing to log
            source.status.run = "tiny"
            source.status.training = SimpleNamespace(tokens=64, logged={"hits": 0.5})
        assert place == str(tmp_path / "metrics.csv")

    asyncio.run(main())
    records = [json.loads(line) for line in (tmp_path / "metrics.csv").read_bytes().splitlines()]
    assert records
    assert {record["run"] for record in records} == {"tiny"}
    assert records[-1]["step"] == 64
    assert records[-1]["logged"] == {"loop/hits": 0.5}
    assert records[-1]["metrics"] == "peer_round 3\n"


@pytest.mark.processes
def test_a_tracker_that_hangs_is_left_out_and_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced(monkeypatch, HANGS)
    monkeypatch.setattr(feed, "CLOSE_S", 0.2)

    async def main() -> None:
        source = Source(tmp_path, 100_000 * b"x")
        source.status.run = "tiny"
        async with Tracker.parse("csv").opened(source.source, source.said.append):
            await source.until_said("does not keep up")
            for _ in range(5):
                source.evaluate()
                await asyncio.sleep(0)
        assert [line for line in source.said if "does not keep up" in line] == [
            "the tracker csv does not keep up: curves will have gaps"
        ]
        assert "is killed" in source.said[-1]

    asyncio.run(main())


@pytest.mark.processes
def test_a_tracker_that_fails_is_reported_with_its_last_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, FAILS)

    async def main() -> None:
        source = Source(tmp_path, b"")
        source.status.run = "tiny"
        async with Tracker.parse("csv").opened(source.source, source.said.append):
            await source.until_said("no room for curves. The run goes on without it")

    asyncio.run(main())


def test_an_unknown_tracker_and_a_missing_library_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="does not know 'mlflow'") as unknown:
        Tracker.parse("mlflow:here")
    assert "csv, tensorboard, trackio, wandb" in unknown.value.fix
    monkeypatch.setattr(feed, "missing_from", lambda kind: [f"{kind}>=1"])
    with pytest.raises(UsageError, match="wandb is not installed") as missing:
        Tracker.parse("wandb")
    assert "'wandb>=1'" in missing.value.fix


def test_daemons_that_share_a_place_have_a_file_or_folder_each(tmp_path: Path) -> None:
    board, table = Tracker.parse(f"tensorboard:{tmp_path}"), Tracker.parse(f"csv:{tmp_path}")
    assert board.option() == f"tensorboard:{tmp_path}"
    assert board.shared("gossip").option("peer-1") == f"tensorboard:{tmp_path}/gossip/peer-1"
    assert table.option("peer-2") == f"csv:{tmp_path}/peer-2.csv"
    assert Tracker.parse("csv").shared("gossip").option("peer-1") == f"csv:{Path.cwd()}/csv/gossip/peer-1.csv"
    assert Tracker("trackio", "").shared("gossip").option("peer-1") == "trackio"
