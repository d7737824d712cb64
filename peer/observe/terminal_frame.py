"""The frame of the terminal view, a pure function of the status report (`peer status --json`) and of earlier reports.
It fits any width from 40 columns on. Text from other peers is made harmless."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peer.observe.formatting import amount, duration, harmless, loss_words, round_outcomes
from peer.observe.progress import parted, words, worth_showing

MAX_LOSSES = 2000
RATE_OVER_S = 5.0
"""Seconds over which the shown rates are averaged."""
REFUSALS_SHOWN = 2
FINDINGS_SHOWN = 3
BAR_WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"

Report = Mapping[str, Any]


class History:
    """The part of earlier reports that a view needs. Bounded."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=MAX_LOSSES)
        """Nats a token, in the order they were seen."""
        self._steps = -1
        self._bytes: deque[tuple[float, int, int]] = deque(maxlen=64)

    def add(self, report: Report, now: float) -> None:
        """`now` in seconds, of any origin."""
        if report.get("loss") is not None and report["steps"] != self._steps:
            self._steps = report["steps"]
            self.losses.append(report["loss"])
        self._bytes.append((now, report["bytes_sent"], report["bytes_received"]))
        while now - self._bytes[0][0] > RATE_OVER_S and len(self._bytes) > 2:
            self._bytes.popleft()

    def rates(self) -> tuple[float, float]:
        """Return the bytes per second sent and received, over the last seconds."""
        if len(self._bytes) < 2:
            return 0.0, 0.0
        (t0, sent0, received0), (t1, sent1, received1) = self._bytes[0], self._bytes[-1]
        seconds = max(t1 - t0, 1e-9)
        return max(0.0, (sent1 - sent0) / seconds), max(0.0, (received1 - received0) / seconds)


