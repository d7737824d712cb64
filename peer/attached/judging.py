"""Executes the daemon's orders that need losses: `evaluate`, `probe`, `weigh` and `shard`.

The losses come from the run's own network on the run's data (`RunJudge`), or in a run of a custom model from the user's
loss (`LossJudge`). Where neither is possible, the orders are answered with the reason."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from peer.attached.bound_run import BoundRun
from peer.attached.daemon_link import DaemonLink
from peer.attached.interrupts import Interrupts
from peer.attached.own_loss import Loss, LossJudge, UpcomingBatches
from peer.attached.params import Named
from peer.attached.run_judge import EVALUATION_S, RunJudge
from peer.errors import PeerError, UsageError
from peer.run.sections import CustomSection
from peer.trainer.evaluation import NO_EVALUATION
from peer.trainer.ipc import Message

log = logging.getLogger("peer")

NO_JUDGE = "this loop has none of the run's data"
NO_LOSS = (
    "the run's model is known to this loop alone, and it was joined without a loss. Partners' params are clipped, and "
    "not checked. With peer.join(..., loss=...) they are"
)
NO_MEMORY = "the memory of this device has no room for the run's network beside the loop"
"""Reasons, for a person, why params cannot be evaluated."""


class Judging:
    """Evaluates params for the daemon's orders, with a judge that is chosen again whenever a daemon attaches."""

    def __init__(
        self,
        model: Named,
        loss: Loss | None,
        holdout: Sequence[Any],
        link: DaemonLink,
        interrupts: Interrupts,
        on_fault: Callable[[PeerError], None],
    ) -> None:
        """`loss` and `holdout`: see `peer.join`. `on_fault`: is called once when the user's loss fails."""
        self._model = model
        self._loss = loss
        self._holdout = holdout
        self._link = link
        self._interrupts = interrupts
        self._on_fault = on_fault
        self.upcoming = UpcomingBatches()
        self.judge: RunJudge | LossJudge | None = None
        """Computes the losses. None: this loop cannot compute any, because of `unjudged_reason`."""
        self.unjudged_reason = NO_JUDGE
        self._loss_failed = False
        """Whether a failure of the user's loss was reported."""
        self._postponed: list[Message] = []
        """Orders to evaluate that wait for the hold-out."""

    def choose_judge(self, run: BoundRun) -> None:
        """Choose the judge for a daemon that has just sent its config. Raises DataError, ManifestError, ModelError."""
        config = run.config
        if isinstance(config.model, CustomSection):
            if self._loss is None:
                self.unjudged_reason = NO_LOSS
            elif self.judge is None:
                shared = self._holdout, self.upcoming, run.layout, run.folder, run.arena, run.params
                self.judge = LossJudge(self._loss, self._model, *shared)
            return
        if config.data.kind == "text" and config.data_dir is None:
            return
        if self.judge is None or self.judge.asks_daemon:
            self.judge = RunJudge(config, run.layout, run.folder, run.arena, run.params, self._link.send)

    @property
    def data(self) -> str:
        """Description of the data that params are evaluated on, for a person. Empty: there is none."""
        return self.judge.data if self.judge is not None else ""

    @property
    def by_own_loss(self) -> bool:
        """Whether params are judged by the user's own loss, on the batches of `upcoming`."""
        return isinstance(self.judge, LossJudge)

    def own_loss(self) -> float:
        """Return the loss of the live params in nats per token. NaN: there is no judge or no hold-out yet."""
        if self.judge is None or self.judge.holdout_awaited:
            return math.nan
        return float(self.judge.evaluate(True, lambda: False)["loss"])

    def forget_daemon(self) -> None:
        """Drop the postponed orders of a daemon that has ended."""
        self._postponed.clear()

    # -- orders ------------------------------------------------------------------------------------------------------

    def evaluate(self, message: Message) -> Message | None:
        """Execute the order `evaluate`. None: it is answered later, when the hold-out has arrived."""
        if self.judge is None:
            result = NO_EVALUATION
            return {"ok": {"loss": result.loss, "bits_per_byte": result.bits_per_byte, "tokens": result.tokens}}
        if self.judge.holdout_awaited:
            self._postponed.append(message)
            return None
        child, number = self._link.child, message.get("number", 1)
        until = time.monotonic() + EVALUATION_S

        def given_up() -> bool:
            interrupted = self._interrupts.waiting
            return interrupted or child is None or child.pipe.given_up >= number or time.monotonic() > until

        try:
            return {"ok": self.judge.evaluate(bool(message.get("own")), given_up)}
        except UsageError as error:
            self._report_failed_loss(error)
        except torch.OutOfMemoryError:
            log.warning("not evaluated: %s", NO_MEMORY)
        return {"ok": {"loss": math.nan, "bits_per_byte": math.nan, "tokens": 0}}

    def receive_shard(self, message: Message) -> None:
        """Handle the daemon's answer about a shard, and the evaluations that waited for the hold-out."""
        if self.judge is not None:
            self.judge.take_shard(message)
        while self._postponed and self.judge is not None and not self.judge.holdout_awaited:
            postponed = self._postponed.pop(0)
            reply = self.evaluate(postponed)
            assert reply is not None
            self._link.send({"id": postponed["id"], **reply})

    def probe(self, message: Message) -> Message:
        """Execute the order `probe`: see `peer.trainer.probing.probe.Prober`."""
        return self._judged(None if self.judge is None else self.judge.probe, message)

    def weigh(self, message: Message) -> Message:
        """Execute the order `weigh`: see `peer.trainer.probing.probe.Prober`."""
        return self._judged(None if self.judge is None else self.judge.weigh, message)

    def _judged(self, judge: Callable[[Message], Message] | None, message: Message) -> Message:
        if judge is None:
            return {"ok": {"why": self.unjudged_reason}}
        try:
            return judge(message)
        except UsageError as error:
            self._report_failed_loss(error)
            return {"ok": {"why": error.found}}
        except torch.OutOfMemoryError:
            return {"ok": {"why": NO_MEMORY}}

    def _report_failed_loss(self, error: UsageError) -> None:
        """Report once that the user's loss fails. Training continues, and partners' params are only clipped."""
        if not self._loss_failed:
            self._loss_failed = True
            log.warning("partners' params are not checked: %s", error.found)
            self._on_fault(error)
