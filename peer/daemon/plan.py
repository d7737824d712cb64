"""What the coordinator is given, what an exchange gives it, and what it shows of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from peer.protocol.messages import PeerId, RunId, Status, SwapReport
from peer.run.presets import Method


@dataclass(frozen=True, slots=True)
class Plan:
    """What is settled before the first round."""

    run_id: RunId
    me: PeerId
    method: Method
    total_rounds: int
    """The run ends after round total_rounds - 1."""
    eval_every: int
    """Rounds between two evaluations."""
    max_upload: float | None = None
    """Bytes per second."""
    min_peers: int = 1
    """Wait with the first round until so many peers train (ourselves included), two minutes at most."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a round's exchange gave: the partner's params, or why there are none."""

    outcome: Literal["exchanged", "solo", "refused"]
    reason: str
    partner: PeerId | None = None
    params: Tensor | None = None
    report: SwapReport | None = None


@dataclass(slots=True)
class Live:
    """What `peer status` shows of the rounds."""

    status: Status = Status.JOINING
    phase: str = "starting"
    round: int = 0
    due_at: float | None = None
    last_partner: str = ""
    last_outcome: str = ""
    last_seconds: float = 0.0
    """Of the last exchange's transfer."""
