"""The end of the daemon's socket in the program of a user's own training loop.

The loop calls `stepped` after each of its steps. There the daemon's orders are carried out, on the loop's own thread
and between two steps: snapshots are given, results merged, params evaluated. When the daemon is lost, the loop trains
on alone, starts another one, and keeps its params and its accounts.

With several ranks this is rank 0. The others are followers: they wait at each step while the orders are carried out,
and do their part of them.

On failure: an error that a person has to mend is passed to `on_fault` once, and the loop trains on without a daemon. A
daemon that ended by chance is started again, ever more slowly."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from peer.attached.daemon import DaemonChild
from peer.attached.interrupts import Interrupts
from peer.attached.own_loss import Loss, LossJudge, UpcomingBatches
from peer.attached.params import Named, check_optimizers, match_tensors
from peer.attached.rank_tensors import LeadTensors, reshard
from peer.attached.ranks import CONFIRM_S, NO_BATCHES, Ranks, as_message, error_in
from peer.attached.saving import load, save
from peer.attached.untouched import untouched
from peer.errors import NotRunning, PeerError, RankLost, TrainerFailed, UsageError
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.sampling import Cursor
from peer.protocol.schedule import RoundClock
from peer.run.sections import CustomSection
from peer.trainer.arena import Arena, CounterFile
from peer.trainer.batches import BatchStream
from peer.trainer.boundary import Boundary, Command
from peer.trainer.config import TrainerConfig
from peer.trainer.data.tracked import TrackedData
from peer.trainer.evaluation import NO_EVALUATION, evaluate_holdout, weights_of
from peer.trainer.inner_loop import lr_factor
from peer.trainer.ipc import Message
from peer.trainer.loss import TokenLoss
from peer.trainer.models.factory import bind, empty_model
from peer.trainer.models.flat import replace_parameters, views_of
from peer.trainer.models.language_model import LanguageModel
from peer.trainer.probing.probe import Prober

log = logging.getLogger("peer")

SILENT_S = 180.0
"""A daemon that sends nothing for so long counts as hung. It sends its status every second once it has loaded."""
POLL_S = 0.5
"""Seconds between two looks at a daemon that is waited for."""
EVALUATION_S = 30.0
"""Seconds that one evaluation may hold up the loop; it is given up after that, without a result."""
LONGEST_PAUSE_S = 60.0
"""Before a lost daemon is started again: the first one at once, later ones after a pause that doubles, until one gives
an order to train."""
MAX_DEATHS = 5
"""Daemons that end one after the other without an order to train: then no further one is started."""
MOST_LOGGED = 32
"""Names of numbers that a loop may log."""
CLOSED_S = 5.0
"""Seconds that a daemon which has closed its socket may take to end."""
LEAVE_S, BROKEN_S = 60.0, 10.0
"""Seconds for a drain at the end of the loop, and after an exception in it."""

NO_JUDGE = "this loop has none of the run's data"
NO_LOSS = (
    "the run's model is known to this loop alone, and it was joined without a loss. Partners' params are clipped, and "
    "not checked. With peer.join(..., loss=...) they are"
)
NO_MEMORY = "the memory of this device has no room for the run's network beside the loop"
"""Why there are no losses, for a person."""


class OwnData:
    """The data of a user's own loop, of which the run knows nothing (`peer.trainer.boundary.DrawnData`)."""

    def snapshot(self, fragment: int, tokens: int) -> Mapping[str, str]:
        return {"data_from": "", "data_to": "", "data_skipped": ""}

    def rebase(self, fragment: int, tokens: int) -> None:
        """Nothing is known to rebase."""


