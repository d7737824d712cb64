"""Amounts of data as people write them: 500MB, 5GB, 1.5 TB. GiB and the like are powers of 1024. Without a unit they
are bytes. Every option that takes an amount or a rate of bytes reads it here."""

from __future__ import annotations

import re

import click

UNITS = {
    "": 1,
    "b": 1,
    **{unit + "b": 1000**power for power, unit in enumerate("kmgt", 1)},
    **{unit + "ib": 1024**power for power, unit in enumerate("kmgt", 1)},
}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?(?:e\d{1,2})?)\s?([a-z]{0,3})", re.ASCII | re.IGNORECASE)
LARGEST = 10**18


class Size(click.ParamType):  # type: ignore[type-arg]
    """An amount of data as bytes, above 0."""

    name = "size"
    example = "is no amount of data. Write 500MB, 5GB or 1.5TB"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        found = _SIZE.fullmatch(text)
        unit = UNITS.get(found[2].lower()) if found else None
        nbytes = round(float(found[1]) * unit) if found and unit else 0
        if not 0 < nbytes <= LARGEST:
            self.fail(f"{text!r} {self.example}", param, ctx)
        return nbytes


class ByteRate(Size):
    """Bytes per second, above 0. The `/s` may be left out."""

    name = "rate"
    example = "is no rate. Write bytes a second, as 500kB or 1.5MB"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return super().convert(str(value).strip().removesuffix("/s"), param, ctx)
