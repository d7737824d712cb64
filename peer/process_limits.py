"""Limits that the system sets for this process. A service manager or container may forbid even to ask for them."""

from __future__ import annotations

import math


def open_file_limits() -> tuple[float, float]:
    """Return the soft and the hard limit of open files. Infinite: there is none, or the system does not tell."""
    try:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):  # Windows has no such limit
        return math.inf, math.inf
    unlimited = resource.RLIM_INFINITY
    return math.inf if soft == unlimited else soft, math.inf if hard == unlimited else hard
