"""Whether a peer that has a checkpoint goes on from it or fetches the state anew.

It goes on from the checkpoint when that is of this run and at most `RESUME_WITHIN` rounds behind those who train now,
or when nobody can donate. In the second case the state may be far behind: until it has exchanged with somebody, this
peer does not donate it (`JoinedState.stale`)."""

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

RESUME_WITHIN = 50
"""Rounds."""

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
    fetched: StateTransfer | None = None
    """How donors gave it; None: they did not."""
    resume: Path | None = None
    """The checkpoint's folder, for the trainer."""
    founded: bytes | None = None
    """Of a checkpoint: digest of the state the run had last been refounded on; None: not a checkpoint."""
    checkpoint_tokens: int = -1
    """The trainer's token counter when the checkpoint was written; -1 without one."""
    stale: str = ""
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

    def leave(self, why: str) -> None:
        """Do not begin with it."""
        self.left = why

    def choose(self, state: JoinedState) -> None:
        """Begin with this, if it is this checkpoint."""
        self.state = state

    def stale(self, problem: str) -> JoinedState:
        """Begin with it although it is too old: nobody else gives a state."""
        why = f"{self.state.why}, although {self.left}: nobody gives a later state ({problem})"
        return replace(self.state, why=why, stale=self.left)


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


def why_fetch(own: OwnCheckpoint, live: int | None, most: int | None = None) -> tuple[str, JoinedState]:
    """Return why the checkpoint is of no use, for a person (empty: it is), and the state with the reason to resume.
    `live`: the round of those who train; None: nobody is known to. `most`: the furthest round that anybody can be in;
    None: nobody knows. A checkpoint of a far later one was made by another start of the run."""
    if most is not None and own.state.round > most + RESUME_WITHIN:
        own.leave(f"own {own.name} is of round {own.state.round}, and the run is in round {most} at most")
        return f"{own.left}: fetching the state", own.state
    behind = 0 if live is None else live - own.state.round
    if behind > RESUME_WITHIN:
        own.leave(f"own {own.name} of round {own.state.round} is {behind} rounds behind, more than {RESUME_WITHIN}")
        return f"{own.left}: fetching the state", own.state
    reason = "nobody else is known to train" if live is None else f"the run is in round {live}"
    return "", replace(own.state, why=f"{own.state.why}: {reason}")


class Staleness:
    """Listens to the journal: a state that was stale is not once it has been exchanged."""

    def __init__(self, why: str) -> None:
        self.why = why

    def hear(self, event: Event, at: float) -> None:
        if isinstance(event, RoundEnded) and event.outcome == "exchanged":
            self.why = ""
