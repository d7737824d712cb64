"""Quiet hours: a part of every day in which the volunteer's machine does not train.

They are in local time. The module is pure: the caller reads the local clock and passes the minute of the day."""

from __future__ import annotations

import re
from dataclasses import dataclass

from peer.errors import UsageError

DAY = 24 * 60
_HOURS = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)-([01]?\d|2[0-3]):([0-5]\d)")


@dataclass(frozen=True, slots=True)
class QuietHours:
    """Daily span from `begin` until just before `end`, in minutes after midnight. If `end` is smaller than `begin`, the
    span passes midnight."""

    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Parse a span such as `22:00-07:00`. Raises UsageError if the text is no span, or an empty one."""
        found = _HOURS.fullmatch(text.strip())
        if found is None:
            raise UsageError(f"quiet hours {text!r} cannot be read", "Write them like 22:00-07:00, in local time.")
        first, second, third, fourth = map(int, found.groups())
        hours = cls(first * 60 + second, third * 60 + fourth)
        if hours.begin == hours.end:
            raise UsageError(f"quiet hours {text!r} begin when they end", "Leave them out, or `peer pause`.")
        return hours

    def __str__(self) -> str:
        return f"{self.begin // 60:02d}:{self.begin % 60:02d}-{self.end // 60:02d}:{self.end % 60:02d}"

    def begin_in(self, minute: int) -> int:
        """Return the minutes from this minute of the day until the quiet hours begin next, 1 to 1440."""
        return (self.begin - minute - 1) % DAY + 1

    def hold(self, minute: int) -> bool:
        """Return whether this minute of the day is within the quiet hours."""
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return minute >= self.begin or minute < self.end
