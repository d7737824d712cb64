"""The health of the directory, for a person and for `peer status`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["joined", "alone", "rebuilding"]


class Watcher(Protocol):
    """Observer of the DHT helper (p2pd)."""

    def helper_ended(self, cause: str, times: int) -> None:
        """Called when the helper has ended, or could not be restarted, for the `times`th time in a row."""

    def helper_back(self, seconds: float, times: int) -> None:
        """Called when the helper runs again, `seconds` after its loss and at the `times`th attempt."""


class Unwatched:
    """A `Watcher` that ignores everything."""

    def helper_ended(self, cause: str, times: int) -> None: ...

    def helper_back(self, seconds: float, times: int) -> None: ...


@dataclass(slots=True)
class Health:
    """State of the helper. `times` counts its losses in a row, and `losses` all of them."""

    state: State = "alone"
    times: int = 0
    losses: int = 0
    cause: str = ""
    """Cause of the last loss."""

    def note_loss(self, cause: str) -> None:
        """Record that the helper was lost, or could not be restarted."""
        self.state, self.cause = "rebuilding", cause
        self.times, self.losses = self.times + 1, self.losses + 1

    def note_alone(self) -> None:
        """Record that the helper runs, but no other node answers."""
        self.state = "alone"

    def note_joined(self) -> None:
        """Record that the helper runs, and another node answers."""
        self.state = "joined"

    def end_streak(self) -> None:
        """Record that the helper lived long enough for its next loss to count as the first in a row."""
        self.times = 0

    def trouble(self) -> str:
        """Return the fault, as text for a person; empty if there is none."""
        if self.state == "rebuilding":
            return f"rebuilding, {ordinal(self.times)} time, because {self.cause}"
        return "nobody else answers in the DHT" if self.state == "alone" else ""


def ordinal(number: int) -> str:
    """Return an ordinal number as text: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    tail = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"
