"""The picture of a comparison: the loss against tokens, bytes and seconds, drawn as SVG by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape

from peer.lab.compare.curve import Mark
from peer.lab.compare.result import Comparison, Standing, amount

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933")
"""Told apart by people who see colours differently (Okabe and Ito)."""
DASHES = ("", "6 3")
"""The second eight methods are dashed."""
PANEL_W, PANEL_H = 330, 260
"""Pixels of a panel's axes."""
LEFT, TOP, GAP, BELOW, LEGEND_ROW = 62, 62, 66, 52, 20
EARLY = 0.2
"""The height of the panels fits the losses after this part of the tokens. Earlier, curves may leave it at the top."""
ROOM = 0.05
"""Part of the height that stays free above and below."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values from `low` to `high`, at pixels from `begin` to `end`."""

    low: float
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return round(self.begin + part * (self.end - self.begin), 2)

    def ticks(self) -> list[float]:
        """Return round values, two to seven of them."""
        step = nice_step((self.high - self.low) / 6)
        first = math.ceil(self.low / step - 1e-9)
        return [step * place for place in range(first, math.floor(self.high / step + 1e-9) + 1)]


def nice_step(least: float) -> float:
    """Return the least of 1, 2 and 5 times a power of ten that is not below `least`."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1.0, 2.0, 5.0, 10.0) if step * power >= least * (1 - 1e-9))


def picture(outcome: Comparison) -> str:
    """Draw the outcome: three panels with one height, and a legend below them."""
    panels = (
        ("tokens of all peers", lambda mark: mark.tokens),
        ("bytes sent by a peer", lambda mark: mark.bytes),
        ("seconds", lambda mark: mark.seconds),
    )
    width = LEFT + len(panels) * (PANEL_W + GAP)
    rows = -(-len(outcome.standings) // 4)
    height = TOP + PANEL_H + BELOW + rows * LEGEND_ROW + 12
    losses = _heights(outcome)
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        _text(LEFT, 22, f"{outcome.peers} peers, {outcome.place}", size=15),
        _text(LEFT, 42, f"loss in nats a token; dotted: the target {outcome.target:.4f}, {outcome.why}"),
    ]
    for number, (name, of) in enumerate(panels):
        drawn += _panel(outcome, number, name, of, losses)
    drawn += _legend(outcome.standings, width, TOP + PANEL_H + BELOW)
    return "\n".join([*drawn, "</svg>", ""])


def _heights(outcome: Comparison) -> _Axis:
    """Return the axis of the losses, which all panels share."""
    curves = [standing.curve for standing in outcome.standings]
    late = [mark.loss for curve in curves for mark in curve if mark.tokens >= EARLY * curve[-1].tokens]
    low, high = min([outcome.target, *late]), max([outcome.target, *late])
    room = ROOM * (high - low) or 0.1
    return _Axis(low - room, high + room, TOP + PANEL_H, TOP)


def _panel(outcome: Comparison, number: int, name: str, of: Callable[[Mark], float], losses: _Axis) -> Iterator[str]:
    """Draw the curves against one measure."""
    begin = LEFT + number * (PANEL_W + GAP)
    most = max(of(mark) for standing in outcome.standings for mark in standing.curve)
    along = _Axis(0.0, most or 1.0, begin, begin + PANEL_W)
    inside = f'x="{begin - 4}" y="{TOP}" width="{PANEL_W + 8}" height="{PANEL_H}"'
    yield f'<clipPath id="panel{number}"><rect {inside}/></clipPath>'
    for tick in losses.ticks():
        y = losses.at(tick)
        yield f'<path d="M{begin} {y}H{begin + PANEL_W}" stroke="#e5e5e5"/>'
        yield _text(begin - 8, y + 4, f"{tick:.4g}", anchor="end")
    for tick in along.ticks():
        x = along.at(tick)
        yield f'<path d="M{x} {TOP + PANEL_H}v5" stroke="#333333"/>'
        yield _text(x, TOP + PANEL_H + 19, amount(tick).strip(), anchor="middle")
    yield f'<path d="M{begin} {TOP}V{TOP + PANEL_H}H{begin + PANEL_W}" fill="none" stroke="#333333"/>'
    yield _text(begin + PANEL_W / 2, TOP + PANEL_H + 38, name, anchor="middle")
    goal = losses.at(outcome.target)
    yield f'<path d="M{begin} {goal}H{begin + PANEL_W}" stroke="#333333" stroke-dasharray="1 3"/>'
    yield f'<g clip-path="url(#panel{number})" fill="none" stroke-width="1.8" stroke-linejoin="round">'
    for place, standing in enumerate(outcome.standings):
        points = " ".join(f"{along.at(of(mark))},{losses.at(mark.loss)}" for mark in standing.curve)
        yield f'<polyline points="{points}" {_stroke(place)}/>'
    yield "</g>"
    for place, standing in enumerate(outcome.standings):
        if (mark := standing.at_target) is not None:
            yield f'<circle cx="{along.at(of(mark))}" cy="{losses.at(mark.loss)}" r="3.5" fill="{_colour(place)}"/>'


def _legend(standings: Sequence[Standing], width: int, top: float) -> Iterator[str]:
    """Name the methods, four in a row."""
    column = (width - LEFT) / 4
    for place, standing in enumerate(standings):
        x, y = LEFT + place % 4 * column, top + place // 4 * LEGEND_ROW + 8
        yield f'<path d="M{x:.0f} {y}h26" stroke-width="2.4" {_stroke(place)}/>'
        yield _text(x + 34, y + 4, f"{standing.entry.name}  {standing.loss:.4f}")


def _stroke(place: int) -> str:
    dash = DASHES[place // len(COLOURS) % len(DASHES)]
    return f'stroke="{_colour(place)}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def _colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def _text(x: float, y: float, text: str, *, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
