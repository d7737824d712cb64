"""Runs a daemon from the command line: event loop, exit code, and lines for the terminal and the log."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from peer.observe.formatting import harmless
from peer.observe.output import optional_output

if TYPE_CHECKING:
    from peer.node.display import Display


def say(line: str) -> None:
    """Print a line with the time, and write it to the daemon's log if one is open."""
    from peer.observe.log_file import log_line

    log_line(line)
    _print(line)


def _print(line: str) -> None:
    """Print and flush a line. A failed write is ignored, because a daemon continues without its terminal."""
    with optional_output():
        print(f"{time.strftime('%H:%M:%S')}  {harmless(line)}", flush=True)


def display(plain: bool) -> Display:
    """Return the display of a daemon: the live view if the terminal supports it and `plain` is false, else plain lines.

    Both also write to the log."""
    from peer.node.display import LoggedDisplay, PlainLines
    from peer.observe.terminal import TerminalView, supports_live_view

    live = not plain and supports_live_view(sys.stdout, os.environ)
    return LoggedDisplay(TerminalView() if live else PlainLines(_print))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's factory of event loops. None where uvloop is not installed."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def run_daemon(main: Coroutine[Any, Any, int]) -> None:
    """Run a coroutine to its end and exit with the returned code. PeerErrors are raised to `peer.cli.main`.

    Sets the umask, so that only the user can read files that the daemon and its children create."""
    from peer.node.process import freeze_gc, raise_file_limit, run_until_early_signal, tune_malloc

    os.umask(0o077)  # the home may exist already with permissions for others
    raise_file_limit()
    tune_malloc()
    # Excludes the loaded libraries: a collection in the event loop then takes ms instead of a tenth of a second.
    freeze_gc()
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(run_until_early_signal(main, say))
    sys.exit(code)
