"""`AttachedTrainer`: the end of the daemon's socket in the program of a user's own training loop.

The loop calls `stepped` after each of its steps. There the daemon's orders are executed, on the loop's own thread and
between two steps: snapshots are taken, results merged, params evaluated. When the daemon is lost, the loop trains on
alone, starts another daemon, and keeps its params and its accounts.

With several ranks, this is rank 0. The others are followers (`peer.attached.follower`): they wait at each step while
rank 0 executes the orders, and do their part of them.

The trainer is made of parts: `DaemonLink` starts the daemon and notices its end, `BoundRun` has what belongs to the run
(config, layout, arena, params), `Judging` computes losses, and `peer.trainer.boundary.Boundary` executes the orders of
the rounds."""

from __future__ import annotations

import contextlib
import enum
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
from torch import Tensor

from peer.attached.bound_run import BoundRun
from peer.attached.daemon import DaemonChild
from peer.attached.daemon_link import DaemonLink, LinkState
from peer.attached.interrupts import Interrupts
from peer.attached.judging import Judging
from peer.attached.own_loss import Loss, UpcomingBatches
from peer.attached.params import Named
from peer.attached.rank_tensors import LeadTensors
from peer.attached.ranks import CONFIRM_S, NO_BATCHES, Ranks, as_message, error_in
from peer.attached.run_judge import RunJudge
from peer.attached.saving import load, save
from peer.errors import NotRunning, PeerError, RankLost, UsageError
from peer.protocol.sampling import Cursor
from peer.trainer.boundary import Boundary, Command
from peer.trainer.ipc import Message

log = logging.getLogger("peer")

POLL_S = 0.5
"""Seconds between two checks of the daemon while the loop waits for it."""
MOST_LOGGED = 32
"""Most names of numbers that a loop may log."""
LEAVE_S, BROKEN_S = 60.0, 10.0
"""Seconds to leave the run at the end of the loop, and after an exception in it."""


class OwnData:
    """The data of a user's own loop, of which the run knows nothing (`peer.trainer.boundary.DrawnData`)."""

    def snapshot(self, fragment: int, tokens: int) -> Mapping[str, str]:
        return {"data_from": "", "data_to": "", "data_skipped": ""}

    def rebase(self, fragment: int, tokens: int) -> None:
        """Do nothing: no place in the data is known."""


class Phase(enum.Enum):
    """A stage in the life of an attached loop. The stages follow each other in this order."""

    JOINING = enum.auto()
    """`join` waits for the first daemon and for its first order to train."""
    TRAINING = enum.auto()
    """The user's loop makes steps, with a daemon or, between two daemons, alone."""
    LEAVING = enum.auto()
    """`leave` waits until the daemon has finished the exchange under way and saved."""
    OVER = enum.auto()
    """The run is over, or was left. Steps are no longer counted."""


