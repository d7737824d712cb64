"""The trainer's first start: from a state, with what became of the work of before in the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from peer import __version__
from peer.daemon.coordinator import Coordinator
from peer.daemon.node import Node
from peer.daemon.resuming import FirstState
from peer.observe import events
from peer.observe.waits import Waits
from peer.trainer.process import TrainerProcess
from peer.trainer.seam import TrainerInfo

Emit = Callable[[events.Event], None]


def tell_of_the_state(node: Node, state: FirstState, emit: Emit) -> None:
    """Where it came from."""
    emit(events.Started(peer_id=node.me, run_id=node.run_id.hex(), version=__version__, resumed=state.why))
    if state.donor:
        emit(events.StateFetched(donor=state.donor, round=state.round, bytes=state.nbytes, seconds=state.seconds))


def taken_up(coordinator: Coordinator, trainer: TrainerProcess, state: FirstState) -> Path | None:
    """The checkpoint's folder for the trainer, if there is one. Work that is not in it is dropped, by name."""
    if trainer.counters().tokens != state.checkpoint_tokens:
        coordinator.drop_outstanding("lost with the process that did it")
    elif not coordinator.all_based():
        coordinator.drop_outstanding("lost between an outer step and its merge")
        return None
    return state.resume


async def launch(
    node: Node, trainer: TrainerProcess, state: FirstState, resume: Path | None, waits: Waits, emit: Emit
) -> TrainerInfo:
    """Raises as `TrainerProcess.start`."""
    waits.tell("starting the trainer", 0, None, "s")
    trainer.on_note = lambda note: waits.tell(f"the trainer is {note}", 0, None, "s")
    info = await trainer.start(state.outer.params, state.round, resume)
    waits.end()
    trainer.on_note = lambda note: None  # later starts show in the phase
    node.say(f"trainer: {info.device} ({info.device_reason})")
    emit(events.TrainerStarted(device=info.device, reason=info.device_reason))
    return info
