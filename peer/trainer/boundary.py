"""What happens between two inner steps: the daemon's orders are taken, work is counted, snapshots are given and results
merged. A boundary holds no model, no data and no optimizer. Whoever makes the steps owns those, and calls it:

while True:
    boundary.drain()                 # orders that have come
    boundary.cross()                 # merges and the snapshot that are due here
    if not boundary.may_step():
        boundary.wait(None)          # for an order
        continue
    boundary.stepped(...)            # after each inner step"""

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

Command = Callable[[Message], Message | None]
"""Carries out one order of the daemon. Returns the answer; None: there is none, or it is sent later."""


class TrainedModel(Protocol):
    """The live params, a fragment at a time, and their place in the run. The boundary calls it between two steps only.

    A fragment is a span of the flat fp32 vector in the order of the run's layout."""

    @property
    def round(self) -> int: ...

    @property
    def step_in_round(self) -> int: ...

    def move_to(self, round_: int, step: int) -> None:
        """Begin this step of this round with the next inner step."""

    def scale_learning_rate(self, scale: float) -> None:
        """Multiply the learning rate of all later steps with `scale`."""

    def read(self, fragment: int, into: Tensor) -> None:
        """Copy a fragment's live params to `into`."""

    def merge(self, fragment: int, outer_params: Tensor, alpha: float) -> None:
        """Set a fragment's live params to `alpha * params + (1 - alpha) * outer_params`."""

    def shift(self, fragment: int, difference: Tensor) -> None:
        """Add `difference` to a fragment's live params."""


class DrawnData(Protocol):
    """The account of the data that the steps were made with."""

    def snapshot(self, fragment: int, tokens: int) -> Mapping[str, str]:
        """Take a snapshot at this token count; return the span of its data, as fields of `WorkDetails`."""

    def rebase(self, fragment: int, tokens: int) -> None:
        """Make this snapshot the fragment's base."""


@dataclass(frozen=True, slots=True)
class WorkOrder:
    """Work request under way."""

    id: int
    round: int
    fragment: int
    steps: int | None
    until: float | None
    hold: bool
    pause_after: int | None = None
    round_s: float | None = None


@dataclass(slots=True)
class PendingMerge:
    """Result that waits for its step boundary."""

    id: int
    """Of the call; 0: nobody waits for its answer."""
    fragment: int
    base: int
    """Token count of the snapshot it came from."""
    next_round: int
    merge: Merge
    outer_params: Tensor
    """The fragment's slot of the arena, or a copy of it."""

    def copy_from_slot(self) -> None:
        """Copy the values, so that the daemon may use their slot again."""
        self.outer_params = self.outer_params.clone()

    def detach(self) -> None:
        """Nobody waits for the answer any more, and the next daemon writes into the arena."""
        self.copy_from_slot()
        self.id = 0


