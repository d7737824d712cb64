"""The type of options that take a duration: 90s, 30m, 2h, 1d, 1h30m."""

from __future__ import annotations

import math
import re

import click

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WHOLE = re.compile(r"(\d{1,9}(\.\d{1,9})?[smhd])+")
_PLAIN = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


MOST_VALID_S = 10 * 366 * UNITS["d"]
"""Longest validity of a delegation or invitation, in seconds."""


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration, converted to seconds; above 0. `plain`: a number without a unit means seconds, and less than one
    second is refused. `most`: longest accepted duration in seconds."""

    name = "duration"

    def __init__(self, *, plain: bool = False, most: float = math.inf) -> None:
        self._plain = plain
        self._most = most

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        if self._plain and _PLAIN.fullmatch(text):
            text += "s"
        seconds = sum(float(n) * UNITS[unit] for n, unit in _PART.findall(text)) if _WHOLE.fullmatch(text) else 0.0
        if seconds <= 0 or (self._plain and seconds < 1):
            self.fail(f"{text!r} is no time. Write 90s, 30m, 2h or 1h30m", param, ctx)
        if seconds > self._most:
            self.fail(f"{text!r} is too long. At most {self._most / UNITS['d']:.0f}d are taken", param, ctx)
        return seconds
