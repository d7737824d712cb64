"""Evaluates params with the user's own loss, in a run of a custom model, whose code the run does not contain.

Between two steps of the loop, other values replace the live params while the loss is computed. The batches are either
the user's hold-out or those that the loop will train on next, because no params have been fitted to them yet."""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from peer.attached.params import BoundTensors, Named
from peer.attached.untouched import untouched
from peer.clock.monotonic import boottime
from peer.errors import PeerError, UsageError
from peer.protocol.model.layout import Layout
from peer.protocol.pair.probe_verdict import LEAST_WINDOWS
from peer.trainer.arena import Arena
from peer.trainer.ipc import Message
from peer.trainer.probing.probe import CANDIDATES, candidates

Loss = Callable[[Any, Any], "Tensor | float"]
"""loss(model, batch): see `peer.join`."""
Batch = TypeVar("Batch")

MOST_BATCHES = 8
"""Number of batches that are drawn ahead."""
SOURCE = "(batches that this loop trains on next)"
HOLDOUT_SOURCE = "(this loop's own hold-out)"
TOO_FEW = "too few batches were drawn ahead: let the loop take them from swarm.until_end(loader)"
TOO_LATE = "it took too long"
FIX = "Give a function that returns the mean loss a token, as a float or a tensor of one element."


