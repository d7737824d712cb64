"""The state that a peer begins with, and the own checkpoint as one source of it.

A peer resumes from its own checkpoint when that is recent (`peer.protocol.policy.donors.judge_checkpoint`), or when no
donor exists. In the latter case the state may be far behind the run, so this peer donates it only after its first
exchange (`JoinedState.stale_reason`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from peer.aio.threads import Offload
from peer.observe.events import Event, RoundEnded
from peer.outer.pages import zeros
from peer.outer.state import OuterState
from peer.protocol.messages import RunId
from peer.protocol.model.layout import Layout
from peer.state.checkpoint import Checkpoint, CheckpointStore

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class StateTransfer:
    """The transfer of a state from donors."""

    donor: str
    """The donor that gave most of the bytes."""
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JoinedState:
    """The state that a peer begins with, and its origin."""

    outer: OuterState
    round: int
    why: str
    """Origin of the state, for a person."""
    transfer: StateTransfer | None = None
    """The transfer from donors. None: the state was not fetched."""
    resume: Path | None = None
    """The checkpoint's folder, from which the trainer resumes. None: the state was fetched."""
    founded: bytes | None = None
    """Of a checkpoint: digest of the restart that it descends from, empty for none. None: not a checkpoint."""
    checkpoint_tokens: int = -1
    """The trainer's token count in the checkpoint. -1: not a checkpoint."""
    stale_reason: str = ""
    """Why this state may be far behind the run's, for a person. Empty: it is not."""


@dataclass(slots=True)
class OwnCheckpoint:
    """The newest own checkpoint, with the decision whether the peer begins with it."""

    name: str
    state: JoinedState
    """The state that it holds. `fill` reads its tensors."""
    fill: Callable[[], None]
    """Reads the outer state from disk. Raises CheckpointError."""
    left: str = ""
    """Why the checkpoint is not used, for a person."""

    def choose(self, why: str) -> None:
        """Use the checkpoint, for this reason."""
        self.state = replace(self.state, why=f"{self.state.why}: {why}")

    def leave(self, why: str) -> None:
        """Do not use the checkpoint, for this reason."""
        self.left = why

    def choose_stale(self, problem: str) -> None:
        """Use the checkpoint although it is too old, because no donor gives a state. `problem`: why none does."""
        why = f"{self.state.why}, although {self.left}: nobody gives a later state ({problem})"
        self.state = replace(self.state, why=why, stale_reason=self.left)


async def newest_checkpoint(
    run_id: RunId, layout: Layout, checkpoints: CheckpointStore, say: Say, offload: Offload, into: Tensor | None
) -> OwnCheckpoint | None:
    """Return the newest valid checkpoint of this run and layout. None: there is none. If checkpoints are skipped, the
    user is shown why. `into`: tensor that receives its params."""
    checkpoint, skipped = await offload(lambda: checkpoints.latest(run_id, layout.digest()))
    for reason in skipped:
        say(f"checkpoint skipped: {reason}")
    if checkpoint is None:
        return None
    outer = OuterState(layout, zeros(layout.elements) if into is None else into, zeros(layout.elements))
    fill = partial(checkpoint.load_into, outer.params, outer.momentum)
    return OwnCheckpoint(checkpoint.folder.name, _state_of(checkpoint, outer), fill)


def _state_of(checkpoint: Checkpoint, outer: OuterState) -> JoinedState:
    facts = checkpoint.facts
    round_, tokens = int(facts["round"]), int(facts["tokens"])
    why = f"resumed from own {checkpoint.folder.name} of round {round_}"
    try:
        founded = bytes.fromhex(str(facts.get("founded", "")))
    except ValueError:
        founded = b""
    return JoinedState(outer, round_, why, resume=checkpoint.folder, founded=founded, checkpoint_tokens=tokens)


class Staleness:
    """A journal listener that clears the staleness of a resumed state after its first exchange. `why`: the reason,
    empty once it is cleared."""

    def __init__(self, why: str) -> None:
        self.why = why

    def on_event(self, event: Event, at: float) -> None:
        if isinstance(event, RoundEnded) and event.outcome == "exchanged":
            self.why = ""
