"""The text tables of benchmarks, and shared arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence

Cell = str | float | int | None


def table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a text table, right-aligned except for the first column. None and NaN are empty cells."""
    shown = [list(heads), *([_shown(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(heads))]
    lines = []
    for first, *rest in shown:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _shown(cell: Cell) -> str:
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, float) and math.isnan(cell):
        return ""
    return f"{cell:.3g}" if abs(cell) < 100 else f"{cell:.0f}"


def slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through equally spaced values (distance 1)."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((at - middle) ** 2 for at in range(len(values)))
    return sum((at - middle) * (value - mean) for at, value in enumerate(values)) / spread


def percentile(values: Sequence[float], part: float) -> float:
    """Return the value that a share `part` (0 to 1) of all values does not exceed."""
    return sorted(values)[min(len(values) - 1, math.ceil(part * len(values)) - 1)]
