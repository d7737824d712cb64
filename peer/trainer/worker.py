"""The trainer's main loop: it takes the daemon's commands between inner steps and keeps the account of the work."""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from peer.clock.monotonic import boottime
from peer.clock.phases import PhaseTimer
from peer.errors import MachineTooSmall, ManifestError, ModelError, PeerError
from peer.guest.duty import DutyCycle
from peer.ports.trainer import Merge
from peer.protocol.data_span import cursor_text
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.schedule import margin
from peer.run.activations import ACTIVATION_SHARE, TRAINER_BYTES, window_bytes
from peer.run.sections import MOST_BUFFER_BYTES, LlamaSection
from peer.trainer import checkpoint as saved
from peer.trainer.accounting import Account, StepPace, WorkAccounts, smoothed
from peer.trainer.arena import Arena, CounterFile, shift_file
from peer.trainer.batch_log import Trail
from peer.trainer.batches import Batch
from peer.trainer.config import TrainerConfig
from peer.trainer.data.desk import DataDesk
from peer.trainer.device import Device, choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.ipc import DaemonPipe, Message
from peer.trainer.memory_limit import MemoryLimit, limited_gpu_memory, limited_memory
from peer.trainer.micro_batch import Fit, fit
from peer.trainer.models.factory import check_tensors, layout_of
from peer.trainer.orders import PendingMerge, WorkOrder
from peer.trainer.probing.probe import Prober

PROGRESS_EVERY_S = 0.25
LOOK_EVERY_S = 1.0
"""Seconds between two looks for a shard that training waits for. Its arrival ends the waiting at once."""
BYTE_VALUES = 256


def serve(link: DaemonPipe, opening: Message, laps: PhaseTimer | None = None) -> None:
    """Work until the socket closes. `laps` holds the phases of the start so far, which are reported.

    An error is reported as the process ends: `refused` for one that a person can mend, `dying` for any other. Too much
    memory counts as `dying` once a step was made: the config allows a step then, and another process may succeed."""
    session: TrainerWorker | None = None
    try:
        config = TrainerConfig.model_validate(opening["config"])
        torch.set_num_threads(config.threads)
        fragments = tuple((first, end) for first, end in opening["fragments"])
        named = zip(opening["tensors"], opening["shapes"], strict=True)
        tensors = [TensorSpec(name, tuple(shape)) for name, shape in named]
        session = TrainerWorker(link, config, fragments, Path(opening["folder"]), tensors, laps)
        session.open_data()
        with session.limited():
            session.prepare()
            session.run()
    except PeerError as error:
        if isinstance(error, MachineTooSmall | ModelError) and session is not None and session.has_stepped:
            link.send({"dying": error.found})
            raise
        link.send({"refused": type(error).__name__, "found": error.found, "fix": error.fix, "why": error.why})
        sys.exit(1)
    except BaseException as error:
        link.send({"dying": f"{type(error).__name__}: {error}"[:2000]})
        raise


