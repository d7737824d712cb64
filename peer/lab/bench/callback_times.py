"""Runs `peer …` on asyncio's own event loop and records every callback that takes long.

`python -m peer.lab.bench.callback_times FILE …` appends one line of JSON to FILE for each such callback. Only
benchmarks use it. The processor time of the loop's thread is measured, so that other programs on the machine do not
count."""

from __future__ import annotations

import asyncio
import asyncio.events
import contextlib
import importlib
import json
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOTED_S = 0.02
"""Least processor seconds of a callback that is recorded."""


def noting(run: Callable[[Any], None], file: Path) -> Callable[[Any], None]:
    """Return a replacement of `asyncio.Handle._run` that measures the callback."""

    def measured(handle: Any) -> None:
        what, used, wall = handle._callback, time.thread_time(), time.monotonic()
        run(handle)
        used = time.thread_time() - used
        if used >= NOTED_S:
            line = {"ms": 1e3 * used, "wall_ms": 1e3 * (time.monotonic() - wall), "at": time.time(), "what": name(what)}
            with file.open("a") as notes:
                notes.write(json.dumps(line) + "\n")

    return measured


def name(callback: Any) -> str:
    """Return the name of a callback. For a task, also the line at which it now waits."""
    task = getattr(callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return str(getattr(callback, "__qualname__", callback))
    here: Any = task.get_coro()
    at = ""
    while here is not None:
        frame = getattr(here, "cr_frame", None) or getattr(here, "gi_frame", None)
        if frame is not None:
            at = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
        here = getattr(here, "cr_await", None) or getattr(here, "gi_yieldfrom", None)
    return f"task {task.get_name()} at {at}" if at else f"task {task.get_name()}"


def main() -> None:
    file = Path(sys.argv.pop(1))
    with contextlib.suppress(ImportError):
        loops: Any = importlib.import_module("uvloop")
        # uvloop's handles are compiled, so that they cannot be wrapped: use asyncio's loop
        loops.new_event_loop = asyncio.new_event_loop
    handle: Any = asyncio.events.Handle
    handle._run = noting(handle._run, file)
    runpy.run_module("peer", run_name="__main__")


if __name__ == "__main__":
    main()
