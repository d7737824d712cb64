"""What the coordinator is given, and what it shows of itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from peer.methods.method import Method
from peer.protocol.messages import PeerId, RunId


@dataclass(frozen=True, slots=True)
class RunPlan:
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
    nodes: frozenset[PeerId] = frozenset()
    """The operator's nodes, as key and ticket name them: what they say of the run's end is believed."""
    assumed_rate: float | None = None
    """Bytes per second of a partner before anything was measured; None: as `peer.exchange.deadlines` has it."""
    unchecked: str = ""
    """Why no partner's params can be checked, where the method asks for it. Empty: they can."""
    scratch: Path | None = None
    """Folder for large states that are fetched; None: they lie in memory."""
