"""What goes on in the rounds now, for `peer status`, our record and the ban list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.protocol.messages import PeerId, Status


@dataclass(slots=True)
class RoundStatus:
    """The state of a peer's rounds. It is made before every other part of a peer."""

    status: Status = Status.JOINING
    phase: str = "starting"
    round: int = 0
    due_at: float | None = None
    last_partner: str = ""
    """Its peer id; of a group, how many others."""
    last_outcome: str = ""
    last_seconds: float = 0.0
    """Of the last exchange's transfer."""

    def enter(self, round_: int) -> int:
        """This round is at hand; the same round."""
        self.round = round_
        return round_

    def set_phase(self, phase: str) -> None:
        """Name what goes on, for a person."""
        self.phase = phase

    def become(self, status: Status, phase: str) -> None:
        """Change what others are told of us."""
        self.status, self.phase = status, phase

    def train_until(self, due_at: float | None) -> None:
        """Train for a round that is due then (run time; None: when its steps are done)."""
        self.due_at, self.phase = due_at, "training"

    def round_ended(self, outcome: str, partners: Sequence[PeerId], seconds: float) -> None:
        """Show a round that has an outcome. `partners`: without ourselves."""
        self.last_outcome = outcome
        self.last_partner = " ".join(partners) if len(partners) < 2 else f"{len(partners)} others"
        self.last_seconds = seconds

    def announced(self, why_no_exchange: str) -> Status:
        """The status that others are told: a peer that trains and will not exchange is no candidate."""
        paused = self.status is Status.TRAINING and why_no_exchange
        return Status.PAUSED if paused else self.status
