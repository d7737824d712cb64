"""The states on the disk of the operator's node: the newest good one, its predecessor, and a candidate under
evaluation.

All are ordinary checkpoints in the run's folder. A candidate survives a restart of the node and is evaluated then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from peer.outer.pages import zeros
from peer.outer.state import OuterState
from peer.ports.console import Say
from peer.protocol.messages import RunId
from peer.protocol.model.layout import Layout
from peer.run.home import RunFolder
from peer.state.checkpoint import Checkpoint, CheckpointError, CheckpointStore
from peer.state.sealed_state import OUTER
from peer.state.snapshot import digest_of_state
from peer.state.unnamed import unnamed_values

KEPT = 2
"""Number of kept checkpoints: the newest, and its predecessor in case a disk error damages the newest."""
CANDIDATE = "candidate"
"""Folder in the run's folder for a state that awaits its evaluation."""


@dataclass(frozen=True, slots=True)
class KeptFacts:
    """The metadata of a kept state."""

    round: int
    tokens: int
    """Estimated number of tokens that the run had trained on, from peers' records."""
    loss: float | None
    """Loss on the run's hold-out, nats per token. None: unchecked."""
    donors: tuple[str, ...]
    """Peer ids of the donors."""
    founded: str
    """Hex digest of the restart that the state descends from. Empty: the run's own beginning."""

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> KeptFacts:
        """Read the metadata of a checkpoint."""
        loss, donors = facts.get("loss"), facts.get("donors")
        return cls(
            int(facts["round"]),
            int(facts.get("tokens", 0)),
            float(loss) if isinstance(loss, int | float) else None,
            tuple(map(str, donors)) if isinstance(donors, list) else (),
            str(facts.get("founded", "")),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the metadata as values for JSON."""
        return {
            "round": self.round,
            "tokens": self.tokens,
            "loss": self.loss,
            "donors": list(self.donors),
            "founded": self.founded,
        }


class StateArchive:
    """The checkpoints of one run in the home of the operator's node. All methods block and run in a thread."""

    def __init__(self, folder: RunFolder, run_id: RunId, layout: Layout, say: Say, *, momentum: bool) -> None:
        self._store = CheckpointStore(folder.checkpoints, KEPT)
        self._candidates = CheckpointStore(folder.path / CANDIDATE, 1)
        self._folder = folder.path
        self._run_id = run_id
        self._layout = layout
        self._say = say
        self._momentum = momentum

    def newest(self) -> Checkpoint | None:
        """Return the newest valid kept state. None: there is none. Skipped checkpoints are reported."""
        return self._latest(self._store)

    def candidate(self) -> Checkpoint | None:
        """Return the candidate whose evaluation an earlier process did not complete. None: there is none."""
        return self._latest(self._candidates)

    def _latest(self, store: CheckpointStore) -> Checkpoint | None:
        found, skipped = store.latest(self._run_id, self._layout.digest())
        for reason in skipped:
            self._say(f"checkpoint skipped: {reason}")
        return found

    def load(self, kept: Checkpoint) -> OuterState:
        """Read a state into unnamed files, so that it takes no memory. In pairs the momentum is zero.

        Raises CheckpointError."""
        elements = self._layout.elements
        try:
            params = unnamed_values(self._folder, elements)
            momentum = unnamed_values(self._folder, elements) if self._momentum else zeros(elements)
        except OSError as error:
            raise CheckpointError(f"cannot copy {kept.folder}: {error.strerror}") from error
        kept.load_into(params, momentum)
        return OuterState(self._layout, params, momentum)

    def digest(self, outer: OuterState) -> bytes:
        """Return the digest that may be signed for a kept state. Empty in pairs, in which each peer has another
        state."""
        return digest_of_state(outer, momentum=True) if self._momentum else b""

    def propose(self, params: torch.Tensor, momentum: torch.Tensor | None, facts: KeptFacts) -> Checkpoint:
        """Write a candidate. Raises CheckpointError."""
        speed = zeros(len(params)) if momentum is None else momentum
        store, draft = self._candidates, self._candidates.begin()
        return store.commit(draft, params, speed, self._run_id, self._layout.digest(), facts.to_json())

    def accept(self, candidate: Checkpoint, loss: float | None) -> Checkpoint:
        """Make the candidate the newest kept state. Raises CheckpointError or OSError."""
        draft = self._store.begin()
        source, target = candidate.folder / OUTER, draft / OUTER
        try:
            target.hardlink_to(source)
        except OSError:  # the file system does not support hard links
            source.rename(target)
        facts = {**candidate.facts, "loss": loss}
        kept = self._store.complete(draft, self._run_id, self._layout.digest(), facts)
        self._candidates.discard(candidate)
        return kept

    def refuse(self, candidate: Checkpoint) -> None:
        """Remove the candidate."""
        self._candidates.discard(candidate)
