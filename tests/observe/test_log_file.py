"""The daemon's log: its size is limited, it contains the error that ended the daemon, and a failed write does not stop
the daemon."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from peer.errors import SwarmUnreachable
from peer.node.display import LoggedDisplay, PlainLines
from peer.observe import log_file as module
from peer.observe.log_file import log_file, log_line
from peer.observe.status.notices import read_status


def test_lines_and_warnings_are_kept_and_the_terminal_shows_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "peer.log"
    with log_file(path):
        log_line("joined \x1b[2J")
        logging.getLogger("peer.discovery").warning("no answer")
    log_line("after it")
    lines = path.read_text().splitlines()
    assert [line[24:] for line in lines] == ["INFO    joined \\x1b[2J", "WARNING no answer"]
    assert capsys.readouterr().err == "no answer\n"


def test_it_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_BYTES", 1000)
    with log_file(tmp_path / "peer.log"):
        for number in range(200):
            log_line(f"line {number}")
    kept = sorted(tmp_path.iterdir())
    assert [path.name for path in kept] == ["peer.log", "peer.log.1", "peer.log.2"]
    assert all(path.stat().st_size <= 1000 for path in kept)
    assert "line 199" in kept[0].read_text()


def test_the_error_that_ends_the_daemon_is_its_last_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is logged to the file only. The command line prints it to the terminal in its own format."""
    path = tmp_path / "peer.log"
    with pytest.raises(SwarmUnreachable), log_file(path):
        raise SwarmUnreachable("nobody answered", "Wait.")
    assert path.read_text().endswith("ERROR   SwarmUnreachable (exit code 30): nobody answered. Wait.\n")
    with pytest.raises(ZeroDivisionError), log_file(path):
        _ = 1 // 0
    assert path.read_text().endswith("ZeroDivisionError: integer division or modulo by zero\n")
    assert capsys.readouterr() == ("", "")


def test_a_log_that_cannot_be_written_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with log_file(tmp_path / "absent" / "peer.log"):
        log_line("one")
        log_line("two")
    told = capsys.readouterr().err
    assert told.count("cannot be written") == 1
    assert "No such file" in told


WHY = "a day's upload of 50 MB never holds an exchange of 1 MB besides the 734 MB of control traffic"
STATUS: dict[str, Any] = {"status": "training", "phase": "training", "wait": None, "round": 3, "next_due_in_s": None}
USED = STATUS | {"budget": {"why": WHY}}


def test_a_reason_that_stays_is_not_repeated_in_every_line(tmp_path: Path) -> None:
    """The upload quota itself logs the sentence when it changes."""
    lines = PlainLines(lambda line: None)
    said = [line for second in range(60) if (line := lines.due(read_status(USED), float(second)))]
    assert len(said) == 6
    assert {line.partition(" · ")[2] for line in said} == {"round 3 · upload budget used"}


def test_the_log_has_what_a_plain_terminal_shows(tmp_path: Path) -> None:
    shown: list[str] = []

    async def main() -> None:
        display = LoggedDisplay(PlainLines(shown.append))
        display.say("joined")
        task = asyncio.create_task(display.run(lambda: read_status(STATUS)))
        while len(shown) < 2:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    with log_file(tmp_path / "peer.log"):
        asyncio.run(main())
    assert [line[32:] for line in (tmp_path / "peer.log").read_text().splitlines()] == shown