class TrainerWorker:
    """Main loop of one process: `open_data` and `prepare`, which need no state yet, then `run`. The last two compute
    with the run's model, within `limited`."""

    def __init__(
        self,
        link: DaemonPipe,
        config: TrainerConfig,
        fragments: tuple[tuple[int, int], ...],
        folder: Path,
        order: Sequence[TensorSpec] = (),
        laps: PhaseTimer | None = None,
    ) -> None:
        """Map arena and counters. `order`: the tensors as they lie in the flat vector; none: as the model has them.

        Raises ModelError when the model made here has others."""
        self._link = link
        self._laps = laps or PhaseTimer()
        self._config = config
        self._folder = folder
        own = layout_of(config)
        given = order or own.tensors
        check_tensors(own, given)
        self._layout = Layout(tuple(given), fragments)
        self._arena = Arena(folder, self._layout, create=False)
        self._counters = CounterFile(folder, len(fragments))
        self._loop: InnerLoop
        self._desk: DataDesk
        self._postponed: list[Message] = []
        """Evaluations that wait for the hold-out."""
        self._device: Device
        self._fitted: Fit
        self._trail: Trail | None = None
        self._running = False
        self._goal: WorkOrder | None = None
        self._held_at: float | None = None
        self._account = Account(len(fragments))
        self._arrivals: list[PendingMerge] = []
        self._awaited: dict[int, tuple[int, int]] = {}
        """Per fragment, the base of a snapshot whose result is waited for, and the steps to make meanwhile."""
        self._pace = StepPace()
        self._tokens_per_s = 0.0
        self._told_at = 0.0
        self._last_loss = math.nan
        self._commands: dict[str, Callable[[Message], Message | None]] = {
            "start": self._start,
            "work": self._work,
            "apply": self._apply,
            "clear": self._clear,
            "evaluate": self._evaluate,
            "save": self._save,
            "hold": self._hold,
            "release": self._release,
            "shard": self._shard,
            "probe": lambda message: self._prober.answer(message),
            "weigh": lambda message: self._prober.weigh(message),
        }

    def open_data(self) -> None:
        """Choose the device, and read the data. Raises DataError, ManifestError and UsageError."""
        config, laps = self._config, self._laps
        in_bytes = config.tokenizer.kind == "bytes"
        if in_bytes and isinstance(config.model, LlamaSection) and config.model.vocab_size < BYTE_VALUES:
            fix = "The operator has to raise model.vocab_size."
            raise ManifestError(f"byte tokens need a vocabulary of {BYTE_VALUES}, not {config.model.vocab_size}", fix)
        laps.end("waiting for the state")
        self._device = choose_device(config.device, config.precision)
        self._link.send({"note": "reading the data"})
        self._desk = DataDesk(config, self._folder, len(self._layout.fragments), self._link.send)
        laps.end("data")

    @contextlib.contextmanager
    def limited(self) -> Iterator[None]:
        """Limit what the run's model may take from here on. The texts of this machine's owner are read already, and
        count as used. Raises ModelError or MachineTooSmall in place of the error of an allocation."""
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
        return self._pace.steps > 0

    def prepare(self) -> None:
        """Build the model with the present content of the arena, and choose the micro-batch. This takes time and needs
        no state. Raises MachineTooSmall, ManifestError and ModelError."""
        config, laps = self._config, self._laps
        self._link.send({"note": "building the model"})
        self._duty = duty = DutyCycle(config.shares, on_gpu=self._device.device.type == "cuda")
        hooks = self._drew, duty.breathe
        self._loop = InnerLoop(config, self._layout, self._device, self._desk.data, self._arena.inn, *hooks)
        self._fitted = fit(self._loop, config)
        self._prober: Prober = Prober(config, self._layout, self._folder, self._arena, self._loop, self._desk)
        duty.begin()
        laps.end("model")

    def run(self) -> None:
        """Run for ever; the closed socket ends the process."""
        while True:
            self._drain()
            self._pass_boundary()
            if not self._running or self._paused():
                self._handle(self._link.inbox.get())
            elif self._loop.batches.ready():
                self._rest(self._step())
            else:
                self._await_data()

    # -- commands ----------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        while not self._link.inbox.empty():
            self._handle(self._link.inbox.get())

    def _handle(self, message: Message) -> None:
        reply = self._commands[message["op"]](message)
        if reply is not None:
            self._link.send({"id": message["id"], **reply})

    def _start(self, message: Message) -> Message:
        """Begin with the state that lies in the arena."""
        config, laps, device, fitted = self._config, self._laps, self._device, self._fitted
        laps.end("waiting for the state")
        self._loop.params.copy_(self._arena.inn)
        self._loop.move_to(message["round"], 0)
        if config.trail:
            self._trail = Trail(self._folder)
        resume = message["resume"]
        place = saved.load(Path(resume), self._loop, self._counters.tokens) if resume else None
        data = saved.data_place(Path(resume)) if resume else None
        cursor, why = self._desk.begin(data, resumed=bool(resume), exact=place is not None)
        self._loop.batches.move_to(cursor)
        self._loop.batches.ready()  # asks for the first shards and the hold-out
        if place is not None:
            self._account.resume(place.since_apply, place.tallies)
        else:
            for fragment in range(len(self._layout.fragments)):
                self._counters.rebase(fragment, self._counters.tokens)
        reason = "; ".join([device.reason, self._loop.optimizer.reason, *self._duty.reasons])
        info = {"device": str(device.device), "device_reason": reason, "tokens_per_step": config.tokens_per_step}
        info |= {"micro_batch": fitted.micro_batch, "micro_batch_reason": fitted.reason, "seconds": laps.took}
        info |= {"data": self._desk.data.told, "data_place": f"{cursor_text(cursor)}, {why}"}
        return {"ok": info}

    def _work(self, message: Message) -> None:
        """Begin a work request. The snapshot is its answer."""
        self._end_waiting()
        where = message["round"], message["fragment"]
        rest = message["steps"], message["until"], message["hold"], message["pause_after"]
        self._goal = WorkOrder(message["id"], *where, *rest, message.get("round_s"))
        self._running = True
        self._loop.scale_learning_rate(message["lr_scale"])
        if message["round"] > self._loop.round:
            self._loop.move_to(message["round"], 0)

    def _apply(self, message: Message) -> None:
        """Take a result. The merge is its answer."""
        merge = Merge(message["alpha"], message["after_steps"], message["after"], message["shift"])
        fragment, base, next_round = message["fragment"], message["base"], message["next_round"]
        slot = self._difference(fragment) if merge.shift else self._arena.in_slot(fragment)
        self._arrivals.append(PendingMerge(message["id"], fragment, base, next_round, merge, slot))
        self._merge_arrivals()

    def _difference(self, fragment: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(shift_file(self._folder, fragment), np.float32))

    def _clear(self, message: Message) -> Message:
        """Free the slots for the daemon: copy the results that are not merged yet."""
        for arrival in self._arrivals:
            arrival.leave_slot()
        return {"ok": {}}

    def _shard(self, message: Message) -> None:
        """Take a shard's file, or the reason why there is none."""
        self._desk.take(message)
        self._prober.arrived()
        while self._postponed and not self._desk.holdout_awaited:
            self._handle(self._postponed.pop(0))

    def _evaluate(self, message: Message) -> Message | None:
        if self._desk.holdout_awaited:
            self._postponed.append(message)
            return None
        params, number = self._loop.params if message.get("own") else self._arena.inn, message.get("number", 1)
        result = self._loop.evaluate(params, self._duty.breathing(lambda: self._link.given_up >= number))
        return {"ok": {"loss": result.loss, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}}

    def _save(self, message: Message) -> Message:
        """Write the trainer's part of a checkpoint. A full disk is reported, and training goes on."""
        try:
            folder, account, data = Path(message["folder"]), self._account, self._desk.position()
            saved.save(folder, self._loop, self._counters.tokens, account.since_snapshot, account.tallies, data)
        except (OSError, SafetensorError) as error:
            return {"failed": str(error)}
        return {"ok": {"tokens": self._counters.tokens}}

    def _hold(self, message: Message) -> None:
        """Stop at this boundary: the daemon cancelled its request, or wants to continue later."""
        self._goal, self._running = None, False

    def _release(self, message: Message) -> None:
        self._go_on(message["fragment"])

    # -- training ----------------------------------------------------------------------------------------------------

    def _paused(self) -> bool:
        """Return whether the next step has to wait for a result."""
        waits = any(self._account.steps_since(f, base) >= steps for f, (base, steps) in self._awaited.items())
        if waits and self._held_at is None:
            self._held_at = time.monotonic()
        return waits

    def _go_on(self, fragment: int) -> None:
        if self._awaited.pop(fragment, None) is not None and not self._paused():
            self._end_waiting()

    def _reached(self, goal: WorkOrder) -> bool:
        """Return whether the request ends at this boundary: by count, or because one more step would end too late."""
        if goal.steps is not None:
            return self._account.since_snapshot >= goal.steps
        return self._time_left(goal) <= 0

    def _time_left(self, goal: WorkOrder) -> float:
        """Return the seconds left in which another step may begin."""
        assert goal.until is not None
        worked = self._account.tallies[goal.fragment].steps > 0
        return goal.until - margin(self._pace.step_s, goal.round_s, worked) - boottime()

    def _step(self) -> float:
        """Make one inner step; return its seconds."""
        began = time.perf_counter_ns()
        loss = self._loop.step()
        took = time.perf_counter_ns() - began
        tokens = self._config.tokens_per_step
        self._counters.stepped(tokens, took)
        self._account.worked(WorkAccounts(1, loss is None, loss or 0.0, took))
        seconds = took / 1e9
        self._pace.took(seconds)
        self._tokens_per_s = smoothed(self._tokens_per_s, tokens / self._duty.period(seconds))
        self._tell(loss)
        return seconds

    def _drew(self, round_: int, step: int, batch: Batch) -> None:
        self._desk.drew(batch)
        if self._trail is not None:
            self._trail.step(self._counters.tokens, round_, step, batch)

    def _await_data(self) -> None:
        """Take a command while the next batch is not here; its shard is one. Work may end meanwhile by the clock."""
        self._tell(self._last_loss)
        with contextlib.suppress(queue.Empty):
            self._handle(self._link.inbox.get(timeout=max(0.0, min(LOOK_EVERY_S, self._until_due()))))

    def _tell(self, loss: float | None) -> None:
        now = time.monotonic()
        if now - self._told_at >= PROGRESS_EVERY_S and loss is not None:
            self._told_at, self._last_loss = now, loss
            place = [self._loop.round, self._loop.step_in_round]
            rest = [self._duty.period(self._pace.step_s), self._pace.steps, self._desk.waiting, self._pace.longest_s]
            self._link.send({"progress": [*place, loss, self._tokens_per_s, *rest]})

    def _rest(self, worked_s: float) -> None:
        """Leave the machine to its owner for the rest of the step's time.

        Commands are taken meanwhile, and due merges and snapshots happen: all of the rest is one boundary."""
        end = time.monotonic() + self._duty.rest_s(worked_s)
        while self._running and (left := end - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._handle(self._link.inbox.get(timeout=max(0.0, min(left, self._until_due()))))
            self._pass_boundary()
        if self._running:
            self._duty.rested()

    def _until_due(self) -> float:
        """Return the seconds until a snapshot or merge is due by the clock."""
        moments = [arrival.merge.after - boottime() for arrival in self._arrivals if arrival.merge.after is not None]
        if self._goal is not None and self._goal.until is not None:
            moments.append(self._time_left(self._goal))
        return min(moments, default=math.inf)

    def _pass_boundary(self) -> None:
        """Merge the results that are due between two steps, then take the snapshot, which may end the work."""
        self._merge_arrivals()
        if self._running and self._goal is not None and self._reached(self._goal):
            self._snapshot(self._goal)
            self._merge_arrivals()

    def _snapshot(self, goal: WorkOrder) -> None:
        fragment, processed = goal.fragment, self._counters.tokens
        start, end = self._layout.fragment_span(fragment)
        self._arena.out_slot(fragment).copy_(self._loop.params[start:end])
        tally = self._account.snapshot(fragment, processed)
        self._goal, self._running = None, not goal.hold
        if not goal.hold:
            self._loop.move_to(goal.round + 1, 0)
            if goal.pause_after is not None:
                self._awaited[fragment] = processed, goal.pause_after
        self._held_at = time.monotonic() if goal.hold else None
        work: dict[str, Any] = {
            "steps": tally.steps,
            "tokens": processed - self._counters.base(fragment),
            "processed": processed,
            "loss": tally.loss,
            "seconds": tally.nanoseconds / 1e9,
            "skipped": tally.skipped,
        }
        self._link.send({"id": goal.id, "ok": work | self._desk.snapshot(fragment, processed)})

    # -- merging -----------------------------------------------------------------------------------------------------

    def _merge_arrivals(self) -> None:
        """Merge the results whose boundary this is. A trainer at rest merges all of them."""
        for arrival in list(self._arrivals):
            if not self._running or self._ripe(arrival):
                self._arrivals.remove(arrival)
                self._merge(arrival)

    def _ripe(self, arrival: PendingMerge) -> bool:
        merge = arrival.merge
        if merge.shift:
            return True
        if merge.after is not None and boottime() < merge.after:
            return False
        return self._account.steps_since(arrival.fragment, arrival.base) >= (merge.after_steps or 0)

    def _merge(self, arrival: PendingMerge) -> None:
        fragment, base = arrival.fragment, arrival.base
        if arrival.merge.shift:
            self._loop.shift(fragment, arrival.outer_params)
            self._link.send({"id": arrival.id, "ok": {}})
            return
        self._loop.merge(fragment, arrival.outer_params, arrival.merge.alpha)
        self._account.rebase(fragment, base)
        self._desk.account.rebase(fragment, base)
        self._counters.rebase(fragment, base)
        self._go_on(fragment)
        if self._loop.round < arrival.next_round:
            self._end_waiting()
            self._loop.move_to(arrival.next_round, 0)
        self._link.send({"id": arrival.id, "ok": {}})

    def _end_waiting(self) -> None:
        if self._held_at is not None:
            self._counters.waited(int((time.monotonic() - self._held_at) * 1e9))
            self._held_at = None
