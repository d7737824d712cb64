"""The step boundary: everything that a trainer does for its daemon between two inner steps.

At a boundary the trainer executes the daemon's orders, counts work, takes snapshots and merges results. `Boundary` has
no model, no data and no optimizer. The training loop owns those and drives the boundary:

while True:
    boundary.drain()                 # execute the orders that have arrived
    boundary.cross()                 # due merges, then the due snapshot
    if not boundary.may_step():
        boundary.wait(None)          # until the next order
        continue
    ...                              # one inner step
    boundary.stepped(...)            # count it"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from peer.clock.monotonic import boottime
from peer.ports.trainer import Merge
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import margin
from peer.trainer.accounting import StepPace, WorkAccount, WorkTally, smoothed
from peer.trainer.arena import Arena, CounterFile, shift_file
from peer.trainer.ipc import DaemonPipe, Message

PROGRESS_EVERY_S = 0.25
"""Least seconds between two progress messages."""

Command = Callable[[Message], Message | None]
"""Executes one order of the daemon and returns the reply. None: no reply, or the reply is sent later."""


class TrainedModel(Protocol):
    """Access to the live params, one fragment at a time, and to the model's place in the run.

    The boundary calls it between two steps only. A fragment is a span of the flat fp32 vector in layout order."""

    @property
    def round(self) -> int: ...

    @property
    def step_in_round(self) -> int: ...

    def move_to(self, round_: int, step: int) -> None:
        """Set the round, and the step within it, that the next inner step counts as."""

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the scheduled learning rate of all later steps by `scale`. A second call replaces the factor."""

    def read(self, fragment: int, into: Tensor) -> None:
        """Copy a fragment's live params to `into`."""

    def merge(self, fragment: int, outer_params: Tensor, alpha: float) -> None:
        """Set a fragment's live params to `alpha * params + (1 - alpha) * outer_params`."""

    def shift(self, fragment: int, difference: Tensor) -> None:
        """Add `difference` to a fragment's live params."""


class DrawnData(Protocol):
    """Bookkeeping of the data that the inner steps consumed, per fragment."""

    def snapshot(self, fragment: int, tokens: int) -> Mapping[str, str]:
        """Record the place in the data of a snapshot, which is named by the token counter `tokens`.

        Returns the span of data since the fragment's base, as the `data_*` fields of `WorkDetails`."""

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make the snapshot taken at this token count the fragment's base."""


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """The work request that the trainer executes. Its fields are those of `peer.ports.trainer.WorkRequest`."""

    id: int
    """Id of the daemon's call, which the snapshot answers."""
    round: int
    fragment: int
    steps: int | None
    until: float | None
    hold: bool
    pause_after: int | None = None
    round_s: float | None = None


@dataclass(slots=True)
class PendingMerge:
    """A round's result that waits for the step boundary at which it is due."""

    id: int
    """Id of the daemon's call, which the merge answers. 0: the calling daemon is gone, so the answer is ignored."""
    fragment: int
    base: int
    """Token counter at the snapshot that the result was computed from."""
    next_round: int
    merge: Merge
    outer_params: Tensor
    """The fragment's slot of the arena, or a copy of it."""

    def copy_from_slot(self) -> None:
        """Copy the values out of the arena, so that the daemon may write to their slot."""
        self.outer_params = self.outer_params.clone()

    def detach(self) -> None:
        """Make the merge independent of the daemon that ordered it: the next daemon will overwrite the arena."""
        self.copy_from_slot()
        self.id = 0


