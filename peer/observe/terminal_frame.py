"""Renders one frame of the live view from the status and a short history. Pure. The frame fits terminals of 40 columns
and more. Control characters in texts of other peers are escaped."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from peer.observe.formatting import amount, duration, harmless, loss_words, participation
from peer.observe.progress import split_wait_name, wait_numbers, worth_showing
from peer.observe.status.columns import short
from peer.observe.status.text import answer, budget_line, hold_out, peers_line
from peer.observe.status.value import (
    DaemonStatus,
    Notice,
    NoticeSeverity,
    RoundsStatus,
    TrainingStatus,
    WaitStatus,
)

MAX_LOSSES = 2000
RATE_OVER_S = 5.0
"""Seconds over which the displayed transfer rates are averaged."""
NOTICES_SHOWN = 5
BAR_WIDTH = 24
BARS = "▁▂▃▄▅▆▇█"


class History:
    """What the view needs from earlier statuses: losses, and byte counts for the rates. Bounded."""

    def __init__(self) -> None:
        self.losses: deque[float] = deque(maxlen=MAX_LOSSES)
        """Nats a token, oldest first."""
        self._steps = -1
        self._bytes: deque[tuple[float, int, int]] = deque(maxlen=64)

    def add(self, status: DaemonStatus, now: float) -> None:
        """Record a status. `now`: monotonic seconds."""
        training = status.training
        if training is not None and training.loss is not None and training.steps != self._steps:
            self._steps = training.steps
            self.losses.append(training.loss)
        self._bytes.append((now, status.bytes_sent, status.bytes_received))
        while now - self._bytes[0][0] > RATE_OVER_S and len(self._bytes) > 2:
            self._bytes.popleft()

    def rates(self) -> tuple[float, float]:
        """Return bytes per second sent and received, averaged over `RATE_OVER_S`."""
        if len(self._bytes) < 2:
            return 0.0, 0.0
        (t0, sent0, received0), (t1, sent1, received1) = self._bytes[0], self._bytes[-1]
        seconds = max(t1 - t0, 1e-9)
        return max(0.0, (sent1 - sent0) / seconds), max(0.0, (received1 - received0) / seconds)


class Sparkline:
    """Draws values as one line of block characters in the available width. Each character is the mean of an equal
    number of values."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = [value for value in values if math.isfinite(value)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self._values, options.max_width), style="cyan", no_wrap=True)


def sparkline(values: Sequence[float], width: int) -> str:
    """Return at most `width` characters: ▁ for the lowest value, █ for the highest. Constant values give ▁."""
    if not values or width < 1:
        return ""
    each = -(-len(values) // width)
    chunks = [values[i : i + each] for i in range(0, len(values), each)]
    means = [math.fsum(chunk) / len(chunk) for chunk in chunks]
    low, high = min(means), max(means)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def render_frame(status: DaemonStatus, history: History) -> RenderableType:
    """Return the complete view for `rich`."""
    table = Table.grid(padding=(0, 1), expand=True)
    table.add_column(style="dim", no_wrap=True, min_width=9)
    table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    for name, value in _rows(status, history):
        table.add_row(name, value)
    return Group(Text(), _title(status), table)


def _rows(status: DaemonStatus, history: History) -> Iterable[tuple[str, RenderableType]]:
    if (progress := status.progress) is not None:
        yield "round", _round(progress, status)
        yield "rounds", Text(participation(progress.rounds))
        yield "partner", _partner(progress)
    if (training := status.training) is not None:
        yield from _training(training, history)
    if status.peers is not None:
        yield "peers", Text(peers_line(status.peers))
    if status.reachable.value is False:
        yield "reachable", Text(harmless(answer(status.reachable)), style="yellow")
    sent, received = history.rates()
    yield "up", _traffic(status.bytes_sent, sent, status.caps.sent)
    yield "down", _traffic(status.bytes_received, received, status.caps.received)
    if (budget := status.budget) is not None and (used := budget_line(budget)) and not budget.why:
        yield "budget", Text(used)
    for notice in status.notices[:NOTICES_SHOWN]:
        yield _notice(notice)
    if worth_showing(wait := status.wait):
        what, details = split_wait_name(wait.name)
        yield "waiting", _bar(wait, what)
        yield "", Text(wait_numbers(wait))
        if details:
            yield "", Text(harmless(details), no_wrap=True, overflow="ellipsis")


def _notice(notice: Notice) -> tuple[str, Text]:
    style = "" if notice.severity is NoticeSeverity.NOTE else "yellow"
    return harmless(short(notice.about)), Text(harmless(notice.text), style=style)


def _title(status: DaemonStatus) -> Text:
    title = Text(no_wrap=True, overflow="ellipsis")
    title.append(f" {harmless(status.run or status.run_id[:16])}", style="bold")
    title.append(f"  {status.status}", style="bold green" if status.status == "training" else "bold yellow")
    title.append(f"  {_phase(status.phase)} · up {duration(status.uptime_s)} · {_short(status.peer_id)}")
    return title


def _phase(phase: str) -> str:
    """Return the phase with its peer ids shortened."""
    return " ".join(_short(word) if len(word) > 40 else word for word in harmless(phase).split(" "))


def _round(progress: RoundsStatus, status: DaemonStatus) -> Text:
    text, due = f"{progress.round:,}", progress.next_due_in_s
    if status.manifest is not None and status.manifest.total_rounds:
        text += f" of {status.manifest.total_rounds:,}"
    if due is not None and due > 0:
        text += f", due in {duration(due)}"
    return Text(text)


def _partner(progress: RoundsStatus) -> Text:
    if not progress.last_outcome:
        return Text("none yet")
    if not (whom := progress.last_partner):
        return Text(f"none in the last round: {progress.last_outcome}", style="yellow")
    return Text(f"{whom if ' ' in whom else _short(whom)}, {progress.last_seconds:.1f} s")


def _training(training: TrainingStatus, history: History) -> Iterable[tuple[str, RenderableType]]:
    yield "step", Text(f"{training.steps:,} · {training.tokens_per_s:,.0f} tokens/s")
    yield "loss", Text("none yet" if training.loss is None else loss_words(training.loss))
    yield "", Sparkline(list(history.losses))
    if training.val_loss is not None:
        yield "hold-out", Text(hold_out(training))


def _traffic(nbytes: int, rate: float, cap: float | None) -> RenderableType:
    text = f"{amount(nbytes, 'bytes')} · {amount(rate, 'bytes')}/s"
    if cap is None:
        return Text(f"{text} · no cap")
    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_column(width=BAR_WIDTH // 2)
    row.add_row(Text(f"{text} of {amount(cap, 'bytes')}/s"), ProgressBar(cap, min(rate, cap)))
    return row


def _bar(wait: WaitStatus, what: str) -> RenderableType:
    """Return a progress bar; a moving one if the total is not known."""
    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_column(width=BAR_WIDTH)
    total = wait.total
    bar = ProgressBar(total or 100, min(wait.done, total or 0), pulse=total is None, animation_time=wait.seconds)
    row.add_row(Text(harmless(what), style="bold"), bar)
    return row


def _short(peer_id: str) -> str:
    return f"…{peer_id[-6:]}"
