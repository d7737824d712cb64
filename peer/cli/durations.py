"""Times as people write them: 90s, 30m, 2h, 1d, 1h30m."""

from __future__ import annotations

import re

import click

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WHOLE = re.compile(r"(\d{1,9}(\.\d{1,9})?[smhd])+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration as seconds, above 0."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value)
        seconds = sum(float(n) * UNITS[unit] for n, unit in _PART.findall(text)) if _WHOLE.fullmatch(text) else 0.0
        if seconds <= 0:
            self.fail(f"{text!r} is no time. Write 90s, 30m, 2h or 1h30m", param, ctx)
        return seconds
