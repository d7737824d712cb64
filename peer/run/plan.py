"""The facts about a run and its peer that are fixed before the first round."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peer.methods.method import Method
from peer.protocol.messages import PeerId, RunId


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The fixed inputs of the rounds: method, length, and this peer's limits."""

    run_id: RunId
    me: PeerId
    method: Method
    total_rounds: int
    """The last round is total_rounds - 1."""
    eval_every: int
    """Rounds between two evaluations."""
    max_upload: float | None = None
    """Bytes per second. None: no cap."""
    min_peers: int = 1
    """The first round waits until this many peers train, this one included, but for two minutes at most."""
    nodes: frozenset[PeerId] = frozenset()
    """The operator's nodes, by key and ticket. Their records are trusted on whether the run has ended."""
    assumed_rate: float | None = None
    """Assumed rate of a partner before the first measurement, bytes per second. None: the default of
    `peer.exchange.deadlines`."""
    unchecked: str = ""
    """Why no partner's params can be checked although the method asks for it, for a person. Empty: they can."""
    scratch: Path | None = None
    """Folder for large fetched states. None: they are held in memory."""
