"""The built-in trainer process: it makes inner steps, and its `Boundary` executes the daemon's orders between them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError

from peer.clock.phases import PhaseTimer
from peer.errors import MachineTooSmall, ManifestError, ModelError, PeerError
from peer.guest.duty import DutyCycle
from peer.protocol.data_span import cursor_text
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.activations import ACTIVATION_SHARE, TRAINER_BYTES, window_bytes
from peer.run.sections import MOST_BUFFER_BYTES, LlamaSection
from peer.trainer import checkpoint as saved
from peer.trainer.arena import Arena, CounterFile
from peer.trainer.batch_log import BatchLog
from peer.trainer.batches import Batch
from peer.trainer.boundary import Boundary, Command
from peer.trainer.config import TrainerConfig
from peer.trainer.data.tracked import TrackedData
from peer.trainer.device import Device, choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.ipc import DaemonPipe, Message
from peer.trainer.memory_limit import MemoryLimit, limited_gpu_memory, limited_memory
from peer.trainer.micro_batch import MicroBatchChoice, choose_micro_batch
from peer.trainer.models.factory import check_tensors, layout_of
from peer.trainer.probing.probe import Prober

LOOK_EVERY_S = 1.0
"""Seconds between two progress reports while training waits for a shard. The shard's arrival ends the wait at once."""
BYTE_VALUES = 256
"""Size of the vocabulary when each byte is a token."""


def serve(pipe: DaemonPipe, opening: Message, phases: PhaseTimer | None = None) -> None:
    """Run the trainer until its socket closes. `opening`: config, layout and folder, as the daemon sends them.

    `phases`: times of the start-up phases so far, which the answer to `start` reports.

    An error ends the process and is sent to the daemon: as `refused` if a person has to fix the cause, else as `dying`,
    upon which the daemon starts another process. Running out of memory is `dying` once a step was made, because the
    config is then known to fit."""
    session: TrainerWorker | None = None
    try:
        config = TrainerConfig.model_validate(opening["config"])
        torch.set_num_threads(config.threads)
        fragments = tuple((first, end) for first, end in opening["fragments"])
        named = zip(opening["tensors"], opening["shapes"], strict=True)
        tensors = [TensorSpec(name, tuple(shape)) for name, shape in named]
        session = TrainerWorker(pipe, config, fragments, Path(opening["folder"]), tensors, phases)
        session.open_data()
        with session.limited():
            session.prepare()
            session.run()
    except PeerError as error:
        if isinstance(error, MachineTooSmall | ModelError) and session is not None and session.has_stepped:
            pipe.send({"dying": error.found})
            raise
        pipe.send({"refused": type(error).__name__, "found": error.found, "fix": error.fix, "why": error.why})
        sys.exit(1)
    except BaseException as error:
        pipe.send({"dying": f"{type(error).__name__}: {error}"[:2000]})
        raise


