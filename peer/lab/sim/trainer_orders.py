"""The pending requests of a simulated trainer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import torch

from peer.ports.trainer import Merge, WorkRequest, WorkSnapshot
from peer.protocol.messages import RoundKey


def pending() -> asyncio.Future[Any]:
    """Return a new future of the running loop, for a request's result."""
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class WorkGoal:
    """A `work` request in progress."""

    request: WorkRequest
    at: int
    """Step count of the boundary at which the snapshot is taken."""
    done: asyncio.Future[WorkSnapshot] = field(default_factory=pending)


@dataclass(slots=True)
class ResultArrival:
    """An `apply` request that waits for boundary `at`."""

    key: RoundKey
    outer_params: torch.Tensor
    base: int
    next_round: int
    merge: Merge
    at: int
    done: asyncio.Future[None] = field(default_factory=pending)
