"""The type of options that take a share: 50%, 12.5 %, 0.5."""

from __future__ import annotations

import re

import click

_SHARE = re.compile(r"(\d{1,3}(?:\.\d{1,9})?|\.\d{1,9})\s?(%?)", re.ASCII)


class Percentage(click.ParamType):  # type: ignore[type-arg]
    """A share in (0, 1], written as `50%` or `0.5`. A number without a percent sign is a fraction of 1."""

    name = "percentage"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        found = _SHARE.fullmatch(text)
        if found is None:
            self.fail(f"{text!r} is no percentage. Write 50% or 0.5", param, ctx)
        share = float(found[1]) / (100 if found[2] else 1)
        if not 0 < share <= 1:
            meant = "" if found[2] or share <= 1 or share > 100 else f" Did you mean {found[1]}%?"
            self.fail(f"{text!r} is {share:.0%}, and a share is above 0% and at most 100%.{meant}", param, ctx)
        return share
