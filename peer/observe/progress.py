"""The progress of the daemon's waits: reported by the waiting code, shown in the status."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

from peer.observe.formatting import amount, duration
from peer.observe.status.value import WaitStatus

SHOWN_AFTER_S = 2.0
"""Shorter waits are not shown."""
RATE_S = 60.0
"""Averaging time of the rate. It is long because donors come and go, and send little during their own exchanges."""
SAMPLE_S = 0.5
"""Least seconds between two samples that are kept for the rate."""


class WaitProgress(Protocol):
    """A callback for the progress of a wait. `total` None: not known. With unit `s` only time counts: `done` is the
    time waited so far and `total` the timeout."""

    def __call__(self, name: str, done: float, total: float | None, unit: str) -> None: ...


def ignore_progress(name: str, done: float, total: float | None, unit: str) -> None:
    """Do nothing: a `WaitProgress` for callers that show no progress."""


@dataclass(frozen=True, slots=True)
class _Wait:
    name: str
    done: float
    total: float | None
    unit: str
    since: float
    first: float
    """`done` at the beginning."""
    samples: deque[tuple[float, float]] = field(default_factory=deque)
    """(time, done) of the last `RATE_S` seconds, oldest first."""

    def observe(self, now: float) -> None:
        """Add a sample of the current value."""
        samples = self.samples
        if samples and self.done < samples[-1][1]:
            samples.clear()
        if not samples or now - samples[-1][0] >= SAMPLE_S:
            samples.append((now, self.done))
        while len(samples) > 1 and samples[1][0] <= now - RATE_S:
            samples.popleft()

    def rate(self, now: float) -> float:
        """Return units per second over the last `RATE_S` seconds. 0: not known, or no progress."""
        at, done = self.samples[0]
        return (self.done - done) / (now - at) if now > at else 0.0


class Waits:
    """Holds the daemon's current wait. There is at most one: a new wait replaces the previous one. A part in brackets
    at the end of the name may change while the wait goes on."""

    def __init__(self, now: Callable[[], float]) -> None:
        """`now`: returns monotonic seconds."""
        self._now = now
        self._wait: _Wait | None = None

    def update(self, name: str, done: float, total: float | None, unit: str) -> None:
        """Set the progress of the wait, as a `WaitProgress`. A new name, or a value below the first one, begins a new
        wait."""
        last, now = self._wait, self._now()
        wait = _Wait(name, done, total, unit, now - done if unit == "s" else now, done)
        if (
            unit != "s"
            and last is not None
            and split_wait_name(last.name)[0] == split_wait_name(name)[0]
            and last.first <= done
        ):
            wait = _Wait(name, done, total, unit, last.since, last.first, last.samples)
        wait.observe(now)
        self._wait = wait

    def end(self) -> None:
        """Clear the current wait."""
        self._wait = None

    def report(self) -> WaitStatus | None:
        """Return the wait as a section of the status; None: there is none."""
        wait = self._wait
        if wait is None:
            return None
        now = self._now()
        seconds = round(now - wait.since, 1)
        done, rate = (seconds, 0.0) if wait.unit == "s" else (wait.done, round(wait.rate(now), 1))
        return WaitStatus(wait.name, done, wait.total, wait.unit, seconds, rate)


def split_wait_name(name: str) -> tuple[str, str]:
    """Split a wait's name into its constant part and the details in brackets."""
    what, _, details = name.partition(" (")
    return what, details.removesuffix(")")


def worth_showing(wait: WaitStatus | None) -> TypeGuard[WaitStatus]:
    return wait is not None and wait.seconds >= SHOWN_AFTER_S


def wait_numbers(wait: WaitStatus) -> str:
    """Return the progress as text: amount and total, rate, estimated time left."""
    done, total, unit = wait.done, wait.total, wait.unit
    if unit == "s":
        return amount(done, "s") + (f" of at most {amount(total, 's')}" if total is not None else "")
    parts = [amount(done, unit) + (f" of {amount(total, unit)} ({percent(done, total)})" if total else "")]
    rate = (done / wait.seconds if wait.seconds > 0 else 0.0) if wait.rate is None else wait.rate
    if rate > 0:
        parts.append(f"{amount(rate, unit)}/s")
        if total is not None:
            parts.append(f"~{duration((total - done) / rate)} left")
    return ", ".join(parts)


def percent(done: float, total: float) -> str:
    """Return the percentage done, rounded down so that only completion gives 100 %."""
    return f"{int(100 * min(done, total) / total)} %"


def wait_line(wait: WaitStatus) -> str:
    """Return a wait as one plain line."""
    return f"{wait.name}: {wait_numbers(wait)}"
