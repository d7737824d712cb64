"""The live view in a terminal: drawn in place at the bottom, with status lines scrolling above it.

It runs on the daemon's event loop without a thread, and never blocks it. While the terminal accepts no output (Ctrl+S,
a dead ssh connection) nothing is drawn, and the latest `MAX_PENDING_LINES` status lines are kept for later."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from peer.observe.formatting import harmless
from peer.observe.nonblocking_writer import NonblockingStream
from peer.observe.output import optional_output
from peer.observe.question import ask_terminal
from peer.observe.status.value import DaemonStatus
from peer.observe.terminal_frame import History, render_frame

REFRESH_S = 0.5
MAX_PENDING_LINES = 200
SIMPLE_TERMINALS = ("", "dumb", "unknown")


def supports_live_view(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Return whether a live view can be drawn: the stream is a terminal with cursor movement and UTF-8, and the user
    has not set NO_COLOR."""
    if not stream.isatty() or environment.get("NO_COLOR") or environment.get("TERM", "") in SIMPLE_TERMINALS:
        return False
    try:
        os.ttyname(stream.fileno())
    except OSError:
        return False
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


class TerminalView:
    """A `Display` in a terminal. `close` removes the view and restores the terminal and its cursor. Lines after that
    are printed plainly."""

    def __init__(self, terminal: TextIO = sys.stdout, refresh_s: float = REFRESH_S) -> None:
        """Open the terminal a second time, for non-blocking writes. Raises OSError when that fails."""
        self._terminal = terminal
        self._refresh_s = refresh_s
        self._stream = NonblockingStream(terminal)
        self._console = Console(file=cast(IO[str], self._stream), highlight=False)
        self._history = History()
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._pending_lines: deque[str] = deque(maxlen=MAX_PENDING_LINES)
        self._asking = False

    def say(self, line: str, /) -> None:
        text = f"{time.strftime('%H:%M:%S')}  {harmless(line)}"
        if self._stream.closed:
            with optional_output():
                print(text, file=self._terminal, flush=True)
            return
        self._pending_lines.append(text)
        self._print_pending()

    async def run(self, report: Callable[[], DaemonStatus], /) -> None:
        now = asyncio.get_running_loop().time
        self._live.start()
        try:
            while True:
                self._show(report(), now())
                await asyncio.sleep(self._refresh_s)
        finally:
            self.close()

    async def ask(self, question: str, /) -> bool | None:
        """Ask a question below the status lines. The view is not updated until it is answered."""
        self._live.stop()
        self._asking = True
        try:
            return await ask_terminal(question, self.say)
        finally:
            self._asking = False
            self._live.start()

    def close(self) -> None:
        if self._stream.closed:
            return
        self._live.stop()
        self._print_pending()
        self._stream.close()

    def _show(self, status: DaemonStatus, now: float) -> None:
        self._history.add(status, now)
        self._print_pending()
        if not self._stream.pending and not self._asking:
            self._live.update(render_frame(status, self._history), refresh=True)

    def _print_pending(self) -> None:
        self._stream.flush()
        while self._pending_lines and not self._stream.pending:
            self._console.print(Text(self._pending_lines.popleft()), soft_wrap=True)
