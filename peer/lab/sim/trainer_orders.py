"""Orders that a simulated trainer has under way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import torch

from peer.ports.trainer import Merge, WorkRequest, WorkSnapshot
from peer.protocol.messages import RoundKey


def pending() -> asyncio.Future[Any]:
    """Return the future of an order."""
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class WorkGoal:
    """A `work` under way."""

    request: WorkRequest
    at: int
    """Steps in all, at the boundary at which the snapshot is taken."""
    done: asyncio.Future[WorkSnapshot] = field(default_factory=pending)


@dataclass(slots=True)
class ResultArrival:
    """An `apply` that waits for its boundary."""

    key: RoundKey
    outer_params: torch.Tensor
    base: int
    next_round: int
    merge: Merge
    at: int
    done: asyncio.Future[None] = field(default_factory=pending)