class UpcomingBatches:
    """The next batches of a loop, drawn before the loop needs them."""

    def __init__(self) -> None:
        self._drawn = deque[Any]()

    @property
    def drawn(self) -> list[Any]:
        """The batches, at most `MOST_BATCHES`, that were not yielded to the loop yet. They must not be changed."""
        return list(self._drawn)

    def prefetch(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield all batches in order, each after `MOST_BATCHES` further ones were drawn.

        A PeerError that drawing raises is raised after the batches before it were yielded."""
        self._drawn.clear()
        ended: PeerError | None = None
        while True:
            while ended is None and len(self._drawn) <= MOST_BATCHES:
                try:
                    self._drawn.append(next(batches))
                except PeerError as error:
                    ended = error
            if not self._drawn:
                assert ended is not None, "a loader is started again without end"
                raise ended
            yield self._drawn.popleft()


class LossJudge:
    """Evaluates and probes params with the user's loss. Its methods raise UsageError when the loss fails."""

    holdout_awaited = False
    asks_daemon = False

    def __init__(
        self,
        loss: Loss,
        model: Named,
        holdout: Sequence[Any],
        batches: UpcomingBatches,
        layout: Layout,
        folder: Path,
        arena: Arena,
        params: BoundTensors,
    ) -> None:
        self._loss = loss
        self._model = model
        self._holdout = holdout
        self._batches = batches
        self._layout = layout
        self._folder = folder
        self._arena = arena
        self._tensors = params

    @property
    def data(self) -> str:
        """Description of the data that params are evaluated on, for a person."""
        return (
            f"{len(self._holdout)} batches of the loop's own hold-out" if self._holdout else "batches of the loop's own"
        )

    def probe(self, message: Message) -> Message:
        """Execute the order `probe` like `peer.trainer.probing.probe.Prober.answer`, with batches instead of windows.

        The loss of guessing at random is not known here and is reported as infinite, so that only params without a
        finite loss count as worse than guessing."""
        until = boottime() + message["within_s"]
        batches, fragment = self._batches.drawn, message["fragment"]
        if len(batches) < LEAST_WINDOWS:
            return {"ok": {"why": TOO_FEW}}
        found: dict[str, Any] = {"guess": math.inf, "source": SOURCE}
        with untouched(self._model), self._restored([fragment]):
            for name, values in candidates(self._layout, self._folder, self._arena, message):
                self._set_values(fragment, values)
                began, losses = boottime(), list[float]()
                for number, batch in enumerate(batches):
                    if boottime() > until:
                        return {"ok": {"why": TOO_LATE}}
                    losses.append(self._loss_of(batch, message["seed"] + number))
                    # after the first loss, limit the number of batches to those that fit into the time left
                    if len(found) == 2 and number == 0:
                        affordable = int((until - began) / (CANDIDATES * max(boottime() - began, 1e-6)))
                        batches = batches[: max(LEAST_WINDOWS, affordable)]
                    if number + 1 == len(batches):
                        break
                found[name] = losses
        return {"ok": found}

    def weigh(self, message: Message) -> Message:
        """Execute the order `weigh` like `peer.trainer.probing.probe.Prober.weigh`, with batches instead of windows."""
        until = boottime() + message["within_s"]
        batches, source = self._holdout[:MOST_BATCHES], HOLDOUT_SOURCE
        if len(batches) < LEAST_WINDOWS:
            batches, source = self._batches.drawn, SOURCE
        if len(batches) < LEAST_WINDOWS:
            return {"ok": {"why": TOO_FEW}}
        losses = self._arena_losses(batches, message["seed"], lambda: boottime() > until)
        if losses is None:
            return {"ok": {"why": TOO_LATE}}
        return {"ok": {"windows": losses, "guess": math.inf, "source": source}}

    def evaluate(self, own: bool, given_up: Callable[[], bool]) -> Message:
        """Return the mean loss on the hold-out, or without one on the batches drawn ahead.

        `own`: of the live params; else of the whole model in the arena. The loss is NaN if there are no batches, or
        once `given_up()` returns True."""
        batches = self._holdout or self._batches.drawn
        if not own:
            losses = self._arena_losses(batches, 0, given_up)
        else:
            with untouched(self._model):
                losses = self._losses(batches, 0, given_up)
        mean = math.fsum(losses) / len(losses) if losses else math.nan
        return {"loss": mean, "bits_per_byte": math.nan, "tokens": len(losses or ())}

    def take_shard(self, message: Message) -> None:
        raise AssertionError("data of the loop's own has no shards")

    # -- computing ---------------------------------------------------------------------------------------------------

    def _arena_losses(self, batches: Sequence[Any], seed: int, given_up: Callable[[], bool]) -> list[float] | None:
        """Return the losses of the whole model in the arena. None: `given_up()` returned True."""
        with untouched(self._model), self._restored(range(len(self._layout.fragments))):
            self._tensors.load(self._arena.inn)
            return self._losses(batches, seed, given_up)

    def _losses(self, batches: Sequence[Any], seed: int, given_up: Callable[[], bool]) -> list[float] | None:
        found = list[float]()
        for number, batch in enumerate(batches):
            if given_up():
                return None
            found.append(self._loss_of(batch, seed + number))
        return found

    def _loss_of(self, batch: Any, seed: int) -> float:
        """Compute the loss of the present values of the params, in evaluation mode.

        The seed makes a loss that draws random numbers comparable between candidates. Raises UsageError when the loss
        fails."""
        if isinstance(self._model, nn.Module):
            self._model.eval()
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)
        try:
            loss = self._loss(self._model, batch)
            return float(loss.detach() if isinstance(loss, Tensor) else loss)
        except Exception as error:  # a user's function may raise anything; the loop continues with its step
            found = f"loss(model, batch) raised {type(error).__name__}: {error}"
            raise UsageError(found, FIX) from error

    def _set_values(self, fragment: int, values: Tensor) -> None:
        self._tensors.merge(fragment, values, 0.0)

    @contextlib.contextmanager
    def _restored(self, fragments: range | list[int]) -> Iterator[None]:
        """Restore the live values of these fragments, bit for bit, at the end of the context."""
        kept = list[tuple[int, Tensor]]()
        for fragment in fragments:
            start, end = self._layout.fragment_span(fragment)
            live = torch.empty(end - start, device=self._tensors.device)
            self._tensors.read(fragment, live)
            kept.append((fragment, live))
        try:
            yield
        finally:
            for fragment, live in kept:
                self._set_values(fragment, live)