class Boundary:
    """Executes the daemon's orders at the step boundaries of one training loop.

    `commands`: the handlers of the orders that need the loop's model or data, by the name of the order (`op`)."""

    def __init__(
        self,
        pipe: DaemonPipe,
        folder: Path,
        layout: Layout,
        arena: Arena,
        counters: CounterFile,
        model: TrainedModel,
        data: DrawnData,
        commands: Mapping[str, Command],
    ) -> None:
        self._pipe = pipe
        self._folder = folder
        self._layout = layout
        self._arena = arena
        self._counters = counters
        self._model = model
        self._data = data
        self.account = WorkAccount(len(layout.fragments))
        self.pace = StepPace()
        self.tokens_per_s = 0.0
        self.running = False
        """Whether training is wanted: a work request is active, or training continues after the last request's
        snapshot."""
        self.ordered = False
        """Whether the present daemon has sent a work request yet."""
        self._order: WorkOrder | None = None
        self._held_at: float | None = None
        self._pending_merges: list[PendingMerge] = []
        self._awaited: dict[int, tuple[int, int]] = {}
        """Fragment -> (token counter of its snapshot, inner steps allowed before training waits for the result)."""
        self._progress_sent_at = 0.0
        self._last_loss = math.nan
        self._commands: dict[str, Command] = {
            "work": self._work,
            "apply": self._apply,
            "clear": self._clear,
            "hold": self._hold,
            "release": self._release,
            **commands,
        }

    # -- called by the training loop ---------------------------------------------------------------------------------

    def resume(self, since_snapshot: int, tallies: Sequence[WorkTally]) -> None:
        """Restore the account of a checkpoint whose token count equals the counter, so that no work was lost.

        `since_snapshot`: steps since the last snapshot of any fragment. `tallies`: per fragment, work since its
        base."""
        self.account.resume(since_snapshot, tallies)

    def drop_open_work(self) -> None:
        """Move every fragment's base to the present token count: the params that held the work since then are lost."""
        for fragment in range(len(self._layout.fragments)):
            self._counters.rebase(fragment, self._counters.tokens)

    def restart(self) -> None:
        """Discard all orders, pending merges and open work, because the loop continues from other params."""
        self._order, self.running = None, False
        for pending in self._pending_merges:
            self._pipe.send({"id": pending.id, "ok": {}})  # the daemon reserves the slot until the answer
        self._pending_merges.clear()
        self._awaited.clear()
        self._end_waiting()
        self.account = WorkAccount(len(self._layout.fragments))
        self.drop_open_work()

    def drain(self) -> None:
        """Execute all orders that have arrived, without waiting."""
        while not self._pipe.inbox.empty():
            self.handle(self._pipe.inbox.get())

    def handle(self, message: Message) -> None:
        reply = self._commands[message["op"]](message)
        if reply is not None:
            self._pipe.send({"id": message["id"], **reply})

    def wait(self, at_most_s: float | None) -> None:
        """Wait for one order and execute it.

        Returns without one after `at_most_s` seconds, or earlier when a snapshot or a merge is due by the clock. None:
        no limit. The end of the daemon arrives as an order, or ends the process."""
        if at_most_s is None:
            self.handle(self._pipe.inbox.get())
            return
        with contextlib.suppress(queue.Empty):
            self.handle(self._pipe.inbox.get(timeout=max(0.0, min(at_most_s, self._until_due()))))

    def cross(self) -> None:
        """Merge the results that are due, then take the snapshot if the work request is fulfilled.

        Merges due at the same boundary are applied first, so that the snapshot contains them. A snapshot with `hold`
        stops training, and a held trainer merges everything that is pending."""
        self._merge_due()
        if self.running and self._order is not None and self._reached(self._order):
            self._snapshot(self._order)
            self._merge_due()

    @property
    def has_work(self) -> bool:
        """Whether this boundary may have to do anything: an order, a snapshot, a merge, or waiting."""
        due = self._order is not None and self._reached(self._order)
        return due or bool(self._pending_merges) or not self._pipe.inbox.empty() or not self.may_step()

    def may_step(self) -> bool:
        """Return whether the loop may make another inner step now: work is ordered, and no result is waited for."""
        return self.running and not self._must_wait()

    def stepped(self, tokens: int, nanoseconds: int, loss: float | None, period_s: float) -> None:
        """Count one inner step of `tokens` tokens, which took `nanoseconds`.

        `loss`: in nats per token; None: the step's update was skipped. `period_s`: seconds of the step and of the rest
        that follows it, from which the rate in tokens per second is computed."""
        self._counters.stepped(tokens, nanoseconds)
        self.account.add_work(WorkTally(1, loss is None, loss or 0.0, nanoseconds))
        self.pace.record(nanoseconds / 1e9)
        self.tokens_per_s = smoothed(self.tokens_per_s, tokens / period_s)
        if loss is not None:
            self._last_loss = loss

    def show_progress(self, step_s: float, waiting: str = "") -> bool:
        """Send the progress to the daemon, at most every `PROGRESS_EVERY_S`. Return whether it was sent.

        `step_s`: seconds of a usual step, rests included. `waiting`: what training waits for, for a person."""
        now = time.monotonic()
        if now - self._progress_sent_at < PROGRESS_EVERY_S:
            return False
        self._progress_sent_at = now
        place = self._model.round, self._model.step_in_round
        pace = self.tokens_per_s, step_s, self.pace.steps, waiting, self.pace.longest_s
        self._pipe.send({"progress": [*place, self._last_loss, *pace]})
        return True

    # -- change of the daemon, for a user's loop, which outlives its daemon --------------------------------------------

    def detach(self) -> None:
        """Discard the orders of a daemon that is gone. Its results are still merged, at the next boundary."""
        for pending in self._pending_merges:
            pending.detach()
        self._order, self.running, self.ordered = None, False, False
        self._awaited.clear()
        self._end_waiting()

    def attach(self, pipe: DaemonPipe, covered: Sequence[int]) -> None:
        """Continue under another daemon with the live params and their unmerged work.

        `covered`: per fragment, the token count up to which the journal accounts for the work as applied or dropped.
        Bases move up to there, because the results of that work were lost with the former daemon."""
        self._pipe = pipe
        for fragment, tokens in enumerate(covered):
            if tokens > self._counters.base(fragment):
                self.account.cover(fragment, tokens)
                self._counters.rebase(fragment, tokens)

    # -- orders ------------------------------------------------------------------------------------------------------

    def _work(self, message: Message) -> None:
        """Begin a work request. `_snapshot` sends the reply."""
        self._end_waiting()
        self.ordered = True
        where = message["round"], message["fragment"]
        rest = message["steps"], message["until"], message["hold"], message["pause_after"]
        self._order = WorkOrder(message["id"], *where, *rest, message.get("round_s"))
        self.running = True
        self._model.scale_learning_rate(message["lr_scale"])
        if message["round"] > self._model.round:
            self._model.move_to(message["round"], 0)

    def _apply(self, message: Message) -> None:
        """Queue a round's result for its boundary. Its reply is sent by `_merge`."""
        merge = Merge(message["alpha"], message["after_steps"], message["after"], message["shift"])
        fragment, base, next_round = message["fragment"], message["base"], message["next_round"]
        if merge.shift:
            slot = torch.from_numpy(np.fromfile(shift_file(self._folder, fragment), np.float32))
        else:
            slot = self._arena.in_slot(fragment)
        self._pending_merges.append(PendingMerge(message["id"], fragment, base, next_round, merge, slot))
        self._merge_due()

    def _clear(self, message: Message) -> Message:
        """Free the arena's slots for the daemon, by copying the results that are not merged yet."""
        for pending in self._pending_merges:
            pending.copy_from_slot()
        return {"ok": {}}

    def _hold(self, message: Message) -> None:
        """Stop training at this boundary. The request, if there is one, stays unanswered: the daemon cancelled it."""
        self._order, self.running = None, False

    def _release(self, message: Message) -> None:
        self._stop_waiting_for(message["fragment"])

    # -- snapshots ---------------------------------------------------------------------------------------------------

    def _reached(self, order: WorkOrder) -> bool:
        """Return whether the work request ends at this boundary: by count, or because one more step would be late."""
        if order.steps is not None:
            return self.account.since_snapshot >= order.steps
        return self._time_left(order) <= 0

    def _time_left(self, order: WorkOrder) -> float:
        """Return the seconds left in which another step may begin (`peer.protocol.schedule.margin`)."""
        assert order.until is not None
        worked = self.account.tallies[order.fragment].steps > 0
        return order.until - margin(self.pace.step_s, order.round_s, worked) - boottime()

    def _until_due(self) -> float:
        """Return the seconds until a snapshot or merge is due by the clock. Infinity: none is."""
        moments = [
            pending.merge.after - boottime() for pending in self._pending_merges if pending.merge.after is not None
        ]
        if self._order is not None and self._order.until is not None:
            moments.append(self._time_left(self._order))
        return min(moments, default=math.inf)

    def _snapshot(self, order: WorkOrder) -> None:
        fragment, processed = order.fragment, self._counters.tokens
        self._model.read(fragment, self._arena.out_slot(fragment))
        tally = self.account.snapshot(fragment, processed)
        self._order, self.running = None, not order.hold
        if not order.hold:
            self._model.move_to(order.round + 1, 0)
            if order.pause_after is not None:
                self._awaited[fragment] = processed, order.pause_after
        self._held_at = time.monotonic() if order.hold else None
        work: dict[str, Any] = {
            "steps": tally.steps,
            "tokens": processed - self._counters.base(fragment),
            "processed": processed,
            "loss": tally.loss,
            "seconds": tally.nanoseconds / 1e9,
            "skipped": tally.skipped,
        }
        self._pipe.send({"id": order.id, "ok": work | dict(self._data.snapshot(fragment, processed))})

    # -- merging -----------------------------------------------------------------------------------------------------

    def _merge_due(self) -> None:
        """Merge the results that are due at this boundary. A trainer that does not run merges all of them."""
        for pending in list(self._pending_merges):
            if not self.running or self._is_due(pending):
                self._pending_merges.remove(pending)
                self._merge(pending)

    def _is_due(self, pending: PendingMerge) -> bool:
        merge = pending.merge
        if merge.shift:
            return True
        if merge.after is not None and boottime() < merge.after:
            return False
        return self.account.steps_since(pending.fragment, pending.base) >= (merge.after_steps or 0)

    def _merge(self, pending: PendingMerge) -> None:
        fragment, base = pending.fragment, pending.base
        if pending.merge.shift:
            self._model.shift(fragment, pending.outer_params)
            self._pipe.send({"id": pending.id, "ok": {}})
            return
        self._model.merge(fragment, pending.outer_params, pending.merge.alpha)
        self.account.rebase(fragment, base)
        self._data.rebase(fragment, base)
        self._counters.rebase(fragment, base)
        self._stop_waiting_for(fragment)
        if self._model.round < pending.next_round:
            self._end_waiting()
            self._model.move_to(pending.next_round, 0)
        self._pipe.send({"id": pending.id, "ok": {}})

    # -- waiting for a result ----------------------------------------------------------------------------------------

    def _must_wait(self) -> bool:
        """Return whether the next step has to wait for a result. If so, the waiting time is measured from the first
        such call."""
        waits = any(self.account.steps_since(f, base) >= steps for f, (base, steps) in self._awaited.items())
        if waits and self._held_at is None:
            self._held_at = time.monotonic()
        return waits

    def _stop_waiting_for(self, fragment: int) -> None:
        if self._awaited.pop(fragment, None) is not None and not self._must_wait():
            self._end_waiting()

    def _end_waiting(self) -> None:
        if self._held_at is not None:
            self._counters.waited(int((time.monotonic() - self._held_at) * 1e9))
            self._held_at = None
