"""The conditions that `--when` accepts, and the interfaces by which they are read."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Protocol

from peer.errors import UsageError

IDLE, PLUGGED_IN, UNMETERED = "idle", "plugged-in", "unmetered"
CONDITIONS = (IDLE, PLUGGED_IN, UNMETERED)
COOL = "cool"
"""The condition behind `--max-temperature`. `--when` does not accept it."""


@dataclass(frozen=True, slots=True)
class ConditionReading:
    """One reading of a condition. `holds` is None if the system does not provide the fact. `why` is a sentence for a
    person."""

    holds: bool | None
    why: str
    """Constant while the reason is the same, so that a change of `why` can be reported."""
    measured: str = ""
    """The measured number, for a person; empty: there is none."""


class ConditionSource(Protocol):
    """A source that reads one condition."""

    async def read(self) -> ConditionReading:
        """Return the current reading, within seconds. Never raises."""


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """The address of an interface on the system's D-Bus: service, object path and interface name."""

    service: str
    path: str
    interface: str


class SystemServices(Protocol):
    """Client of system services."""

    async def get(self, place: ServicePlace, name: str) -> Any:
        """Return the value of a property. Raises FactUnavailable."""

    async def call(self, place: ServicePlace, method: str) -> Any:
        """Call a method without arguments and return its result. Raises FactUnavailable."""


class NoServices:
    """The `SystemServices` of a system without D-Bus: every request raises FactUnavailable."""

    async def get(self, place: ServicePlace, name: str) -> Any:
        raise FactUnavailable("this system has no D-Bus")

    async def call(self, place: ServicePlace, method: str) -> Any:
        raise FactUnavailable("this system has no D-Bus")


class FactUnavailable(Exception):
    """Raised when the system does not provide a fact. The message gives the reason, for a person."""


def parse_conditions(text: str) -> tuple[str, ...]:
    """Parse a list such as `idle,plugged-in`. Raises UsageError, which names the unknown word."""
    found: list[str] = []
    for word in text.split(","):
        name = word.strip().lower().replace("_", "-")
        if name not in CONDITIONS:
            near = difflib.get_close_matches(name, CONDITIONS, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"--when {text!r}: {word.strip()!r} is no condition",
                f"{hint}There are {', '.join(CONDITIONS)}, with commas between.",
            )
        if name not in found:
            found.append(name)
    return tuple(found)