class TrainerWorker:
    """The main loop of one trainer process.

    Call `open_data`, then `prepare` and `run` within the context of `limited`. The first two need no state of the run
    yet, so that they can overlap with fetching it."""

    def __init__(
        self,
        pipe: DaemonPipe,
        config: TrainerConfig,
        fragments: tuple[tuple[int, int], ...],
        folder: Path,
        order: Sequence[TensorSpec] = (),
        phases: PhaseTimer | None = None,
    ) -> None:
        """Map the arena and the counters.

        `fragments`: per fragment, the range (first, end) of its tensors. `order`: the tensors in the order of the flat
        vector; empty: in the model's own order. Raises ModelError when the model made here has other tensors."""
        self._pipe = pipe
        self._phases = phases or PhaseTimer()
        self._config = config
        self._folder = folder
        own = layout_of(config)
        given = order or own.tensors
        check_tensors(own, given)
        self._layout = Layout(tuple(given), fragments)
        self._arena = Arena(folder, self._layout, create=False)
        self._counters = CounterFile(folder, len(fragments))
        self._loop: InnerLoop
        self._tracked: TrackedData
        self._postponed: list[Message] = []
        """Orders to evaluate that wait for the hold-out."""
        self._device: Device
        self._micro_batch_choice: MicroBatchChoice
        self._batch_log: BatchLog | None = None
        self.boundary: Boundary
        """The boundary between two inner steps. Made by `prepare`."""

    def open_data(self) -> None:
        """Choose the device and open the data. Raises DataError, ManifestError and UsageError."""
        config, phases = self._config, self._phases
        in_bytes = config.tokenizer.kind == "bytes"
        if in_bytes and isinstance(config.model, LlamaSection) and config.model.vocab_size < BYTE_VALUES:
            fix = "The operator has to raise model.vocab_size."
            raise ManifestError(f"byte tokens need a vocabulary of {BYTE_VALUES}, not {config.model.vocab_size}", fix)
        phases.end("waiting for the state")
        self._device = choose_device(config.device, config.precision)
        self._pipe.send({"note": "reading the data"})
        self._tracked = TrackedData(config, self._folder, len(self._layout.fragments), self._pipe.send)
        phases.end("data")

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the memory that the run's model may allocate within the context.

        The volunteer's own texts are already in memory and count as used. Raises ModelError or MachineTooSmall in place
        of the error of a failed allocation."""
        config, tensors = self._config, self._layout.tensors
        held = TRAINER_BYTES * self._layout.elements
        held += 0 if isinstance(config.model, LlamaSection) else MOST_BUFFER_BYTES
        need, limit = held + window_bytes(config.model, config.train.context, tensors), None
        if (step := config.activation_bytes) is not None:
            limit = MemoryLimit.of(need, step, held + int(step / ACTIVATION_SHARE))
        what = "training the run's model"
        what += "" if config.micro_batch is None else f" with --micro-batch {config.micro_batch}"
        with limited_gpu_memory(need, self._device.device, what), limited_memory(limit, what):
            yield

    @property
    def has_stepped(self) -> bool:
        """Whether an inner step was made in this process."""
        return hasattr(self, "boundary") and self.boundary.pace.steps > 0

    def prepare(self) -> None:
        """Build the model with the present values of the arena, and choose the micro-batch.

        This is slow and needs no state of the run: `start` sets the params later. Raises MachineTooSmall, ManifestError
        and ModelError."""
        config, phases = self._config, self._phases
        self._pipe.send({"note": "building the model"})
        self._duty = duty = DutyCycle(config.shares, on_gpu=self._device.device.type == "cuda")
        hooks = self._record_batch, duty.rest_if_due
        self._loop = InnerLoop(config, self._layout, self._device, self._tracked.data, self._arena.inn, *hooks)
        self._micro_batch_choice = choose_micro_batch(self._loop, config)
        self._prober: Prober = Prober(config, self._layout, self._folder, self._arena, self._loop, self._tracked)
        commands: dict[str, Command] = {
            "start": self._start,
            "evaluate": self._evaluate,
            "save": self._save,
            "shard": self._shard,
            "probe": self._prober.answer,
            "weigh": self._prober.weigh,
        }
        shared = self._folder, self._layout, self._arena, self._counters
        self.boundary = Boundary(self._pipe, *shared, self._loop, self._tracked, commands)
        duty.begin()
        phases.end("model")

    def run(self) -> None:
        """Train and execute orders for ever. Closing the socket ends the process (`DaemonPipe`)."""
        boundary = self.boundary
        while True:
            boundary.drain()
            boundary.cross()
            if not boundary.may_step():
                boundary.wait(None)
            elif self._loop.batches.ready():
                self._rest(self._step())
            else:  # the missing shard arrives as an order, and the work may meanwhile end by the clock
                self._show_progress()
                boundary.wait(LOOK_EVERY_S)

    # -- orders of the daemon that need the model or the data --------------------------------------------------------

    def _start(self, message: Message) -> Message:
        """Set the params to the state in the arena, or resume the checkpoint that `message` names."""
        config, phases, device, chosen = self._config, self._phases, self._device, self._micro_batch_choice
        phases.end("waiting for the state")
        self._loop.params.copy_(self._arena.inn)
        self._loop.move_to(message["round"], 0)
        if config.trail:
            self._batch_log = BatchLog(self._folder)
        resume = message["resume"]
        place = saved.load(Path(resume), self._loop, self._counters.tokens) if resume else None
        data = saved.data_place(Path(resume)) if resume else None
        cursor, why = self._tracked.begin(data, resumed=bool(resume), exact=place is not None)
        self._loop.batches.move_to(cursor)
        self._loop.batches.ready()  # requests the first shards and the hold-out
        if place is not None:
            self.boundary.resume(place.since_apply, place.tallies)
        else:
            self.boundary.drop_open_work()
        reason = "; ".join([device.reason, self._loop.optimizer.reason, *self._duty.reasons])
        info = {"device": str(device.device), "device_reason": reason, "tokens_per_step": config.tokens_per_step}
        info |= {"micro_batch": chosen.micro_batch, "micro_batch_reason": chosen.reason, "seconds": phases.took}
        info |= {"data": self._tracked.data.description, "data_place": f"{cursor_text(cursor)}, {why}"}
        return {"ok": info}

    def _shard(self, message: Message) -> None:
        """Handle the daemon's answer about a shard, and run the evaluations that waited for the hold-out."""
        self._tracked.receive_shard(message)
        self._prober.check_borrowed()
        while self._postponed and not self._tracked.holdout_awaited:
            self.boundary.handle(self._postponed.pop(0))

    def _evaluate(self, message: Message) -> Message | None:
        if self._tracked.holdout_awaited:
            self._postponed.append(message)
            return None
        params, number = self._loop.params if message.get("own") else self._arena.inn, message.get("number", 1)
        result = self._loop.evaluate(params, self._duty.resting_before(lambda: self._pipe.given_up >= number))
        return {"ok": {"loss": result.loss, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}}

    def _save(self, message: Message) -> Message:
        """Write the trainer's part of a checkpoint. A failure, such as a full disk, is only reported to the daemon."""
        try:
            folder, account, data = Path(message["folder"]), self.boundary.account, self._tracked.position()
            saved.save(folder, self._loop, self._counters.tokens, account.since_snapshot, account.tallies, data)
        except (OSError, SafetensorError) as error:
            return {"failed": str(error)}
        return {"ok": {"tokens": self._counters.tokens}}

    # -- training ----------------------------------------------------------------------------------------------------

    def _step(self) -> float:
        """Make one inner step and count it; return the seconds that it took."""
        began = time.perf_counter_ns()
        loss = self._loop.step()
        took = time.perf_counter_ns() - began
        self.boundary.stepped(self._config.tokens_per_step, took, loss, self._duty.period(took / 1e9))
        self._show_progress()
        return took / 1e9

    def _show_progress(self) -> None:
        self.boundary.show_progress(self._duty.period(self.boundary.pace.step_s), self._tracked.waiting)

    def _record_batch(self, round_: int, step: int, batch: Batch) -> None:
        self._tracked.record_batch(batch)
        if self._batch_log is not None:
            self._batch_log.step(self._counters.tokens, round_, step, batch)

    def _rest(self, worked_s: float) -> None:
        """Rest after a step, so that the trainer uses no more than its share of the machine.

        The rest is one long step boundary: orders, due merges and snapshots are handled during it."""
        boundary, end = self.boundary, time.monotonic() + self._duty.rest_s(worked_s)
        while boundary.running and (left := end - time.monotonic()) > 0:
            boundary.wait(left)
            boundary.cross()
        if boundary.running:
            self._duty.rested()
