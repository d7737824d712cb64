"""First start of the trainer, from a joined or resumed state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from peer import __version__
from peer.codec.kernels import IMPLEMENTATION, REASON
from peer.guest.options import core_budget, machine_cores
from peer.joining.artifacts import RunFiles
from peer.joining.context import JoinContext
from peer.joining.resume import JoinedState
from peer.observe import events
from peer.observe.progress import Waits
from peer.ports.trainer import TrainerInfo
from peer.protocol.messages import PeerId
from peer.run.manifest import Manifest
from peer.run.memory import activation_bytes, free_bytes
from peer.run.options import PeerOptions
from peer.trainer.client import TrainerClient, TrainerConfig

Emit = Callable[[events.Event], None]


def journal_start(context: JoinContext, state: JoinedState, emit: Emit) -> None:
    """Journal the start of the process, and the transfer of a fetched state."""
    emit(events.Started(peer_id=context.me, run_id=context.run_id.hex(), version=__version__, resumed=state.why))
    if (transfer := state.transfer) is not None:
        emit(
            events.StateFetched(
                donor=transfer.donor, round=state.round, bytes=transfer.nbytes, seconds=transfer.seconds
            )
        )


async def launch_trainer(
    context: JoinContext,
    trainer: TrainerClient,
    state: JoinedState,
    resume: Path | None,
    covered: Sequence[int] | None,
    waits: Waits,
    emit: Emit,
) -> TrainerInfo:
    """Start the trainer from the state, and report its device and data. `resume` and `covered`: see
    `TrainerClient.start`, whose exceptions are raised here too."""
    waits.update("starting the trainer", 0, None, "s")
    info = await trainer.start(
        state.outer.params,
        state.round,
        resume,
        lambda note: waits.update(f"the trainer is {note}", 0, None, "s"),
        covered,
    )
    waits.end()
    context.say(f"trainer: {info.device} ({info.device_reason})")
    context.say(f"codecs: {IMPLEMENTATION} ({REASON})")
    if info.data:
        context.say(f"data: {info.data}")
    if info.data_place:
        context.say(f"the data begins at {info.data_place}")
    emit(events.TrainerStarted(device=info.device, reason=info.device_reason))
    return info


def trainer_config(
    options: PeerOptions,
    me: PeerId,
    manifest: Manifest,
    files: RunFiles,
) -> TrainerConfig:
    """Return the trainer's configuration: the manifest's sections, the run's files, and this volunteer's options."""
    return TrainerConfig.of(
        manifest,
        me,
        data_dir=_name_of(options.data_dir),
        config_file=_name_of(files.config),
        buffers_file=_name_of(files.buffers),
        data_index=_name_of(files.index_file),
        tokenizer_file=_name_of(files.tokenizer),
        mask_end_token=manifest.tokenizer.end_token if manifest.data.document_mask else None,
        threads=options.threads,
        device=options.device,
        precision=options.precision,
        speed=options.speed,
        gpu=options.guest.gpu,
        cpu_cores=core_budget(options.guest.cpu, options.threads, machine_cores()),
        low_priority=options.guest.low_priority,
        step_seconds=options.step_seconds,
        micro_batch=options.micro_batch,
        activation_bytes=activation_bytes(manifest, free_bytes()),
        trail=options.trail,
    )


def _name_of(path: Path | None) -> str | None:
    return None if path is None else str(path)
