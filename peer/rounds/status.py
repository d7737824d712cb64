"""What goes on in the rounds now, for `peer status` and our record."""

from __future__ import annotations

from dataclasses import dataclass

from peer.protocol.messages import Status


@dataclass(slots=True)
class RoundStatus:
    """What `peer status` shows of the rounds."""

    status: Status = Status.JOINING
    phase: str = "starting"
    round: int = 0
    due_at: float | None = None
    last_partner: str = ""
    """Its peer id; of a group, how many others."""
    last_outcome: str = ""
    last_seconds: float = 0.0
    """Of the last exchange's transfer."""