class Boundary:
    """The boundary of one process. `commands`: the orders that its loop carries out itself, by name."""

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
        """Whether the daemon wants work."""
        self.ordered = False
        """Whether this daemon has ordered work before."""
        self._order: WorkOrder | None = None
        self._held_at: float | None = None
        self._pending_merges: list[PendingMerge] = []
        self._awaited: dict[int, tuple[int, int]] = {}
        """Per fragment, the base of a snapshot whose result is waited for, and the steps to make meanwhile."""
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

    # -- what its loop calls -----------------------------------------------------------------------------------------

    def resume(self, since_snapshot: int, tallies: Sequence[WorkTally]) -> None:
        """Go on from a checkpoint after which no work was done. `since_snapshot`: steps since the last snapshot of any
        fragment; `tallies`: work since the base, per fragment."""
        self.account.resume(since_snapshot, tallies)

    def drop_open_work(self) -> None:
        """Make the present count every fragment's base. The work since the former ones was lost with its params."""
        for fragment in range(len(self._layout.fragments)):
            self._counters.rebase(fragment, self._counters.tokens)

    def restart(self) -> None:
        """Begin anew with other params: forget all orders and results, and drop the open work."""
        self._order, self.running = None, False
        for pending in self._pending_merges:
            self._pipe.send({"id": pending.id, "ok": {}})  # the daemon holds its slot until then
        self._pending_merges.clear()
        self._awaited.clear()
        self._end_waiting()
        self.account = WorkAccount(len(self._layout.fragments))
        self.drop_open_work()

    def drain(self) -> None:
        """Carry out all orders that have come."""
        while not self._pipe.inbox.empty():
            self.handle(self._pipe.inbox.get())

    def handle(self, message: Message) -> None:
        reply = self._commands[message["op"]](message)
        if reply is not None:
            self._pipe.send({"id": message["id"], **reply})

    def wait(self, at_most_s: float | None) -> None:
        """Carry out the next order. Returns without one after so many seconds, or when a snapshot or a merge is due;
        None: waits for one as long as it takes, which the end of the daemon ends."""
        if at_most_s is None:
            self.handle(self._pipe.inbox.get())
            return
        with contextlib.suppress(queue.Empty):
            self.handle(self._pipe.inbox.get(timeout=max(0.0, min(at_most_s, self._until_due()))))

    def cross(self) -> None:
        """Merge the results that are due between two steps, then take the snapshot, which may end the work."""
        self._merge_due()
        if self.running and self._order is not None and self._reached(self._order):
            self._snapshot(self._order)
            self._merge_due()

    @property
    def has_work(self) -> bool:
        """Whether an order has come, a snapshot or a merge may be due, or the next step has to wait."""
        due = self._order is not None and self._reached(self._order)
        return due or bool(self._pending_merges) or not self._pipe.inbox.empty() or not self.may_step()

    def may_step(self) -> bool:
        """Return whether another step is wanted, and has to wait for no result."""
        return self.running and not self._must_wait()

    def stepped(self, tokens: int, nanoseconds: int, loss: float | None, period_s: float) -> None:
        """Count an inner step. `loss`: in nats a token; None: its update was left out. `period_s`: seconds of the step
        with the rest that follows it."""
        self._counters.stepped(tokens, nanoseconds)
        self.account.add_work(WorkTally(1, loss is None, loss or 0.0, nanoseconds))
        self.pace.record(nanoseconds / 1e9)
        self.tokens_per_s = smoothed(self.tokens_per_s, tokens / period_s)
        if loss is not None:
            self._last_loss = loss

    def show_progress(self, step_s: float, waiting: str = "") -> bool:
        """Send the progress to the daemon, at most every `PROGRESS_EVERY_S`; return whether it was. `step_s`: of a
        usual step, rests included."""
        now = time.monotonic()
        if now - self._progress_sent_at < PROGRESS_EVERY_S:
            return False
        self._progress_sent_at = now
        place = self._model.round, self._model.step_in_round
        pace = self.tokens_per_s, step_s, self.pace.steps, waiting, self.pace.longest_s
        self._pipe.send({"progress": [*place, self._last_loss, *pace]})
        return True

    # -- another daemon, for a loop that outlives its own --------------------------------------------------------------

    def detach(self) -> None:
        """Take note that the daemon is gone. Results that it gave are merged at the next boundary; nothing is waited
        for."""
        for pending in self._pending_merges:
            pending.detach()
        self._order, self.running, self.ordered = None, False, False
        self._awaited.clear()
        self._end_waiting()

    def attach(self, pipe: DaemonPipe, covered: Sequence[int]) -> None:
        """Go on under another daemon, with the live params and their work.

        `covered`: per fragment, the token count up to which its journal holds what became of the work. A result of that
        which was lost with the former daemon is not merged any more."""
        self._pipe = pipe
        for fragment, tokens in enumerate(covered):
            if tokens > self._counters.base(fragment):
                self.account.cover(fragment, tokens)
                self._counters.rebase(fragment, tokens)

    # -- orders ------------------------------------------------------------------------------------------------------

    def _work(self, message: Message) -> None:
        """Begin a work request. The snapshot is its answer."""
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
        """Take a result. The merge is its answer."""
        merge = Merge(message["alpha"], message["after_steps"], message["after"], message["shift"])
        fragment, base, next_round = message["fragment"], message["base"], message["next_round"]
        if merge.shift:
            slot = torch.from_numpy(np.fromfile(shift_file(self._folder, fragment), np.float32))
        else:
            slot = self._arena.in_slot(fragment)
        self._pending_merges.append(PendingMerge(message["id"], fragment, base, next_round, merge, slot))
        self._merge_due()

    def _clear(self, message: Message) -> Message:
        """Free the slots for the daemon: copy the results that are not merged yet."""
        for pending in self._pending_merges:
            pending.copy_from_slot()
        return {"ok": {}}

    def _hold(self, message: Message) -> None:
        """Stop at this boundary: the daemon cancelled its request, or wants to continue later."""
        self._order, self.running = None, False

    def _release(self, message: Message) -> None:
        self._stop_waiting_for(message["fragment"])

    # -- the end of the work -----------------------------------------------------------------------------------------

    def _reached(self, order: WorkOrder) -> bool:
        """Return whether the request ends at this boundary: by count, or because one more step would end too late."""
        if order.steps is not None:
            return self.account.since_snapshot >= order.steps
        return self._time_left(order) <= 0

    def _time_left(self, order: WorkOrder) -> float:
        """Return the seconds left in which another step may begin."""
        assert order.until is not None
        worked = self.account.tallies[order.fragment].steps > 0
        return order.until - margin(self.pace.step_s, order.round_s, worked) - boottime()

    def _until_due(self) -> float:
        """Return the seconds until a snapshot or merge is due by the clock."""
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
        """Merge the results whose boundary this is. A trainer at rest merges all of them."""
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
        """Return whether the next step has to wait for a result."""
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
