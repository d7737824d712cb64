"""The plot of a comparison: loss against tokens, bytes and time, and the worth of each method if it was measured.

matplotlib is optional, so only this module and `peer.lab.report_plot` import it. Only its object interface is used,
without a window system and without the user's settings or those in the working directory."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from peer.lab.compare.curve import Mark
from peer.lab.compare.result import Comparison, Scale, Standing, count_scale, seeds_in_words, time_scale
from peer.whole_files import replace_file

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
"""Distinguishable with colour vision deficiencies (Okabe and Ito)."""
EARLY = 0.2
"""The vertical range of the panels covers the losses after this share of the tokens. Earlier, curves may leave the
panel at the top."""
ROOM = 0.05
"""Share of the height left free above and below."""
PANEL_INCHES = (4.4, 3.5)
DOTS_PER_INCH = 150
COUNTS = {"": "", "k": " (thousands)", "M": " (millions)", "G": " (billions)", "T": " (trillions)"}
WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 1}
LONGEST_NAME = 24
"""Longest name in characters. A longer one is cut at its beginning, because paths differ at their end."""
SETTINGS: Any = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "font.size": 10.0,
    "text.parse_math": False,  # a dollar sign in a file's name is no formula
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "peer compare",  # makes the file reproducible
}


def write_plot(outcome: Comparison, file: Path) -> None:
    """Plot the comparison into a PNG or SVG file, chosen by its suffix. The file is replaced atomically. Raises
    OSError."""
    drawn = io.BytesIO()
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        kind = file.suffix.lower().removeprefix(".")
        metadata = {"Date": None} if kind == "svg" else {}
        figure_of(outcome).savefig(drawn, format=kind, dpi=DOTS_PER_INCH, metadata=metadata)
    replace_file(file, drawn.getvalue(), mode=0o666)


def figure_of(outcome: Comparison) -> Figure:
    """Return the figure: three panels with the same vertical range, and a fourth for the worth if it was measured."""
    marks = [mark for standing in outcome.standings for mark in standing.curve]
    tokens, sent = (count_scale(max(of(mark) for mark in marks)) for of in (_tokens, _bytes))
    time = time_scale(max(mark.seconds for mark in marks))
    panels: list[tuple[str, Callable[[Mark], float], Scale]] = [
        (f"tokens of all peers{COUNTS[tokens.unit]}", _tokens, tokens),
        (f"payload sent by each peer ({sent.unit}B)", _bytes, sent),
        (f"time ({time.unit})", _seconds, time),
    ]
    count = len(panels) + (outcome.yardstick is not None)
    columns = 2 if count == 4 else count
    legend_columns = columns + 1 if max(len(_name(one)) for one in outcome.standings) > 16 else 2 * columns
    legend_rows = -(-len(outcome.standings) // legend_columns)
    width, height = columns * PANEL_INCHES[0], -(-count // columns) * PANEL_INCHES[1] + 0.9 + 0.2 * legend_rows
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"{outcome.peers} peers, {seeds_in_words(outcome.seeds)}, {outcome.place}\n"
        f"dotted: the target {outcome.target:.4f}, {outcome.why}",
        fontsize="medium",
    )
    lines = list[Line2D]()
    for number, (label, of, scale) in enumerate(panels):
        axes = figure.add_subplot(-(-count // columns), columns, number + 1)
        lines = _curves(axes, outcome, of, scale)
        axes.set_xlabel(label)
        axes.set_ylabel("loss (nats a token)")
    if outcome.yardstick is not None:
        _worths(figure.add_subplot(2, 2, 4), outcome)
    names = [f"{_name(standing)}  {standing.loss:.4f}" for standing in outcome.standings]
    figure.legend(lines, names, loc="outside lower left", ncols=legend_columns, frameon=False)
    return figure


def _tokens(mark: Mark) -> float:
    return mark.tokens


def _bytes(mark: Mark) -> float:
    return mark.bytes


def _seconds(mark: Mark) -> float:
    return mark.seconds


def _curves(axes: Axes, outcome: Comparison, of: Callable[[Mark], float], scale: Scale) -> list[Line2D]:
    """Plot the loss of each method against one measure. A method that sends nothing is shown against bytes by its last
    loss only, at 0. Return the line of each method."""
    lines = list[Line2D]()
    for place, standing in enumerate(outcome.standings):
        style: dict[str, Any] = {"color": _colour(place), "linestyle": "--" if place >= len(COLOURS) else "-"}
        shown = standing.curve if of(standing.curve[-1]) > 0 else standing.curve[-1:]
        along, losses = [of(mark) / scale.size for mark in shown], [mark.loss for mark in shown]
        lines += axes.plot(along, losses, marker="o", markersize=2.5, linewidth=1.5, **style)
        if (at := standing.at_target) is not None and at in shown:
            axes.plot([of(at) / scale.size], [at.loss], marker="o", markersize=6, color=_colour(place))
    axes.axhline(outcome.target, color="#333333", linestyle=":", linewidth=1.2)
    most = max(of(mark) for standing in outcome.standings for mark in standing.curve) / scale.size or 1.0
    axes.set_xlim(-0.02 * most, 1.02 * most)
    axes.set_ylim(*_heights(outcome))
    axes.grid(axis="y", color="#e5e5e5")
    return lines


def _heights(outcome: Comparison) -> tuple[float, float]:
    """Return the lowest and the highest loss that the panels show."""
    curves = [standing.curve for standing in outcome.standings]
    late = [mark.loss for curve in curves for mark in curve if mark.tokens >= EARLY * curve[-1].tokens]
    low, high = min([outcome.target, *late]), max([outcome.target, *late])
    room = ROOM * (high - low) or 0.1
    return low - room, high + room


def _worths(axes: Axes, outcome: Comparison) -> None:
    """Plot the effective speed-up of each method, with its confidence interval and the value of each seed."""
    assert outcome.yardstick is not None
    lengths = [factor for pairs in outcome.yardstick.losses.values() for factor, _ in pairs]
    right = 1.0
    for place, standing in enumerate(outcome.standings):
        worth, colour = standing.worth, _colour(place)
        assert worth is not None
        known = [value for value in worth.values if 0 < value < math.inf]
        if len(known) > 1:
            axes.plot(known, [place] * len(known), "o", color=colour, markersize=4, markerfacecolor="white")
        if (mean := worth.mean) is not None:
            half = worth.half_width
            axes.errorbar(mean, place, xerr=half, fmt="D", color=colour, capsize=4, markersize=6)
            text, at = worth.text, mean + (half or 0.0)
        elif 0.0 in worth.values:
            axes.plot(min(lengths), place, "<", color=colour, markersize=7)
            text, at = f"less than {min(lengths):g}", min(lengths)
        else:
            axes.plot(max(lengths), place, ">", color=colour, markersize=7)
            text, at = f"more than {max(lengths):g}", max(lengths)
        axes.annotate(text, (at, place), xytext=(9, 0), textcoords="offset points", va="center", bbox=WHITE)
        right = max(right, at)
    axes.axvline(1.0, color="#333333", linestyle=":", linewidth=1.2)
    axes.set_yticks(range(len(outcome.standings)), [_name(standing) for standing in outcome.standings])
    axes.set_ylim(len(outcome.standings) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.35 * right)
    many = "\nbar: interval of 95 %, circle: one seed" if len(outcome.seeds) > 1 else ""
    axes.set_xlabel(f"effective speed-up (× tokens of each peer){many}")
    axes.grid(axis="x", color="#e5e5e5")


def _name(standing: Standing) -> str:
    name = standing.entry.name
    return name if len(name) <= LONGEST_NAME else "…" + name[1 - LONGEST_NAME :]


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]