class Sparkline:
    """The last values in one line, as wide as there is room: each sign the mean of equally many."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = [value for value in values if math.isfinite(value)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self._values, options.max_width), style="cyan", no_wrap=True)


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw at most `width` signs, the lowest value ▁, the highest █. A flat line lies low."""
    if not values or width < 1:
        return ""
    each = -(-len(values) // width)
    chunks = [values[i : i + each] for i in range(0, len(values), each)]
    means = [math.fsum(chunk) / len(chunk) for chunk in chunks]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def picture(report: Report, history: History) -> RenderableType:
    """Draw the complete view."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for name, value in _rows(report, history):
        table.add_row(name, value)
    return Group(Text(), _title(report), table)


def _rows(report: Report, history: History) -> Iterable[tuple[str, RenderableType]]:
    if "round" in report:
        yield "round", _round(report)
        yield "rounds", _participation(report)
        yield "partner", _partner(report)
    if "steps" in report:
        yield "step", Text(f"{report['steps']:,} · {report['tokens_per_s']:,.0f} tokens/s")
        yield "loss", _loss(report)
        yield "", Sparkline(list(history.losses))
    if report.get("val_loss"):
        round_, nats, bits = report["val_loss"]
        yield "hold-out", Text(f"{loss_words(nats, bits)}, round {round_}")
    if "peers" in report:
        yield "peers", _peers(report)
    if report.get("reachable", {}).get("value") is False:
        yield "reachable", Text(f"no: {harmless(report['reachable']['why'])}", style="yellow")
    for name, direction, rate in zip(("up", "down"), ("sent", "received"), history.rates(), strict=True):
        yield name, _traffic(report, direction, rate)
    if "budget" in report and any(report["budget"]["limit"].values()):
        yield "budget", _budget(report["budget"])
    if why := report.get("directory", {}).get("why"):
        yield "directory", Text(harmless(why), style="yellow")
    for finding in report.get("diagnosis", [])[:FINDINGS_SHOWN]:
        yield "diagnosis", Text(harmless(finding["why"]), style="yellow" if finding["who"] else "")
    for refusal in report.get("refusals", [])[:REFUSALS_SHOWN]:
        yield "refused", Text(_refusal(refusal), style="yellow")
    if worth_showing(wait := report.get("wait")):
        what, details = parted(wait["name"])
        yield "waiting", _bar(wait, what)
        yield "", Text(words(wait))
        if details:
            yield "", Text(harmless(details), no_wrap=True, overflow="ellipsis")


def _title(report: Report) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(f" {harmless(report.get('run') or report['run_id'][:16])}", style="bold")
    title.append(f"  {report['status']}", style="bold green" if report["status"] == "training" else "bold yellow")
    title.append(f"  {_phase(report)} · up {duration(report['uptime_s'])} · {_short(report['peer_id'])}")
    return title


def _phase(report: Report) -> str:
    """Peer ids in it are shortened."""
    return " ".join(_short(word) if len(word) > 40 else word for word in harmless(report["phase"]).split(" "))


def _round(report: Report) -> Text:
    text, due = f"{report['round']:,}", report.get("next_due_in_s")
    if report.get("total_rounds"):
        text += f" of {report['total_rounds']:,}"
    if due is not None and due > 0:
        text += f", due in {duration(due)}"
    return Text(text)


def _participation(report: Report) -> Text:
    rounds = report["rounds"]
    if not (due := rounds.get("due", 0)):
        return Text("none was due yet")
    return Text(f"took part in {rounds.get('exchanged', 0) / due:.0%} of {due:,} due: {round_outcomes(rounds)}")


def _partner(report: Report) -> Text:
    if not report.get("last_outcome"):
        return Text("none yet")
    if not report["last_partner"]:
        return Text(f"none in the last round: {report['last_outcome']}", style="yellow")
    whom = report["last_partner"]
    return Text(f"{whom if ' ' in whom else _short(whom)}, {report.get('last_seconds', 0.0):.1f} s")


def _loss(report: Report) -> Text:
    return Text("none yet" if report["loss"] is None else loss_words(report["loss"]))


def _peers(report: Report) -> Text:
    peers = report["peers"]
    train = sum(peer["status"] == "training" for peer in peers)
    dialled = sum(bool(peer["reachable"]) for peer in peers)
    return Text(f"{len(peers)} known, {train} train, {dialled} can be dialled")


def _traffic(report: Report, direction: str, rate: float) -> RenderableType:
    cap = report.get("caps", {}).get(direction)
    text = f"{amount(report[f'bytes_{direction}'], 'bytes')} · {amount(rate, 'bytes')}/s"
    if cap is None:
        return Text(f"{text} · no cap")
    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_column(width=BAR_WIDTH // 2)
    row.add_row(Text(f"{text} of {amount(cap, 'bytes')}/s"), ProgressBar(cap, min(rate, cap)))
    return row


def _budget(budget: Report) -> Text:
    """Draw the volunteer's upload quota, and why exchanges wait, when they do."""
    if budget["why"]:
        return Text(harmless(budget["why"]), style="yellow")
    used, limits = budget["used"], budget["limit"]
    told = [f"{amount(used[p], 'bytes')} of {amount(limits[p], 'bytes')} this {p}" for p in limits if limits[p]]
    return Text(" · ".join(told))


def _refusal(refusal: Report) -> str:
    caller = _short(refusal["caller"]) if len(refusal["caller"]) > 40 else refusal["caller"]
    return harmless(f"{duration(refusal['seconds_ago'])} ago, {caller}: {refusal['code']}: {refusal['reason']}")


def _bar(wait: Report, what: str) -> RenderableType:
    """Draw a wait: with a known end a bar that fills, else one that moves."""
    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_column(width=BAR_WIDTH)
    total = wait["total"]
    bar = ProgressBar(total or 100, min(wait["done"], total or 0), pulse=total is None, animation_time=wait["seconds"])
    row.add_row(Text(harmless(what), style="bold"), bar)
    return row


def _short(peer_id: str) -> str:
    return f"…{peer_id[-6:]}"
