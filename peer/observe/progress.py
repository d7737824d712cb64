"""The daemon's current wait and its progress, for `peer status`, a line or a bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from peer.observe.formatting import amount, duration

SHOWN_AFTER_S = 2.0
"""A shorter wait is not worth a person's look."""


class WaitProgress(Protocol):
    """A callback with the progress of a wait. `total` None: not known. With unit `s` only the time counts: `done` is
    how long it has taken so far, `total` the most it may take."""

    def __call__(self, name: str, done: float, total: float | None, unit: str) -> None: ...


def untold(name: str, done: float, total: float | None, unit: str) -> None:
    """Ignore a `Progress`."""


@dataclass(frozen=True, slots=True)
class _Wait:
    name: str
    done: float
    total: float | None
    unit: str
    since: float


class Waits:
    """The current wait. `now` in seconds, of any origin. There is one wait at a time: a new one ends the one before.
    The part of a name in brackets may change meanwhile."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._wait: _Wait | None = None

    def tell(self, name: str, done: float, total: float | None, unit: str) -> None:
        """Set the progress, as a `Progress`. A smaller value begins the wait again."""
        last, since = self._wait, self._now()
        if unit == "s":
            since -= done
        elif last is not None and _what(last.name) == _what(name) and last.done <= done:
            since = last.since
        self._wait = _Wait(name, done, total, unit, since)

    def end(self) -> None:
        """End the wait."""
        self._wait = None

    def report(self) -> dict[str, Any] | None:
        """JSON-able: name, done, total (or None), unit, seconds since its begin. None when nothing is waited for."""
        wait = self._wait
        if wait is None:
            return None
        seconds = round(self._now() - wait.since, 1)
        done = seconds if wait.unit == "s" else wait.done
        return {"name": wait.name, "done": done, "total": wait.total, "unit": wait.unit, "seconds": seconds}


def _what(name: str) -> str:
    return name.partition(" (")[0]


def worth_showing(wait: Mapping[str, Any] | None) -> TypeGuard[Mapping[str, Any]]:
    return wait is not None and wait["seconds"] >= SHOWN_AFTER_S


def words(wait: Mapping[str, Any]) -> str:
    """Write the numbers of a reported wait: how much of how much, how fast, how long still."""
    done, total, unit, seconds = wait["done"], wait["total"], wait["unit"], wait["seconds"]
    if unit == "s":
        return amount(done, "s") + (f" of at most {amount(total, 's')}" if total is not None else "")
    parts = [amount(done, unit) + (f" of {amount(total, unit)}" if total is not None else "")]
    rate = done / seconds if seconds > 0 else 0.0
    if rate > 0:
        parts.append(f"{amount(rate, unit)}/s")
        if total is not None:
            parts.append(f"{duration((total - done) / rate)} left")
    return ", ".join(parts)


def wait_line(wait: Mapping[str, Any]) -> str:
    """Write a wait as one plain line."""
    return f"{wait['name']}: {words(wait)}"
