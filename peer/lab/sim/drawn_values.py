"""The values that the peers of a simulation drew from a distribution, and where that distribution is from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SHARES = (0.1, 0.5, 0.9)
"""The reported quantiles over the peers."""


@dataclass(frozen=True, slots=True)
class DrawnValues:
    """The values that the peers drew for one option."""

    option: str
    """The option and its value, as on the command line."""
    source: str
    """Where the distribution is from. Empty: the file names no source."""
    assumed: str
    """Which of its values are assumptions, not measured. Empty: none."""
    quantiles: Mapping[str, tuple[float, float, float]]
    """Name of the value, with its unit -> its 10 %, 50 % and 90 % quantiles over the peers."""

    def lines(self) -> list[tuple[str, str]]:
        """Return the lines of a report: (name, text)."""
        return [
            ("drawn", f"{self.option} (10 %, 50 % and 90 % of the peers)"),
            *((f"  {name}", "  ".join(f"{value:.4g}" for value in three)) for name, three in self.quantiles.items()),
            ("  source", self.source or "the file names none"),
            *([("  assumed", self.assumed)] if self.assumed else []),
        ]


def quantiles_of(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the 10 %, 50 % and 90 % quantiles of at least one value, each of which is one of the values."""
    in_order = sorted(values)
    low, middle, high = (in_order[max(0, math.ceil(share * len(in_order)) - 1)] for share in SHARES)
    return low, middle, high
