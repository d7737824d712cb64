"""Limits of the system for this process. A service manager or container may forbid even to read them."""

from __future__ import annotations

import math

from peer.errors import UsageError

LEAST_FILES = 128
"""Fewest open files that a daemon needs. An idle bootstrap node had 34 open and 8 callers hold 24; the rest is for its
own calls and the files of a state."""


def open_file_limits() -> tuple[float, float]:
    """Return the soft and the hard limit of open files. Infinite: there is no limit, or it cannot be read."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):  # Windows has no such limit
        return math.inf, math.inf
    unlimited = resource.RLIM_INFINITY
    return math.inf if soft == unlimited else soft, math.inf if hard == unlimited else hard


def check_open_files() -> None:
    """Raise UsageError if the hard limit of open files is too low for a daemon. (A daemon raises its soft limit to the
    hard one.)

    A daemon that reaches the limit would fail later, in the middle of a call."""
    _, hard = open_file_limits()
    if hard < LEAST_FILES:
        raise UsageError(
            f"this process may open {hard:.0f} files, and a daemon needs {LEAST_FILES} at least",
            "Raise the hard limit of open files: LimitNOFILE=4096 in a systemd unit, --ulimit nofile=4096 of a "
            "container, /etc/security/limits.conf for a login. In a shell that lowered it itself, open a new one.",
        )