class AttachedTrainer:
    """Connects one training loop of a user to one run. `join` returns when training begins.

    All methods have to be called on the thread that called `join`."""

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
        """`start_daemon`: starts a daemon, given the round of the live params, which is -1 at first. `confirm`: asks
        the person a question, given the lines to show before it; returns None when there is no person. `on_fault`: is
        called with each fault of the daemon. `on_phase`: is called with each text about what `join` waits for. `loss`
        and `holdout`: see `peer.join`. `ranks`: the other ranks that train this model; None: there are none."""
        self._model = model
        self._optimizers = list(optimizers)
        self._confirm_terms = confirm
        self._on_phase = on_phase
        self._ranks = ranks if ranks is not None else Ranks()
        self._thread = threading.get_ident()
        self._phase = Phase.JOINING
        self._link = DaemonLink(start_daemon, on_fault)
        self._interrupts = Interrupts()
        self._judging = Judging(model, loss, holdout, self._link, self._interrupts, on_fault)
        self._run: BoundRun | None = None
        """None: no daemon has sent the run's config yet."""
        self.boundary: Boundary | None = None
        """None: no daemon has started this loop yet."""
        self._logged = dict[str, float]()
        """Logged numbers that were not sent to the daemon yet."""
        self._names = set[str]()
        """Names of all numbers that were logged."""
        self.daemon_phase = "starting"
        """The daemon's present activity, for a person."""
        self.status = ""
        """The daemon's status: `finished` once all rounds were played."""
        self.peers = 0
        """Other peers that the daemon is in contact with."""
        self._lines_before_question: list[str] = []
        self._step_began = time.perf_counter_ns()
        self.steps_alone = 0
        """Steps made without a daemon."""
        self._evaluated = math.nan
        """Result of the last `evaluate`, for the other ranks."""
        self._commands: dict[str, Command] = {
            "start": self._start,
            "evaluate": self._judging.evaluate,
            "save": self._save,
            "shard": self._judging.receive_shard,
            "probe": self._judging.probe,
            "weigh": self._judging.weigh,
            "ask": self._answer_question,
            "say": self._log_line,
            "status": self._note_status,
            "failed": self._note_refusal,
            "over": self._end_run,
            "ended": self._lose_daemon,
        }

    # -- joining -----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Start the daemon, and wait until it gives the first order to train.

        Raises the PeerError that ended the daemon, and RankLost."""
        try:
            self._ranks.accept_all()
            self._link.start(-1)
            while not (self.attached and (self._running or self.finished)):
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
        self._phase = Phase.TRAINING
        self._ranks.release(self._state())
        self._step_began = time.perf_counter_ns()

    def _wait_for_daemon(self) -> None:
        """Wait up to `POLL_S` for one order of the daemon and execute it, whether it has started this loop or not."""
        link = self._link
        assert link.child is not None
        if link.attached and self.boundary is not None:
            self.boundary.wait(POLL_S)
            self.boundary.cross()
        else:
            with contextlib.suppress(queue.Empty):
                self._dispatch(link.child.pipe.inbox.get(timeout=POLL_S))
        link.end_if_silent()
        self._ranks.heartbeat()

    def _dispatch(self, message: Message) -> None:
        """Handle a message of a daemon that has not started this loop yet."""
        self._link.note_message()
        if "config" in message:
            self._open(message)
            return
        if message["op"] not in self._commands:
            return  # an order about rounds, such as `hold`: no round is under way yet
        reply = self._commands[message["op"]](message)
        if reply is not None:
            self._link.send({"id": message["id"], **reply})

    def _open(self, opening: Message) -> None:
        """Bind the model to the run, or check that another daemon is of the same run.

        A PeerError is sent to the daemon as a refusal, and raised."""
        try:
            if self._run is None:
                self._run = BoundRun(opening, self._model, self._optimizers, self._ranks)
            else:
                self._run.rebind(opening)
            self._judging.choose_judge(self._run)
        except PeerError as error:
            refusal = as_message(error)
            self._link.send({"refused": refusal.pop("error"), **refusal})
            raise

    @property
    def _bound(self) -> BoundRun:
        assert self._run is not None, "no daemon has sent the run's config yet"
        return self._run

    # -- orders of the daemon ----------------------------------------------------------------------------------------

    def _start(self, message: Message) -> Message:
        """Set the params to the state in the arena or to a checkpoint, or continue with the live params (`covered`)."""
        run, child = self._bound, self._link.child
        assert child is not None
        if self.boundary is not None and message["covered"] is not None:
            self.boundary.attach(child.pipe, message["covered"])
            self._link.attach(live=True)
            log.info("attached to another daemon, with the live params")
        else:
            run.params.load(run.arena.inn)
            run.params.move_to(message["round"], 0)
            if self.boundary is None:
                shared = run.folder, run.layout, run.arena, run.counters
                self.boundary = Boundary(child.pipe, *shared, run.params, OwnData(), self._commands)
            else:
                self.boundary.attach(child.pipe, ())
                self.boundary.restart()
            self._resume(message["resume"])
            self._link.attach(live=False)
        info = {"device": str(run.params.device), "device_reason": "the user's own training loop"}
        return {"ok": info | {"tokens_per_step": run.nominal_tokens, "data": self._judging.data}}

    def _resume(self, checkpoint: str | None) -> None:
        """Restore a checkpoint on all ranks, if there is one. Work that the checkpoint does not contain is dropped."""
        run = self._bound
        assert self.boundary is not None
        if checkpoint is None:
            self.boundary.drop_open_work()
            return
        self._ranks.order("restore", folder=checkpoint, tokens=run.tokens)
        named, shard = run.params.named(), (0, self._shards)
        found, optimizers = load(Path(checkpoint), named, self._optimizers, run.tokens, shard)
        log.info(optimizers)
        everywhere = all(answer["restored"] for answer in self._ranks.wait_answers())
        if found is None or not everywhere:
            if found is not None or self._shards > 1:
                run.params.load(run.arena.inn)  # some ranks may have restored their rows
            self.boundary.drop_open_work()
            return
        run.params.move_to(found.round, found.step_in_round)
        self.boundary.resume(found.since_snapshot, found.tallies)

    @property
    def _shards(self) -> int:
        """Number of ranks that each write a part of a checkpoint."""
        return self._ranks.world if self._bound.params.sharded else 1

    def _save(self, message: Message) -> Message:
        """Write this loop's part of a checkpoint. A failure, such as a full disk, is only reported to the daemon."""
        run = self._bound
        assert self.boundary is not None
        account, tokens = self.boundary.account, run.tokens
        place = tokens, run.params.round, run.params.step_in_round, account.since_snapshot
        self._ranks.order("save", folder=message["folder"], tokens=tokens)
        failed = list[str]()
        try:
            named, shard = run.params.named(), (0, self._shards)
            save(Path(message["folder"]), named, self._optimizers, place, account.tallies, shard)
        except (OSError, SafetensorError) as error:
            failed.append(str(error))
        failed += [answer["failed"] for answer in self._ranks.wait_answers() if "failed" in answer]
        return {"failed": failed[0]} if failed else {"ok": {"tokens": tokens}}

    # -- reports of the daemon ---------------------------------------------------------------------------------------

    def _answer_question(self, message: Message) -> Message:
        """Ask the person. The time until the answer does not count as silence of the daemon."""
        lines, self._lines_before_question = self._lines_before_question, []
        self._ranks.heartbeat(CONFIRM_S)
        answer = self._confirm_terms(message["question"], lines)
        self._link.note_message()
        return {"ok": {"answer": answer}}

    def _log_line(self, message: Message) -> None:
        """Log a line, and show it again before the next question."""
        self._lines_before_question.append(message["line"])
        log.info(message["line"])

    def _note_status(self, message: Message) -> None:
        self._link.note_message()
        if self._phase is Phase.JOINING and message["phase"] != self.daemon_phase:
            self._on_phase(message["phase"])
        self.daemon_phase, self.peers, self.status = message["phase"], message["peers"], message["status"]

    def _note_refusal(self, message: Message) -> None:
        self._link.note_refusal(error_in(message))

    def _end_run(self, message: Message) -> None:
        self._phase = Phase.OVER

    def _lose_daemon(self, message: Message) -> None:
        """Reap the daemon's process, which has ended, and plan to start another one unless this loop is leaving."""
        child = self._link.child
        if child is None:
            return
        self._judging.forget_daemon()
        code = self._link.reap()
        if self.boundary is not None:
            self.boundary.detach()
            self.boundary.cross()
        if self._phase in (Phase.LEAVING, Phase.OVER):
            self._phase = Phase.OVER
            return
        self._link.plan_restart(child, code, joined=self.boundary is not None)

    # -- called by the user's loop -----------------------------------------------------------------------------------

    def stepped(self, tokens: int, loss: float = math.nan) -> None:
        """Count an optimizer step, execute the daemon's orders, and wait while the run holds this loop.

        `tokens`: of the step; 0: the batch of the manifest counts, unless other ranks report tokens. `loss`: in nats
        per token; NaN: not known.

        Never raises because of the network. Raises UsageError on another thread and in a forked child, ModelError or
        UsageError when tensors of the model were replaced, and RankLost."""
        self.check_thread()
        boundary = self.boundary
        if boundary is None or self.over:
            return
        run = self._bound
        with self._meeting("step") as others:
            took = time.perf_counter_ns() - self._step_began
            run.check_tensors()
            run.params.count_step()
            parts = [(tokens, loss)]
            parts += [(one["tokens"], math.nan if one["loss"] is None else one["loss"]) for one in others]
            boundary.stepped(sum(count for count, _ in parts) or run.nominal_tokens, took, _mean(parts), took / 1e9)
            if not self.attached or boundary.has_work:
                with self._interrupts:
                    self.attend()
            else:
                boundary.show_progress(boundary.pace.step_s)
        self._step_began = time.perf_counter_ns()

    @contextlib.contextmanager
    def _meeting(self, what: str) -> Iterator[list[Message]]:
        """Gather the other ranks, which then execute orders, and release them in the end.

        `what`: the method that all ranks have to call. Yields the ranks' messages. A PeerError is raised on all
        ranks."""
        try:
            yield self._ranks.gather(what)
        except PeerError as error:
            self._ranks.fail(error)
            raise
        self._ranks.release(self._state())

    def _state(self) -> Message:
        """Return the state of the run that the other ranks show."""
        run = self._bound
        return {
            "round": run.params.round,
            "step_in_round": run.params.step_in_round,
            "over": self.over,
            "finished": self.finished,
            "attached": self.attached,
            "phase": self.daemon_phase,
            "peers": self.peers,
            "tokens": run.tokens,
            "total_rounds": run.total_rounds,
            "lr_factor": run.lr_factor,
            "error": None if self.error is None else as_message(self.error),
            "value": None if math.isnan(self._evaluated) else self._evaluated,
        }

    def end_interrupted_wait(self) -> None:
        """Continue to wait if the run still holds this loop, because an interrupt has ended the wait in `stepped`.

        A step that was made now would be lost at the merge."""
        if self.boundary is not None and self._ranks.world == 1 and self._held:
            with self._interrupts:
                self.attend()
            self._step_began = time.perf_counter_ns()

    def attend(self) -> None:
        """Execute the orders that have arrived, and further ones while the run holds this loop."""
        boundary = self.boundary
        assert boundary is not None
        if self.attached:
            boundary.drain()
            self._cross()
            while self._held:
                self._interrupts.deliver()
                boundary.wait(POLL_S)
                self._cross()
                self._link.end_if_silent()
                self._ranks.heartbeat()
        else:
            self.steps_alone += 1
            self._seek_daemon()
        if self.attached and boundary.show_progress(boundary.pace.step_s) and self._logged:
            self._link.send({"logged": self._logged})
            self._logged = {}

    def log(self, numbers: Mapping[str, float]) -> None:
        """Send numbers to the daemon with the next progress. Raises UsageError for more than `MOST_LOGGED` names."""
        self._names.update(numbers)
        if len(self._names) > MOST_LOGGED:
            found = f"{len(self._names)} names were logged, and {MOST_LOGGED} are kept"
            raise UsageError(found, "Log fewer names: each is one curve.")
        self._logged.update(numbers)

    def _cross(self) -> None:
        assert self.boundary is not None
        if self.attached:
            self.boundary.cross()
        if self.boundary.ordered:
            self._link.note_order()

    def _seek_daemon(self) -> None:
        """Start another daemon if one is due, and handle the messages of a daemon that is still starting. Never
        waits."""
        link = self._link
        if link.child is None and not self.over:
            link.restart(self._bound.params.round)
        if (child := link.child) is None:
            return
        try:
            while link.child is child and not link.attached and not child.pipe.inbox.empty():
                self._dispatch(child.pipe.inbox.get())
        except PeerError as error:  # an error of the first daemon is raised by `join`
            link.abandon(child, error)
        link.end_if_silent()

    @property
    def _running(self) -> bool:
        return self.boundary is not None and self.boundary.running

    @property
    def _held(self) -> bool:
        """Whether the next step has to wait: for a result, for the round to begin, or for the end of a pause."""
        assert self.boundary is not None
        if not self.attached or self.finished:
            return False
        if self._link.state is LinkState.REATTACHED and not self.boundary.ordered:
            return False
        return not self.boundary.may_step()

    # -- state, for `Swarm` ------------------------------------------------------------------------------------------

    @property
    def params(self) -> LeadTensors:
        """The live params. Only valid once a daemon has sent the run's config."""
        return self._bound.params

    @property
    def upcoming(self) -> UpcomingBatches:
        """The loop's next batches, which are drawn ahead to judge params."""
        return self._judging.upcoming

    @property
    def error(self) -> PeerError | None:
        """The error that ended the daemon for good. None: there is a daemon, or another one will be started."""
        return self._link.error

    @property
    def over(self) -> bool:
        """Whether the run is over, or was left."""
        return self._phase is Phase.OVER

    @property
    def finished(self) -> bool:
        """Whether all rounds of the run were played, or this loop is leaving or has left."""
        return self._phase in (Phase.LEAVING, Phase.OVER) or self.status == "finished"

    @property
    def attached(self) -> bool:
        """Whether a daemon has started this loop, and has not ended since."""
        return self._link.attached

    @property
    def judges_by_loss(self) -> bool:
        """Whether params are judged by the user's own loss, on the batches of `upcoming`."""
        return self._judging.by_own_loss

    @property
    def pid(self) -> int | None:
        """Process id of the daemon. None: there is none now."""
        return self._link.pid

    @property
    def total_rounds(self) -> int:
        """Number of rounds of the run."""
        return self._bound.total_rounds

    @property
    def tokens(self) -> int:
        """Tokens that this home has processed in the run, in all processes."""
        return self._bound.tokens

    @property
    def lr_factor(self) -> float:
        """Factor on the peak learning rate for the next step: see `BoundRun.lr_factor`."""
        return self._bound.lr_factor

    # -- the run's data ----------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs and targets of the run's own data: see `Swarm.batches`."""
        self.check_thread()
        if self._ranks.world > 1:
            raise UsageError(NO_BATCHES, "Give the loop batches of your own.")
        judging = self._judging
        if not isinstance(judging.judge, RunJudge):
            raise UsageError(judging.unjudged_reason, "Give the loop batches of your own.")
        cursor = Cursor(epoch=self.tokens)  # a resumed loop draws in another order than before
        while not self.over:
            judge = judging.judge
            assert isinstance(judge, RunJudge), "the run's data stay those of the run"
            stream = judge.stream()
            stream.move_to(cursor)
            while judging.judge is judge and not self.over:
                if not stream.ready():
                    self._wait_for_data()
                    continue
                windows = torch.from_numpy(stream.next().windows.astype(np.int64))
                cursor = stream.cursor
                yield windows[:, :-1], windows[:, 1:]

    def _wait_for_data(self) -> None:
        """Execute the next order, which may be a shard of the run's data.

        Raises the error that ended the daemon for good, because without a daemon the data cannot arrive."""
        if self.error is not None:
            raise self.error
        if self.attached:
            self._wait_for_daemon()
        else:
            self._seek_daemon()
            time.sleep(POLL_S)  # `_seek_daemon` never waits, and the next daemon may be due only later

    def evaluate(self) -> float:
        """Return the loss of the live params on the hold-out, in nats per token.

        NaN: there is no hold-out here, or the other ranks were left."""
        self.check_thread()
        if self._ranks.closed:
            return math.nan
        with self._meeting("evaluate"):
            self._evaluated = math.nan
            self._evaluated = self._judging.own_loss()
        return self._evaluated

    def check_thread(self) -> None:
        """Raise UsageError in a forked child, and on another thread than that of `join`."""
        child = self._link.child
        if child is not None and child.forked:
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
        """Leave the run: the daemon finishes the exchange under way, saves and ends. Takes at most `within_s`."""
        until = time.monotonic() + within_s
        link = self._link
        if link.child is None or not self._ranks.gather_to_leave(within_s / 2):
            self.close()
            return
        if self._phase is not Phase.OVER:
            self._phase = Phase.LEAVING
        link.child.drain()
        try:
            while link.child is not None and time.monotonic() < until:
                self._wait_for_daemon()
            self._phase = Phase.OVER
            self._ranks.release(self._state())
        except RankLost as error:
            log.warning("left without the last save: %s", error.found)
        finally:
            self.close()

    def close(self) -> None:
        """End the daemon by closing its socket (`DaemonLink.close`), and leave the ranks. May be called again."""
        self._phase = Phase.OVER
        self._ranks.close()
        self._link.close()


def _mean(parts: Sequence[tuple[int, float]]) -> float:
    """Return the mean of the losses that are not NaN, weighted by their tokens. `parts`: (tokens, loss) of each rank.

    NaN: there is no loss. A part with 0 tokens has the weight of one token."""
    known = [(max(1, tokens), loss) for tokens, loss in parts if not math.isnan(loss)]
    if not known:
        return math.nan
    return math.fsum(tokens * loss for tokens, loss in known) / sum(tokens for tokens, _ in known)
