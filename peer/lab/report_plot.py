"""Plots loss curves. matplotlib is optional, so only this module and `peer.lab.compare.plot` import it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from peer.errors import UsageError
from peer.lab.compare.plot import COLOURS, COUNTS, DOTS_PER_INCH, LONGEST_NAME, PANEL_INCHES, SETTINGS
from peer.lab.compare.result import Scale, count_scale, time_scale
from peer.lab.report_curves import ReportCurve
from peer.whole_files import replace_file

MEASURES = {
    "tokens": "tokens of all peers",
    "bytes": "payload sent by each peer",
    "seconds": "time",
    "rounds": "rounds",
    "own tokens": "tokens of this peer",
}
"""Measures that a loss can be plotted against -> label of the axis."""


def write_curves(curves: Sequence[ReportCurve], file: Path) -> None:
    """Plot the curves into a PNG or SVG file, chosen by its suffix, with one panel for each measure that all curves
    have. The file is replaced atomically. Raises OSError, and UsageError if the curves have no measure in common."""
    shared = _shared(curves)
    if not shared:
        raise UsageError("these reports have nothing in common that a loss could be drawn against", "Plot them apart.")
    replace_file(file, _drawn(curves, shared, file.suffix.lower().removeprefix(".")), mode=0o666)


def drawn_curves(curves: Sequence[ReportCurve]) -> str:
    """Return the plot of a report's curves as SVG text, for a notebook. Empty if there is nothing to plot."""
    shared = _shared(curves)
    return _drawn(curves, shared, "svg").decode() if curves and shared else ""


def _shared(curves: Sequence[ReportCurve]) -> list[str]:
    return [name for name in MEASURES if all(name in curve.along for curve in curves)]


def _drawn(curves: Sequence[ReportCurve], shared: Sequence[str], kind: str) -> bytes:
    drawn = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update({**SETTINGS, "svg.hashsalt": "peer plot"})
        figure = _figure(curves, shared)
        figure.savefig(drawn, format=kind, dpi=DOTS_PER_INCH, metadata={"Date": None} if kind == "svg" else {})
    return drawn.getvalue()


def _figure(curves: Sequence[ReportCurve], shared: Sequence[str]) -> Figure:
    columns, rows_of_names = min(2, len(shared)), -(-len(curves) // 3)
    rows = -(-len(shared) // columns)
    size = columns * PANEL_INCHES[0], rows * PANEL_INCHES[1] + 0.4 + 0.2 * rows_of_names
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    lines = []
    for place, measure in enumerate(shared, 1):
        axes = figure.add_subplot(rows, columns, place)
        label, scale = _axis(measure, max(max(curve.along[measure]) for curve in curves))
        lines = [
            line
            for number, curve in enumerate(curves)
            for line in axes.plot(
                [value / scale.size for value in curve.along[measure]],
                curve.losses,
                color=COLOURS[number % len(COLOURS)],
                linestyle="--" if number >= len(COLOURS) else "-",
                marker="o",
                markersize=2.5,
                linewidth=1.5,
            )
        ]
        axes.set_xlabel(label)
        axes.set_ylabel("loss (nats a token)")
        axes.grid(axis="y", color="#e5e5e5")
    names = [f"{_shortened(curve.name)}  {curve.losses[-1]:.4f}" for curve in curves]
    figure.legend(lines, names, loc="outside lower left", ncols=min(3, len(curves)), frameon=False)
    return figure


def _axis(measure: str, most: float) -> tuple[str, Scale]:
    words = MEASURES[measure]
    if measure == "seconds":
        scale = time_scale(most)
        return f"{words} ({scale.unit})", scale
    if measure == "bytes":
        scale = count_scale(most)
        return f"{words} ({scale.unit}B)", scale
    scale = Scale(1.0, "") if measure == "rounds" else count_scale(most)
    return f"{words}{COUNTS[scale.unit]}", scale


def _shortened(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]