class BoundNetwork:
    """The run's own network over a user's live tensors (`peer.trainer.evaluation.RunNetwork`). Its params have no
    memory of their own."""

    def __init__(self, config: TrainerConfig, layout: Layout, params: LeadTensors) -> None:
        """Raises ModelError when the run's model cannot be made here."""
        model = empty_model(config)
        flat = torch.zeros(layout.elements, device=params.device)
        bind(model, layout, flat)
        model.examine()
        named = {model.prefix + name: nn.Parameter(view.to("meta")) for name, view in views_of(flat, layout)}
        replace_parameters(model, named)
        model.eval()
        self._tensors = params
        self.token_loss = TokenLoss(model, params.device, config.mask_end_token)

    @property
    def network(self) -> LanguageModel:
        return self.token_loss.network

    @property
    def device(self) -> torch.device:
        return self._tensors.device

    def live_weights(self) -> dict[str, Tensor]:
        named = self._tensors.whole_named().items()
        return weights_of(self.network, ((name, value.to(self.device)) for name, value in named))

    def forget_gradients(self) -> None:
        """Leave them: they are the user's."""


class RunJudge:
    """Evaluates and probes params inside a user's loop, with the run's network on the run's data."""

    def __init__(
        self,
        config: TrainerConfig,
        layout: Layout,
        folder: Path,
        arena: Arena,
        params: LeadTensors,
        send: Callable[[Message], None],
    ) -> None:
        """Raises DataError, ManifestError and ModelError."""
        self._config = config
        self._layout = layout
        self._arena = arena
        self._network = BoundNetwork(config, layout, params)
        self._tracked = TrackedData(config, folder, len(layout.fragments), send)
        self._prober = Prober(config, layout, folder, arena, self._network, self._tracked)
        if self._tracked.shards is not None:
            self._tracked.shards.request([])  # asks for the hold-out

    @property
    def holdout_awaited(self) -> bool:
        return self._tracked.holdout_awaited

    @property
    def asks_daemon(self) -> bool:
        """Whether its data are requested from the daemon. Another daemon does not know the requests."""
        return self._tracked.shards is not None

    @property
    def data(self) -> str:
        """Description of the data that params are evaluated on."""
        return self._tracked.data.description

    def weigh(self, message: Message) -> Message:
        with untouched():
            return self._prober.weigh(message)

    def probe(self, message: Message) -> Message:
        with untouched():
            return self._prober.answer(message)

    def evaluate(self, own: bool, given_up: Callable[[], bool]) -> Message:
        until = time.monotonic() + EVALUATION_S
        network, train = self._network, self._config.train
        with untouched():
            if own:
                weights = network.live_weights()
            else:
                weights = weights_of(network.network, views_of(self._arena.inn.to(network.device), self._layout))
            result = evaluate_holdout(
                network.token_loss,
                self._tracked.data,
                train.context,
                train.eval_windows,
                weights,
                lambda: given_up() or time.monotonic() > until,
            )
        return {"loss": result.loss, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}

    def take_shard(self, message: Message) -> None:
        self._tracked.receive_shard(message)
        self._prober.check_borrowed()

    def stream(self) -> BatchStream:
        """Return the run's training data, in the order in which this peer draws it."""
        config, shape = self._config, {"context": self._config.train.context, "batch": self._config.train.batch}
        return BatchStream(self._tracked.data, seed=config.seed, peer_id=config.peer_id, **shape)


