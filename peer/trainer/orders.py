"""Orders that a trainer's main loop has under way: the work asked for, and results that wait for their boundary."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from peer.ports.trainer import Merge


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Work request under way."""

    id: int
    round: int
    fragment: int
    steps: int | None
    until: float | None
    hold: bool
    pause_after: int | None = None
    round_s: float | None = None


@dataclass(slots=True)
class PendingMerge:
    """Result that waits for its step boundary."""

    id: int
    fragment: int
    base: int
    """Token count of the snapshot it came from."""
    next_round: int
    merge: Merge
    outer_params: torch.Tensor
    """The fragment's slot of the arena, or a copy of it."""

    def leave_slot(self) -> None:
        """Copy the values, so that the daemon may write to the slot."""
        self.outer_params = self.outer_params.clone()
