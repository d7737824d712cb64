"""Main memory and open files of a process, from `/proc`."""

from __future__ import annotations

from pathlib import Path


def open_files(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the number of files and sockets that a process holds open. 0: it has ended, or there is no `/proc`."""
    try:
        return sum(1 for _ in (proc / str(pid) / "fd").iterdir())
    except OSError:
        return 0


def resident_bytes(pid: int, proc: Path = Path("/proc")) -> int:
    """Return the resident memory of a process in bytes. 0: it has ended, or there is no `/proc`."""
    try:
        for line in (proc / str(pid) / "status").read_bytes().splitlines():
            if line.startswith(b"VmRSS:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        return 0
    return 0
