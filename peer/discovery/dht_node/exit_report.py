"""Explains why a p2pd ended: its signal or exit code, its last lines, and whether the system was out of memory."""

from __future__ import annotations

import contextlib
import json
import signal
from collections import deque
from pathlib import Path

LINES, WIDTH = 4, 200
"""Number of lines that are kept, and characters of each."""
MAX_PENDING = 64 * 1024
"""Most bytes that are kept of a line without an end."""

_BANNER = ("Control socket:", "Peer ID:", "Peer Addrs:", "/")


class Tail:
    """The last few lines of p2pd's output, and the first line of a Go panic, which hundreds of less useful lines
    follow."""

    def __init__(self) -> None:
        self._pending = b""
        self._last: deque[str] = deque(maxlen=LINES)
        self._panic = ""

    def feed(self, chunk: bytes) -> list[str]:
        """Add output. Return the lines that `chunk` completes."""
        *whole, pending = (self._pending + chunk).split(b"\n")
        self._pending = pending[:MAX_PENDING]
        lines = [line.decode(errors="replace").rstrip() for line in whole]
        for line in lines:
            self._add_line(line)
        return lines

    def _add_line(self, line: str) -> None:
        if not self._panic and line.startswith(("panic:", "fatal error:", "runtime: out of memory")):
            self._panic = line[:WIDTH]
        if part := _useful_part(line):
            self._last.append(part[:WIDTH])

    def last(self) -> str | None:
        """Return the last line; None: there is none."""
        return self._last[-1] if self._last else None

    def words(self) -> str:
        """Return the useful part of the output, in one line."""
        if self._panic:
            return self._panic
        return " | ".join(self._last)


def _useful_part(line: str) -> str:
    """Return the part of a line to keep; empty: nothing.

    The startup banner is dropped, and so are warnings in the log, of which a healthy p2pd writes many."""
    if not line.startswith("{"):
        return "" if line.startswith(_BANNER) else line
    try:
        entry = json.loads(line)
        grave = entry["level"] in ("error", "dpanic", "panic", "fatal")
        return f"{entry['msg']} {entry.get('error', '')}".strip() if grave else ""
    except (ValueError, TypeError, KeyError, RecursionError):
        return line


def in_words(code: int, said: str, memory_short: bool) -> str:
    """Describe how a process with this exit code (-N: signal N) ended. `said`: the end of its output. `memory_short`:
    the system killed processes for lack of memory meanwhile."""
    if code >= 0:
        found = f"ended with exit code {code}"
    else:
        found = f"was killed by signal {-code}{_name(-code)}"
        if code == -signal.SIGKILL and memory_short:
            found += " while the system was out of memory (its OOM killer struck)"
    return f"{found}; its last words: {said}" if said else found


def _name(number: int) -> str:
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(number).name})"
    return ""


def oom_kills(vmstat: Path = Path("/proc/vmstat")) -> int:
    """Return how many processes the system has killed for lack of memory since its start; 0 if that is not known."""
    try:
        with vmstat.open("rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        return 0
    return 0
