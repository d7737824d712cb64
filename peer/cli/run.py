"""Running a daemon from the command line: the loop, the exit code, plain lines."""

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
    """Print a plain line with the time, and put it into the daemon's log where there is one."""
    from peer.observe.log_file import log_line

    log_line(line)
    _print(line)


def _print(line: str) -> None:
    """Flushed, so that it is seen at once. A daemon goes on without the line when it cannot be written."""
    with optional_output():
        print(f"{time.strftime('%H:%M:%S')}  {harmless(line)}", flush=True)


def display(plain: bool) -> Display:
    """Return the live view where the terminal is fit for one and the user did not ask for `plain`, else plain lines.

    Both keep the log, too."""
    from peer.node.display import LoggedDisplay, PlainLines
    from peer.observe.terminal import TerminalView, supports_live_view

    live = not plain and supports_live_view(sys.stdout, os.environ)
    return LoggedDisplay(TerminalView() if live else PlainLines(_print))


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it exists."""
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def run_daemon(main: Coroutine[Any, Any, int]) -> None:
    """Run to the end and exit with the returned code. PeerErrors go to the command line's own handler.

    All files that the daemon and its children make are for their owner alone."""
    from peer.node.process import freeze_gc, raise_file_limit, run_until_early_signal, tune_malloc

    os.umask(0o077)  # a home may have been made beforehand, open to others
    raise_file_limit()
    tune_malloc()
    freeze_gc()  # of the libraries: later, in the event loop, this takes a few ms and not a tenth of a second
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        code = runner.run(run_until_early_signal(main, say))
    sys.exit(code)