class AttachedTrainer:
    """One loop of a user's, in one run. `join` returns when training begins."""

    def __init__(
        self,
        model: Named,
        optimizers: Sequence[torch.optim.Optimizer],
        start_daemon: Callable[[int], DaemonChild],
        *,
        confirm: Callable[[str, Sequence[str]], bool | None],
        on_fault: Callable[[PeerError], None],
        on_phase: Callable[[str], None] = lambda phase: None,
        loss: Loss | None = None,
        holdout: Sequence[Any] = (),
        ranks: Ranks | None = None,
    ) -> None:
        """`start_daemon` is given the round of the live params, -1 at first. `confirm` is called with a question and
        the lines before it; it returns None when there is nobody to ask. `on_phase` is called with each thing that
        `join` waits for. `loss` judges params of a custom model, on `holdout` too. `ranks`: the others that train this
        model; None: this process trains it alone."""
        self._model = model
        self._optimizers = list(optimizers)
        self._start_daemon = start_daemon
        self._confirm_terms = confirm
        self._on_fault = on_fault
        self._on_phase = on_phase
        self._loss = loss
        self._holdout = holdout
        self._ranks = ranks if ranks is not None else Ranks()
        self.upcoming = UpcomingBatches()
        self._thread = threading.get_ident()
        self._child: DaemonChild | None = None
        self._config: TrainerConfig | None = None
        self._layout: Layout
        self._folder: Path
        self._arena: Arena
        self._counters: CounterFile
        self._rounds: RoundClock
        self.params: LeadTensors
        self.boundary: Boundary | None = None
        self._judge: RunJudge | LossJudge | None = None
        self._unjudged_reason = NO_JUDGE
        self._logged = dict[str, float]()
        """Numbers that the daemon has not been sent yet."""
        self._names = set[str]()
        self._loss_failed = False
        self._checked_round = -1
        """Round in which the model had the tensors of `join`."""
        self._attached = False
        """Whether the daemon has started this loop, so that its orders are obeyed."""
        self._free = False
        """Whether the loop goes on until its daemon orders work: it outlived the former one."""
        self._leaving = False
        self.over = False
        """Whether the run is over, or was left."""
        self.error: PeerError | None = None
        """Why there is no daemon any more; None: there is one, or there will be."""
        self._joined = False
        """Whether `join` has returned."""
        self.phase = "starting"
        self.status = ""
        self.peers = 0
        """Others that are in touch."""
        self._postponed: list[Message] = []
        """Evaluations that wait for the hold-out."""
        self._lines_before_question: list[str] = []
        self._refusal: PeerError | None = None
        self._deaths = 0
        self._next_start = 0.0
        self._last_message_at = time.monotonic()
        self._step_began = time.perf_counter_ns()
        self._interrupts = Interrupts()
        self.steps_alone = 0
        """Steps made without a daemon."""
        self._evaluated = math.nan
        self._commands: dict[str, Command] = {
            "start": self._start,
            "evaluate": self._evaluate,
            "save": self._save,
            "shard": self._shard,
            "probe": self._probe,
            "weigh": self._weigh,
            "ask": self._answer_question,
            "say": self._log_line,
            "status": self._note_status,
            "failed": self._note_refusal,
            "over": self._end_run,
            "ended": self._lose_daemon,
        }

    # -- joining -----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Start the daemon, and wait until it gives the first order to train. Raises the PeerError that ended it, and
        RankLost."""
        try:
            self._ranks.accept_all()
            self._child = self._start_daemon(-1)
            while not (self._attached and (self._running or self.finished)):
                self._wait_for_daemon()
                if self.error is not None:
                    raise self.error
                if self.over:
                    raise NotRunning("the daemon left the run before training began", "Look at what it logged.")
        except BaseException as error:
            if isinstance(error, PeerError):
                self._ranks.fail(error)
            self.close()
            raise
        self._joined = True
        self._ranks.release(self._state())
        self._step_began = time.perf_counter_ns()

    def _wait_for_daemon(self) -> None:
        """Carry out the next order, whether the daemon has started this loop or not."""
        assert self._child is not None
        if self._attached and self.boundary is not None:
            self.boundary.wait(POLL_S)
            self.boundary.cross()
        else:
            with contextlib.suppress(queue.Empty):
                self._dispatch(self._child.pipe.inbox.get(timeout=POLL_S))
        self._check_silence()
        self._ranks.heartbeat()

    def _dispatch(self, message: Message) -> None:
        """Carry out a message of a daemon that has not started this loop yet."""
        self._last_message_at = time.monotonic()
        assert self._child is not None
        if "config" in message:
            self._open(message)
            return
        if message["op"] not in self._commands:
            return  # an order of the rounds, such as `hold`: nothing is under way yet
        reply = self._commands[message["op"]](message)
        if reply is not None and self._child is not None:
            self._child.pipe.send({"id": message["id"], **reply})

    def _open(self, opening: Message) -> None:
        """Bind the tensors to the run's layout. A difference is sent to the daemon, and raised."""
        try:
            self._bind(opening)
        except PeerError as error:
            assert self._child is not None
            refusal = as_message(error)
            self._child.pipe.send({"refused": refusal.pop("error"), **refusal})
            raise

    def _bind(self, opening: Message) -> None:
        config = TrainerConfig.model_validate(opening["config"])
        named = zip(opening["tensors"], opening["shapes"], strict=True)
        tensors = tuple(TensorSpec(name, tuple(shape)) for name, shape in named)
        layout = Layout(tensors, tuple((first, end) for first, end in opening["fragments"]))
        folder = Path(opening["folder"])
        if self._config is not None and (layout, folder) != (self._layout, self._folder):
            raise UsageError("the daemon that was started again is of another run", "Join again.")
        self._config, self._layout, self._folder = config, layout, folder
        if self.boundary is None:
            reshard(self._model)
            self._arena = Arena(folder, layout, create=False)
            self.params = LeadTensors(layout, match_tensors(self._model, tensors), self._ranks, self._arena, folder)
            check_optimizers(self._optimizers, self.params.tensors)
            self._ranks.order("open", **{name: opening[name] for name in ("tensors", "shapes", "fragments", "folder")})
            self._ranks.wait_answers()
            self._counters = CounterFile(folder, len(layout.fragments))
            self._rounds = RoundClock(config.clock, config.sync_every, len(layout.fragments), growth=config.growth)
        if isinstance(config.model, CustomSection):
            if self._loss is None:
                self._unjudged_reason = NO_LOSS
            elif self._judge is None:
                shared = self._holdout, self.upcoming, layout, folder, self._arena, self.params
                self._judge = LossJudge(self._loss, self._model, *shared)
            return
        if config.data.kind == "text" and config.data_dir is None:
            return
        if self._judge is None or self._judge.asks_daemon:
            self._judge = RunJudge(config, layout, folder, self._arena, self.params, self._send)

    def _send(self, message: Message) -> None:
        if self._child is not None:
            self._child.pipe.send(message)

    # -- orders ------------------------------------------------------------------------------------------------------

    def _start(self, message: Message) -> Message:
        """Begin with the state in the arena, with a checkpoint, or go on with the live params."""
        config, child = self._config, self._child
        assert config is not None
        assert child is not None
        if self.boundary is not None and message["covered"] is not None:
            self.boundary.attach(child.pipe, message["covered"])
            self._free = True
            log.info("attached to another daemon, with the live params")
        else:
            self.params.load(self._arena.inn)
            self.params.move_to(message["round"], 0)
            if self.boundary is None:
                shared = self._folder, self._layout, self._arena, self._counters
                self.boundary = Boundary(child.pipe, *shared, self.params, OwnData(), self._commands)
            else:
                self.boundary.attach(child.pipe, ())
                self.boundary.restart()
            self._free = False
            self._resume(message["resume"])
        self._attached = True
        info = {"device": str(self.params.device), "device_reason": "the user's own training loop"}
        data = self._judge.data if self._judge is not None else ""
        return {"ok": info | {"tokens_per_step": config.tokens_per_step, "data": data}}

    def _resume(self, checkpoint: str | None) -> None:
        assert self.boundary is not None
        if checkpoint is None:
            self.boundary.drop_open_work()
            return
        tokens = self._counters.tokens
        self._ranks.order("restore", folder=checkpoint, tokens=tokens)
        named, shard = self.params.named(), (0, self._shards)
        found, optimizers = load(Path(checkpoint), named, self._optimizers, tokens, shard)
        log.info(optimizers)
        everywhere = all(answer["restored"] for answer in self._ranks.wait_answers())
        if found is None or not everywhere:
            if found is not None or self._shards > 1:
                self.params.load(self._arena.inn)  # some ranks may have restored their rows
            self.boundary.drop_open_work()
            return
        self.params.move_to(found.round, found.step_in_round)
        self.boundary.resume(found.since_snapshot, found.tallies)

    @property
    def _shards(self) -> int:
        """How many ranks have a part of a checkpoint each."""
        return self._ranks.world if self.params.sharded else 1

    def _evaluate(self, message: Message) -> Message | None:
        if self._judge is None:
            result = NO_EVALUATION
            return {"ok": {"loss": result.loss, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}}
        if self._judge.holdout_awaited:
            self._postponed.append(message)
            return None
        child, number = self._child, message.get("number", 1)
        own, judge = bool(message.get("own")), self._judge
        until = time.monotonic() + EVALUATION_S

        def given_up() -> bool:
            interrupted = self._interrupts.waiting
            return interrupted or child is None or child.pipe.given_up >= number or time.monotonic() > until

        try:
            return {"ok": judge.evaluate(own, given_up)}
        except UsageError as error:
            self._note_failed_loss(error)
        except torch.OutOfMemoryError:
            log.warning("not evaluated: %s", NO_MEMORY)
        return {"ok": {"loss": math.nan, "bits_per_byte": math.nan, "tokens": 0}}

    def _save(self, message: Message) -> Message:
        """Write this loop's part of a checkpoint. A full disk is reported, and training goes on."""
        assert self.boundary is not None
        account, tokens = self.boundary.account, self._counters.tokens
        place = tokens, self.params.round, self.params.step_in_round, account.since_snapshot
        self._ranks.order("save", folder=message["folder"], tokens=tokens)
        failed = list[str]()
        try:
            named, shard = self.params.named(), (0, self._shards)
            save(Path(message["folder"]), named, self._optimizers, place, account.tallies, shard)
        except (OSError, SafetensorError) as error:
            failed.append(str(error))
        failed += [answer["failed"] for answer in self._ranks.wait_answers() if "failed" in answer]
        return {"failed": failed[0]} if failed else {"ok": {"tokens": tokens}}

    def _shard(self, message: Message) -> None:
        if self._judge is not None:
            self._judge.take_shard(message)
        while self._postponed and self._judge is not None and not self._judge.holdout_awaited:
            postponed = self._postponed.pop(0)
            reply = self._evaluate(postponed)
            assert reply is not None
            self._send({"id": postponed["id"], **reply})

    def _probe(self, message: Message) -> Message:
        return self._judged(None if self._judge is None else self._judge.probe, message)

    def _weigh(self, message: Message) -> Message:
        return self._judged(None if self._judge is None else self._judge.weigh, message)

    def _judged(self, judge: Callable[[Message], Message] | None, message: Message) -> Message:
        if judge is None:
            return {"ok": {"why": self._unjudged_reason}}
        try:
            return judge(message)
        except UsageError as error:
            self._note_failed_loss(error)
            return {"ok": {"why": error.found}}
        except torch.OutOfMemoryError:
            return {"ok": {"why": NO_MEMORY}}

    def _note_failed_loss(self, error: UsageError) -> None:
        """Report once that the user's loss fails. The loop trains on, and partners' params are clipped alone."""
        if not self._loss_failed:
            self._loss_failed = True
            log.warning("partners' params are not checked: %s", error.found)
            self._on_fault(error)

    # -- reports of the daemon ---------------------------------------------------------------------------------------

    def _answer_question(self, message: Message) -> Message:
        """Ask the person. The time they take is no silence of the daemon."""
        lines, self._lines_before_question = self._lines_before_question, []
        self._ranks.heartbeat(CONFIRM_S)
        answer = self._confirm_terms(message["question"], lines)
        self._last_message_at = time.monotonic()
        return {"ok": {"answer": answer}}

    def _log_line(self, message: Message) -> None:
        self._lines_before_question.append(message["line"])
        log.info(message["line"])

    def _note_status(self, message: Message) -> None:
        self._last_message_at = time.monotonic()
        if not self._joined and message["phase"] != self.phase:
            self._on_phase(message["phase"])
        self.phase, self.peers, self.status = message["phase"], message["peers"], message["status"]

    def _note_refusal(self, message: Message) -> None:
        self._refusal = error_in(message)

    def _end_run(self, message: Message) -> None:
        self.over = True

    def _lose_daemon(self, message: Message) -> None:
        """Reap the daemon, and decide whether to start another one."""
        if self._child is None:
            return
        child, self._child, self._attached = self._child, None, False
        self._postponed.clear()
        code = child.end(CLOSED_S)
        if self.boundary is not None:
            self.boundary.detach()
            self.boundary.cross()
        refusal, self._refusal = self._refusal, None
        if self.over or self._leaving:
            self.over = True
            return
        fault = refusal or child.exit_error(code)
        self._deaths += 1
        needs_person = refusal is not None and not refusal.retry
        if self.boundary is None or needs_person or self._deaths > MAX_DEATHS:
            if self._deaths > MAX_DEATHS and not needs_person:
                found = f"the daemon ended {self._deaths} times in a row, at last: {fault.found}"
                fault = TrainerFailed(found, fault.fix, "The loop trains on alone, and its work reaches nobody.")
            self.error = fault
        else:
            pause_s = min(LONGEST_PAUSE_S, 2.0**self._deaths) if self._deaths > 1 else 0.0
            self._next_start = time.monotonic() + pause_s
        log.warning("the loop trains alone: %s", fault.found)
        if self.boundary is not None:
            self._on_fault(fault)

    def _check_silence(self) -> None:
        if self._child is not None and time.monotonic() - self._last_message_at > SILENT_S:
            log.warning("the daemon was silent for %.0f s, and is ended", SILENT_S)
            self._child.end(0.0)
            self._last_message_at = time.monotonic()

    # -- what the loop calls -----------------------------------------------------------------------------------------

    def stepped(self, tokens: int, loss: float = math.nan) -> None:
        """Count an optimizer step, carry out orders, and wait while the run holds this loop. `tokens`: 0 counts the
        manifest's batch, unless other ranks count tokens.

        Never raises for the network. Raises UsageError on another thread and in a forked child, and this or ModelError
        when the model's tensors were replaced; RankLost."""
        self.check_thread()
        boundary = self.boundary
        if boundary is None or self.over:
            return
        with self._meeting("step") as others:
            took = time.perf_counter_ns() - self._step_began
            if self.params.round != self._checked_round:
                self._check_tensors()
            self.params.count_step()
            parts = [(tokens, loss)]
            parts += [(one["tokens"], math.nan if one["loss"] is None else one["loss"]) for one in others]
            boundary.stepped(sum(count for count, _ in parts) or self.nominal_tokens, took, _mean(parts), took / 1e9)
            if not self._attached or boundary.has_work:
                with self._interrupts:
                    self.attend()
            else:
                boundary.show_progress(boundary.pace.step_s)
        self._step_began = time.perf_counter_ns()

    @contextlib.contextmanager
    def _meeting(self, what: str) -> Iterator[list[Message]]:
        """Have the other ranks at hand for orders, and let them go on in the end. Yields what they came with. Each
        PeerError is raised on all ranks."""
        try:
            yield self._ranks.gather(what)
        except PeerError as error:
            self._ranks.fail(error)
            raise
        self._ranks.release(self._state())

    def _state(self) -> Message:
        """Return what the other ranks show of the run."""
        return {
            "round": self.params.round,
            "step_in_round": self.params.step_in_round,
            "over": self.over,
            "finished": self.finished,
            "attached": self.attached,
            "phase": self.phase,
            "peers": self.peers,
            "tokens": self.tokens,
            "total_rounds": self.total_rounds,
            "lr_factor": self.lr_factor,
            "error": None if self.error is None else as_message(self.error),
            "value": None if math.isnan(self._evaluated) else self._evaluated,
        }

    def _check_tensors(self) -> None:
        """Raise ModelError or UsageError when the model has other tensors than at `join`, once a round: what is trained
        would not be what is exchanged."""
        reshard(self._model)
        found = match_tensors(self._model, self._layout.tensors)
        for spec, live, bound in zip(self._layout.tensors, found, self.params.tensors, strict=True):
            if live is not bound:
                fix = "Change values in place, as load_state_dict() does, or leave the run and join again."
                raise UsageError(f"{spec.name} is another tensor than the one that joined", fix)
        self._checked_round = self.params.round

    def end_interrupted_wait(self) -> None:
        """Wait on while the run holds this loop, where an interrupt ended the wait: a step that is made now would be
        lost at the merge."""
        if self.boundary is not None and self._ranks.world == 1 and self._held:
            with self._interrupts:
                self.attend()
            self._step_began = time.perf_counter_ns()

    def attend(self) -> None:
        """Carry out what has come, and wait while the run holds this loop."""
        boundary = self.boundary
        assert boundary is not None
        if self._attached:
            boundary.drain()
            self._cross()
            while self._held:
                self._interrupts.deliver()
                boundary.wait(POLL_S)
                self._cross()
                self._check_silence()
                self._ranks.heartbeat()
        else:
            self.steps_alone += 1
            self._seek_daemon()
        if self._attached and boundary.show_progress(boundary.pace.step_s) and self._logged:
            self._send({"logged": self._logged})
            self._logged = {}

    def log(self, numbers: Mapping[str, float]) -> None:
        """Send numbers to the daemon with the next progress. Raises UsageError for too many names."""
        self._names.update(numbers)
        if len(self._names) > MOST_LOGGED:
            found = f"{len(self._names)} names were logged, and {MOST_LOGGED} are kept"
            raise UsageError(found, "Log fewer names: each is one curve.")
        self._logged.update(numbers)

    def _cross(self) -> None:
        assert self.boundary is not None
        if self._attached:
            self.boundary.cross()
        if self.boundary.ordered:
            self._deaths = 0

    def _seek_daemon(self) -> None:
        """Start another daemon when its time has come, and carry out what it has sent. Never waits."""
        if self._child is None:
            if self.error is not None or self.over or time.monotonic() < self._next_start:
                return
            try:
                self._child = self._start_daemon(self.params.round)
            except PeerError as error:
                self.error = error
                self._on_fault(error)
                return
            self._last_message_at = time.monotonic()
        child = self._child
        try:
            while self._child is child and not self._attached and not child.pipe.inbox.empty():
                self._dispatch(child.pipe.inbox.get())
        except PeerError as error:  # at the first daemon `join` raises it
            self._child = None
            child.pipe.close()
            child.end(CLOSED_S)
            self.error = error
            self._on_fault(error)
        self._check_silence()

    @property
    def _running(self) -> bool:
        return self.boundary is not None and self.boundary.running

    @property
    def _held(self) -> bool:
        """Whether the next step has to wait: for a result, for the round to begin, for the end of a pause."""
        assert self.boundary is not None
        if not self._attached or self.finished or (self._free and not self.boundary.ordered):
            return False
        return not self.boundary.may_step()

    @property
    def finished(self) -> bool:
        """Whether all rounds of the run were played, or this loop left."""
        return self.over or self._leaving or self.status == "finished"

    @property
    def attached(self) -> bool:
        """Whether a daemon has started this loop."""
        return self._attached

    @property
    def judges_by_loss(self) -> bool:
        """Whether params are judged by the user's own loss, on the batches of `upcoming`."""
        return isinstance(self._judge, LossJudge)

    @property
    def pid(self) -> int | None:
        """Process id of the daemon; None: there is none now."""
        return None if self._child is None else self._child.pid

    @property
    def total_rounds(self) -> int:
        assert self._config is not None
        return self._config.train.total_rounds

    @property
    def nominal_tokens(self) -> int:
        """Tokens of a step as the manifest has them."""
        assert self._config is not None
        return self._config.tokens_per_step

    @property
    def tokens(self) -> int:
        """Tokens processed in all lives of this loop."""
        return self._counters.tokens

    @property
    def lr_factor(self) -> float:
        """Factor of the peak learning rate for the next step: the run's schedule times the operator's factor."""
        assert self._config is not None
        place = self.params.round, self.params.step_in_round
        return lr_factor(self._config, self._rounds, *place) * self.params.lr_scale

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of the run's own data: see `Swarm.batches`."""
        self.check_thread()
        if self._ranks.world > 1:
            raise UsageError(NO_BATCHES, "Give the loop batches of your own.")
        if not isinstance(self._judge, RunJudge):
            raise UsageError(self._unjudged_reason, "Give the loop batches of your own.")
        cursor = Cursor(epoch=self.tokens)  # a resumed loop draws in another order than before
        while not self.over:
            judge = self._judge
            assert isinstance(judge, RunJudge), "the run's data stay those of the run"
            stream = judge.stream()
            stream.move_to(cursor)
            while self._judge is judge and not self.over:
                if not stream.ready():
                    self._wait_for_data()
                    continue
                windows = torch.from_numpy(stream.next().windows.astype(np.int64))
                cursor = stream.cursor
                yield windows[:, :-1], windows[:, 1:]

    def _wait_for_data(self) -> None:
        """Carry out the next order, of which the run's data may be one. Raises the error that ended the daemon for
        good: without one the data cannot come."""
        if self.error is not None:
            raise self.error
        if self._attached:
            self._wait_for_daemon()
        else:
            self._seek_daemon()
            time.sleep(POLL_S)  # `_seek_daemon` never waits, and the next daemon has its time to be started

    def evaluate(self) -> float:
        """Return the loss of the live params on the run's hold-out, in nats a token; NaN where none is here, and when
        other ranks were left."""
        self.check_thread()
        if self._ranks.closed:
            return math.nan
        with self._meeting("evaluate"):
            self._evaluated = math.nan
            if self._judge is not None and not self._judge.holdout_awaited:
                self._evaluated = float(self._judge.evaluate(True, lambda: False)["loss"])
        return self._evaluated

    def check_thread(self) -> None:
        """Raise UsageError on another thread than that of `join`, and in a forked child."""
        if self._child is not None and self._child.forked:
            raise UsageError(
                f"process {os.getpid()} was forked from the one that joined, and cannot train in its place",
                "Join in the process that trains.",
            )
        if threading.get_ident() != self._thread:
            raise UsageError(
                "optimizer.step() was called on another thread than join()",
                "Call join() on the thread that trains.",
            )

    # -- the end -----------------------------------------------------------------------------------------------------

    def leave(self, within_s: float) -> None:
        """Drain: have the exchange under way finished and the last state saved, and the daemon end, within so long."""
        until = time.monotonic() + within_s
        if self._child is None or not self._ranks.gather_to_leave(within_s / 2):
            self.close()
            return
        self._leaving = True
        self._child.drain()
        try:
            while self._child is not None and time.monotonic() < until:
                self._wait_for_daemon()
            self.over = True
            self._ranks.release(self._state())
        except RankLost as error:
            log.warning("left without the last save: %s", error.found)
        finally:
            self.close()

    def close(self) -> None:
        """Close the socket, upon which the daemon ends by itself, and kill it after `CLOSED_S`. May be called again."""
        self.over = True
        self._ranks.close()
        if self._child is not None:
            child, self._child, self._attached = self._child, None, False
            child.pipe.close()
            child.end(CLOSED_S)


def _mean(parts: Sequence[tuple[int, float]]) -> float:
    """Return the mean of the losses that are numbers, each with as much weight as its tokens; NaN without one."""
    known = [(max(1, tokens), loss) for tokens, loss in parts if not math.isnan(loss)]
    if not known:
        return math.nan
    return math.fsum(tokens * loss for tokens, loss in known) / sum(tokens for tokens, _ in known)
