"""Formatting of times for people."""

from __future__ import annotations

import time


def local_time(at: float) -> str:
    """Format seconds since the epoch as local time, `2026-11-25 18:00`. A time beyond the calendar is formatted in
    seconds."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:g} s after 1970"
