"""The present state of the rounds, for `peer status`, this peer's record and the ban list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peer.protocol.messages import PeerId, Status


@dataclass(slots=True)
class RoundStatus:
    """The state of a peer's rounds. It exists before all other parts of a peer, which share it."""

    status: Status = Status.JOINING
    phase: str = "starting"
    round: int = 0
    due_at: float | None = None
    last_partner: str = ""
    """Peer id of the last partner; for a group, the number of other members."""
    last_outcome: str = ""
    last_seconds: float = 0.0
    """Seconds of the last exchange's transfer."""

    def enter(self, round_: int) -> int:
        """Set the present round, and return it."""
        self.round = round_
        return round_

    def set_phase(self, phase: str) -> None:
        """Set what this peer is doing, as text for a person."""
        self.phase = phase

    def become(self, status: Status, phase: str) -> None:
        """Set the status that other peers see, and the phase."""
        self.status, self.phase = status, phase

    def train_until(self, due_at: float | None) -> None:
        """Record that this peer trains for a round that is due at `due_at` (run time; None: when its inner steps are
        done)."""
        self.due_at, self.phase = due_at, "training"

    def round_ended(self, outcome: str, partners: Sequence[PeerId], seconds: float) -> None:
        """Record a round's outcome. `partners`: the other peers in the exchange. `seconds`: duration of the
        transfer."""
        self.last_outcome = outcome
        self.last_partner = " ".join(partners) if len(partners) < 2 else f"{len(partners)} others"
        self.last_seconds = seconds

    def announced(self, why_no_exchange: str) -> Status:
        """Return the status for our record. A training peer that may not exchange announces itself as paused, so that
        it is no candidate. `why_no_exchange`: empty if it may."""
        paused = self.status is Status.TRAINING and why_no_exchange
        return Status.PAUSED if paused else self.status
