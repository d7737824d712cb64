"""The daemon's current wait and its progress, for `peer status`, a line or a bar."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeGuard

from peer.observe.formatting import amount, duration
from peer.observe.status.value import WaitStatus

SHOWN_AFTER_S = 2.0
"""A shorter wait is not worth a person's look."""
RATE_S = 60.0
"""Seconds over which the rate is measured. Donors come and go, and give little while they exchange."""
SAMPLE_S = 0.5
"""Seconds between two values that are kept for that."""


class WaitProgress(Protocol):
    """A callback with the progress of a wait. `total` None: not known. With unit `s` only the time counts: `done` is
    how long it has taken so far, `total` the most it may take."""

    def __call__(self, name: str, done: float, total: float | None, unit: str) -> None: ...


def ignore_progress(name: str, done: float, total: float | None, unit: str) -> None:
    """Ignore a `Progress`."""


@dataclass(frozen=True, slots=True)
class _Wait:
    name: str
    done: float
    total: float | None
    unit: str
    since: float
    first: float
    """What there was at the beginning."""
    samples: deque[tuple[float, float]] = field(default_factory=deque)
    """(time, done) of the last seconds, oldest first."""

    def observe(self, now: float) -> None:
        """Keep what is there now."""
        samples = self.samples
        if samples and self.done < samples[-1][1]:
            samples.clear()
        if not samples or now - samples[-1][0] >= SAMPLE_S:
            samples.append((now, self.done))
        while len(samples) > 1 and samples[1][0] <= now - RATE_S:
            samples.popleft()

    def rate(self, now: float) -> float:
        """Return how many units came a second lately; 0: not known, or none came."""
        at, done = self.samples[0]
        return (self.done - done) / (now - at) if now > at else 0.0


class Waits:
    """The current wait. `now` in seconds, of any origin. There is one wait at a time: a new one ends the one before.
    The part of a name in brackets may change meanwhile."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wait: _Wait | None = None

    def update(self, name: str, done: float, total: float | None, unit: str) -> None:
        """Set the progress, as a `WaitProgress`. A value below the first one begins the wait again."""
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
        """End the wait."""
        self._wait = None

    def report(self) -> WaitStatus | None:
        """For `peer status`. None when nothing is waited for."""
        wait = self._wait
        if wait is None:
            return None
        now = self._now()
        seconds = round(now - wait.since, 1)
        done, rate = (seconds, 0.0) if wait.unit == "s" else (wait.done, round(wait.rate(now), 1))
        return WaitStatus(wait.name, done, wait.total, wait.unit, seconds, rate)


def split_wait_name(name: str) -> tuple[str, str]:
    """Return the part of a wait's name that stays, and the part in brackets that changes."""
    what, _, details = name.partition(" (")
    return what, details.removesuffix(")")


def worth_showing(wait: WaitStatus | None) -> TypeGuard[WaitStatus]:
    return wait is not None and wait.seconds >= SHOWN_AFTER_S


def wait_numbers(wait: WaitStatus) -> str:
    """Write the numbers of a wait: how much of how much, how fast, how long still."""
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
    """Write how much of a total is done. Only all of it is 100 %."""
    return f"{int(100 * min(done, total) / total)} %"


def wait_line(wait: WaitStatus) -> str:
    """Write a wait as one plain line."""
    return f"{wait.name}: {wait_numbers(wait)}"
