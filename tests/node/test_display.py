"""Plain lines: when each is shown; and that a failing view does not end the daemon."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from peer.node.display import LOG_LOOK_EVERY_S, LOOK_EVERY_S, WAIT_LINE_EVERY_S, PlainLines, showing
from peer.observe.status.notices import read_status
from peer.observe.status.value import DaemonStatus

WAIT = {"name": "fetching the state", "done": 10e6, "total": 40e6, "unit": "bytes", "seconds": 5.0, "rate": 2e6}
JOINING: dict[str, Any] = {"status": "joining", "phase": "getting the state", "wait": WAIT}
TRAINING: dict[str, Any] = {"status": "training", "phase": "training", "round": 3, "next_due_in_s": 4.0, "wait": None}


def said_at(status: dict[str, Any], seconds: int) -> list[int]:
    """Return the half seconds at which a line is shown."""
    lines = PlainLines(lambda line: None)
    return [tick for tick in range(2 * seconds) if lines.due(read_status(status), tick / 2)]


def test_a_wait_is_told_every_few_seconds_with_its_numbers() -> None:
    line = "fetching the state: 10.0 MB of 40.0 MB (25 %), 2.00 MB/s, ~15 s left"
    assert PlainLines(print).due(read_status(JOINING), 0.0) == line
    assert said_at(JOINING, 13) == [0, 8, 16, 24]


def test_a_short_wait_is_not_told() -> None:
    assert said_at(JOINING | {"wait": WAIT | {"seconds": 1.5}}, 20) == []
    assert said_at(JOINING | {"wait": None}, 20) == []


def test_training_is_told_at_once_and_every_ten_seconds() -> None:
    assert PlainLines(print).due(read_status(TRAINING), 100.0) == "training: training · round 3 (due in 4 s)"
    assert said_at(TRAINING, 21) == [0, 20, 40]


def test_no_report_is_made_for_a_line_that_cannot_be_due() -> None:
    lines = PlainLines(lambda line: None)
    assert lines.pause_s(0.0) == LOOK_EVERY_S
    assert lines.due(read_status(TRAINING), 0.0)
    assert lines.pause_s(0.0) == WAIT_LINE_EVERY_S
    assert lines.pause_s(5.0) == LOG_LOOK_EVERY_S
    assert lines.due(read_status(JOINING), 6.0)
    assert lines.pause_s(10.0) == LOOK_EVERY_S


class Display:
    """A display that records its calls."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails
        self.shown: list[DaemonStatus] = []
        self.closed = 0

    def say(self, line: str, /) -> None: ...

    async def run(self, report: Callable[[], DaemonStatus], /) -> None:
        self.shown.append(report())
        if self.fails:
            raise ValueError("drawn badly")
        await asyncio.Event().wait()

    async def ask(self, question: str, /) -> bool | None:
        return None

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("fails", [False, True])
def test_a_display_is_closed_and_its_defect_told_but_not_raised(fails: bool) -> None:
    display, defects = Display(fails), list[str]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: defects.append(repr(context["exception"])))
        async with showing(display, lambda: read_status(TRAINING)):
            while not display.shown:
                await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert display.shown == [read_status(TRAINING)]
    assert display.closed == 1
    assert defects == (["ValueError('drawn badly')"] if fails else [])
