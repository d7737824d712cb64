"""The types of options that take an amount or a rate of bytes: 500MB, 5GB, 1.5 TB. GiB and the like are powers of 1024;
without a unit the number is bytes. Units of bits are refused, because a misread limit would be wrong by a factor of
8."""

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
_BITS = re.compile(r"[\d.e]+\s?(?:[KMGT]i?b|(?i:[kmgt]?i?(?:bits?|bps)))", re.ASCII)
"""Matches 1Mb, 1Mbit, 10 Mbps, 10mbit. Does not match lower-case 5gb, by which people mean bytes."""
LARGEST = 10**18


class Size(click.ParamType):  # type: ignore[type-arg]
    """An amount of data in bytes, above 0."""

    name = "size"
    example = "is no amount of data. Write 500MB, 5GB or 1.5TB"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        if _BITS.fullmatch(text):
            self.fail(f"{text!r} counts bits, and this counts bytes, of 8 bits each. Write B, as in 1.5MB", param, ctx)
        found = _SIZE.fullmatch(text)
        unit = UNITS.get(found[2].lower()) if found else None
        nbytes = round(float(found[1]) * unit) if found and unit else 0
        if not 0 < nbytes <= LARGEST:
            self.fail(f"{text!r} {self.example}", param, ctx)
        return nbytes


class ByteRate(Size):
    """Bytes per second, above 0. A trailing `/s` is optional."""

    name = "rate"
    example = "is no rate. Write bytes a second, as 500kB or 1.5MB"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return super().convert(str(value).strip().removesuffix("/s").rstrip(), param, ctx)
