"""The conditions of `--when`, and what a source says about one of them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import Any, Protocol

from peer.errors import UsageError

IDLE, PLUGGED_IN, UNMETERED = "idle", "plugged-in", "unmetered"
CONDITIONS = (IDLE, PLUGGED_IN, UNMETERED)
COOL = "cool"
"""The condition of `--max-temperature`."""


@dataclass(frozen=True, slots=True)
class ConditionReading:
    """Finding of a source. `holds` is None where the system does not tell, and `why` is for a person."""

    holds: bool | None
    why: str
    """The same for as long as the reason is the same."""
    measured: str = ""
    """The number behind it, for a person."""


class ConditionSource(Protocol):
    """Tells about one condition."""

    async def read(self) -> ConditionReading:
        """Return what holds now. Never raises, and answers within seconds."""


@dataclass(frozen=True, slots=True)
class ServicePlace:
    """An object of a service on the system's D-Bus, and one of its interfaces."""

    service: str
    path: str
    interface: str


class SystemServices(Protocol):
    """The services of the system that are asked."""

    async def get(self, place: ServicePlace, name: str) -> Any:
        """Return a property. Raises FactUnavailable."""

    async def call(self, place: ServicePlace, method: str) -> Any:
        """Return what a method without arguments gives. Raises FactUnavailable."""


class NoServices:
    """The `SystemServices` of a system without D-Bus."""

    async def get(self, place: ServicePlace, name: str) -> Any:
        raise FactUnavailable("this system has no D-Bus")

    async def call(self, place: ServicePlace, method: str) -> Any:
        raise FactUnavailable("this system has no D-Bus")


class FactUnavailable(Exception):
    """The system does not tell a fact. The message says why, for a person."""


def parse_conditions(text: str) -> tuple[str, ...]:
    """Parse a list like `idle,plugged-in`. Raises UsageError, which names the word that is none."""
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
