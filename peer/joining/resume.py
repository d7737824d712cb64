"""The state that a peer begins with, and its own checkpoint, which may be that.

It goes on from the checkpoint when that is of this run and recent (`peer.protocol.policy.donors.judge_checkpoint`), or
when nobody can donate. In the second case the state may be far behind: until it has exchanged with somebody, this peer
does not donate it (`JoinedState.stale`)."""

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
    """A state's way from donors to here."""

    donor: str
    """The donor that gave most of it."""
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JoinedState:
    """The state a peer begins with, and how it came by it."""

    outer: OuterState
    round: int
    why: str
    """For a person: resumed or fetched, and from where."""
    transfer: StateTransfer | None = None
    """How donors gave it; None: they did not."""
    resume: Path | None = None
    """The checkpoint's folder, for the trainer."""
    founded: bytes | None = None
    """Of a checkpoint: digest of the state the run had last been refounded on; None: not a checkpoint."""
    checkpoint_tokens: int = -1
    """The trainer's token counter when the checkpoint was written; -1 without one."""
    stale_reason: str = ""
    """Why this state may be far behind the run's, for a person; empty: it is not."""


@dataclass(slots=True)
class OwnCheckpoint:
    """The newest own checkpoint, and what to begin with if it is that."""

    name: str
    state: JoinedState
    """Its outer state is read by `fill`."""
    fill: Callable[[], None]
    """Reads the outer state from the disk. Raises CheckpointError."""
    left: str = ""
    """Why it was not taken, for a person."""

    def choose(self, why: str) -> None:
        """Begin with it, for this reason."""
        self.state = replace(self.state, why=f"{self.state.why}: {why}")

    def leave(self, why: str) -> None:
        """Do not begin with it."""
        self.left = why

    def choose_stale(self, problem: str) -> None:
        """Begin with it although it is too old: nobody else gives a state."""
        why = f"{self.state.why}, although {self.left}: nobody gives a later state ({problem})"
        self.state = replace(self.state, why=why, stale_reason=self.left)


async def newest_checkpoint(
    run_id: RunId, layout: Layout, checkpoints: CheckpointStore, say: Say, offload: Offload, into: Tensor | None
) -> OwnCheckpoint | None:
    """The newest valid one of this run and layout; those skipped are said. `into`: where its params are to lie."""
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
    """Listens to the journal: a state that was stale is not once it has been exchanged."""

    def __init__(self, why: str) -> None:
        self.why = why

    def on_event(self, event: Event, at: float) -> None:
        if isinstance(event, RoundEnded) and event.outcome == "exchanged":
            self.why = ""
