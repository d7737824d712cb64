"""Moments as people write them."""

from __future__ import annotations

import time


def local_time(at: float) -> str:
    """`2026-11-25 18:00` in local time. `at`: seconds since the epoch. One without a date is written in seconds."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:g} s after 1970"
