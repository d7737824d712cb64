"""The live view on a pseudo terminal: it is drawn, the terminal is restored, and a blocked terminal does not block the
view."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import pty
import re
import termios
import time
from collections.abc import Iterator
from typing import TextIO

import pytest

from peer.observe.status.notices import read_status
from peer.observe.status.value import DaemonStatus
from peer.observe.terminal import MAX_PENDING_LINES, TerminalView, supports_live_view
from tests.observe.test_terminal_frame import TRAINING

HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Terminal:
    """A pseudo terminal. `stream`: what a program writes to. `shown`: the output at the other end."""

    def __init__(self) -> None:
        self.outer, inner = pty.openpty()
        self.stream = os.fdopen(inner, "w", encoding="utf-8")
        os.set_blocking(self.outer, False)
        self._shown = b""

    def shown(self) -> str:
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self.outer, 65536):
                self._shown += piece
        return self._shown.decode()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made = Terminal()
    yield made
    with contextlib.suppress(OSError):
        termios.tcflow(made.stream.fileno(), termios.TCOON)
        termios.tcflush(made.stream.fileno(), termios.TCIOFLUSH)
    made.stream.close()
    os.close(made.outer)


async def until(terminal: Terminal, words: str) -> None:
    async with asyncio.timeout(180):
        while words not in terminal.shown():
            await asyncio.sleep(0)


def test_it_draws_in_place_says_above_and_gives_the_cursor_back(terminal: Terminal) -> None:
    async def main() -> None:
        view = TerminalView(terminal.stream, refresh_s=0.0)
        view.say("before \x1b[2J")
        running = asyncio.create_task(view.run(lambda: read_status(TRAINING)))
        await until(terminal, "1,234 · 5,321 tokens/s")
        view.say("meanwhile")
        await until(terminal, "meanwhile")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        view.close()
        view.say("afterwards")

    asyncio.run(main())
    shown = terminal.shown()
    assert "before \\x1b[2J" in shown
    assert shown.index("before") < shown.index(HIDE) < shown.index("meanwhile") < shown.rindex(SHOW)
    assert shown.rindex(HIDE) < shown.rindex(SHOW) < shown.index("afterwards")
    assert re.search(r"\x1b\[\d*A", shown), "the cursor goes back up to draw in place"


def test_a_report_that_cannot_be_drawn_still_gives_the_cursor_back(terminal: Terminal) -> None:
    def broken() -> DaemonStatus:
        raise KeyError("broken")

    with pytest.raises(KeyError):
        asyncio.run(TerminalView(terminal.stream).run(broken))
    assert terminal.shown().rindex(SHOW) > terminal.shown().rindex(HIDE)


def test_a_stopped_terminal_holds_nothing_up_and_loses_nothing_within_bounds(terminal: Terminal) -> None:
    """After Ctrl+S the event loop continues, and lines are printed when the terminal continues."""

    async def main() -> None:
        view = TerminalView(terminal.stream, refresh_s=0.0)
        reports = 0

        def report() -> DaemonStatus:
            nonlocal reports
            reports += 1
            return read_status(TRAINING)

        running = asyncio.create_task(view.run(report))
        await until(terminal, "tokens/s")
        termios.tcflow(terminal.stream.fileno(), termios.TCOOFF)
        before = reports
        for number in range(MAX_PENDING_LINES + 50):
            view.say(f"line {number}.")
        async with asyncio.timeout(180):
            while reports < before + 5:
                await asyncio.sleep(0)
        assert "line " not in terminal.shown()
        termios.tcflow(terminal.stream.fileno(), termios.TCOON)
        await until(terminal, f"line {MAX_PENDING_LINES + 49}.")
        assert "line 49." not in terminal.shown()
        running.cancel()
        await asyncio.wait({running})

    asyncio.run(main())
    assert terminal.shown().rindex(SHOW) > terminal.shown().rindex(HIDE)


def test_closing_on_a_stopped_terminal_returns_at_once(terminal: Terminal) -> None:
    async def main() -> None:
        view = TerminalView(terminal.stream, refresh_s=0.0)
        running = asyncio.create_task(view.run(lambda: read_status(TRAINING)))
        await until(terminal, "tokens/s")
        termios.tcflow(terminal.stream.fileno(), termios.TCOOFF)
        began = time.monotonic()
        running.cancel()
        await asyncio.wait({running})
        view.close()
        assert time.monotonic() - began < 20

    asyncio.run(main())


def test_a_live_view_is_only_for_terminals_that_suit(terminal: Terminal) -> None:
    good = {"TERM": "xterm"}
    assert supports_live_view(terminal.stream, good)
    assert supports_live_view(terminal.stream, good | {"NO_COLOR": ""}), "only set and not empty counts"
    assert not supports_live_view(terminal.stream, good | {"NO_COLOR": "1"})
    for simple in ({"TERM": "dumb"}, {"TERM": ""}, {}):
        assert not supports_live_view(terminal.stream, simple)
    assert not supports_live_view(io.StringIO(), good)
    assert not supports_live_view(_Latin(terminal.stream), good)


class _Latin(io.TextIOBase, TextIO):  # type: ignore[misc]
    encoding = "iso-8859-1"  # type: ignore[assignment]

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def isatty(self) -> bool:
        return self._stream.isatty()
