"""Swarms of up to a thousand real models in one process, computed in stacks that fit into a core's cache.

The network of all copies is `benchmarks.stacked`, and the rules are those of `benchmarks.worth_runs`. An interrupted
run resumes from its last save."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.stacked import StackedTrainer, losses_of
from benchmarks.worth_runs import CONTEXT, DDP, EVAL_WINDOWS, Batches, Peers, WorthRun, rounded
from peer.outer.robust_mean import weighted_mean
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient
from peer.protocol.learning_rate import schedule
from peer.protocol.model.layout import Layout
from peer.protocol.sampling import Cursor
from peer.run.sections import LlamaSection, OptimizerSection
from peer.trainer.batches import holdout_windows
from peer.trainer.data import Corpus
from peer.trainer.models.llama import first_params, layout_of

MODEL = LlamaSection(num_hidden_layers=2, intermediate_size=172)
"""115,520 parameters."""
ROWS = 32
"""Copies stacked for one step. For `ddp`: windows that pass through its one model at once."""
SAMPLE = 16
"""Peers whose own losses are averaged for the curve."""
POINTS = 20
"""Points of a curve."""
SAVE_S = 600.0
"""Seconds between two saves."""

Record = dict[str, Any]


class Swarm(Peers):
    """The peers of one run. The members of a group share one outer state, so only one is stored."""

    def __init__(self, run: WorthRun, layout: Layout, params: Tensor) -> None:
        super().__init__(run, layout, params, last=0)
        self.curve: list[tuple[int, float | None]] = []
        """(rounds played, mean of the first `SAMPLE` peers' own losses after them)."""
        self._grouped = run.rule.topology == "group"
        if self._grouped:
            del self._states[1:]

    @property
    def more(self) -> Record:
        """Further fields of the run's record."""
        return {}

    @property
    def states(self) -> list[OuterState]:
        """The outer states: one for each peer, or one for the whole group."""
        return self._states

    @property
    def round(self) -> int:
        """Number of rounds played."""
        return self._round

    def restore(self, momenta: Tensor, round_: int, curve: Sequence[tuple[int, float | None]]) -> None:
        """Continue after `round_` rounds. Expects the peers' params in `params`; the outer params equal them at the end
        of a round. `momenta`: [states, elements]; empty if the rule has no momentum."""
        states = self._states
        for number, state in enumerate(states):
            state.params.copy_(self.params[number])
            if momenta.numel():
                state.momentum.copy_(momenta[number])
        self._round, self.curve = round_, [(at, loss) for at, loss in curve]

    def _group(self) -> None:
        (state,), rule = self._states, self._method.outer_rule
        gradients = [state.contribution(0, own.clone(), rule) for own in self.params]
        mean = weighted_mean(gradients, [1] * len(gradients))
        state.step_with(0, MeanGradient(mean, [(0, mean.numel())]), self._method)

    def _take(self) -> None:
        if self._grouped:
            self.params.copy_(self._states[0].params.expand_as(self.params))
        else:
            super()._take()


MakeSwarm = Callable[[WorthRun, Layout, Tensor], Swarm]


@dataclass(slots=True)
class Progress:
    """The state of runs between two rounds, from which they can be resumed."""

    params: Tensor
    moments: list[tuple[Tensor, Tensor, list[int]]]
    """The moments of each stack."""
    cursors: list[list[tuple[int, ...]]]
    momenta: list[Tensor]
    """The outer momenta of each swarm."""
    rounds: int
    curves: list[list[tuple[int, float | None]]]
    seconds: float


class Save:
    """The save file of one batch of runs. `folder` None: nothing is saved."""

    def __init__(self, folder: Path | None, runs: Sequence[WorthRun]) -> None:
        name = hashlib.sha256(json.dumps([run.key for run in runs]).encode()).hexdigest()[:16]
        self._file = folder / f"{name}.pt" if folder else None
        self._due = time.monotonic() + SAVE_S

    def read(self) -> Progress | None:
        if self._file is None or not self._file.exists():
            return None
        found = torch.load(self._file, weights_only=True)
        return Progress(**found)

    def write(self, seconds: float, progress: Callable[[float], Progress], now: bool = False) -> None:
        """Save if `SAVE_S` have passed since the last save, or if `now`. `seconds`: processor seconds spent on these
        runs so far."""
        if self._file is None or (time.monotonic() < self._due and not now):
            return
        self._due = time.monotonic() + SAVE_S
        self._file.parent.mkdir(parents=True, exist_ok=True)
        kept = progress(seconds)
        part = self._file.with_suffix(".part")
        torch.save({name: getattr(kept, name) for name in Progress.__slots__}, part)
        part.replace(self._file)

    def remove(self) -> None:
        """Remove the file, once the records have been written."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)


class Stacks:
    """All peers of the runs that are played together, in stacks of at most `ROWS`. The runs have the same steps, batch
    and rounds."""

    def __init__(self, runs: Sequence[WorthRun], corpus: Corpus, model: LlamaSection, swarm: MakeSwarm) -> None:
        self.model, self.steps, self.every = model, runs[0].steps, runs[0].every
        assert len({(run.steps, run.batch, run.every, run.bend) for run in runs}) == 1, runs
        rows = [(run, peer) for run in runs for peer in range(run.peers)]
        self.params = torch.stack([first_params(model, run.seed) for run in runs for _ in range(run.peers)])
        cuts = [slice(at, min(at + ROWS, len(rows))) for at in range(0, len(rows), ROWS)]
        self._trainers = [
            StackedTrainer(model, self.params[cut], [OptimizerSection(lr=run.lr) for run, _ in rows[cut]])
            for cut in cuts
        ]
        self._batches = [Batches(rows[cut], corpus) for cut in cuts]
        self._rates = [[run.lr for run, _ in rows[cut]] for cut in cuts]
        ends = np.cumsum([run.peers for run in runs]).tolist()
        self.swarms = [
            swarm(run, layout_of(model), self.params[end - run.peers : end])
            for run, end in zip(runs, ends, strict=True)
        ]
        self.rounds = 0

    def play_round(self) -> None:
        """Let all peers train for a round, one stack after another, and exchange."""
        first, shape = self.rounds * self.every, OptimizerSection()
        for trainer, batches, rates in zip(self._trainers, self._batches, self._rates, strict=True):
            for step in range(first, first + self.every):
                factor = schedule(step / self.steps, shape.warmup_fraction, shape.final_fraction)
                trainer.step(batches.next(), [rate * factor for rate in rates])
        for swarm in self.swarms:
            swarm.after(first + self.every)
        self.rounds += 1

    def progress(self, seconds: float) -> Progress:
        return Progress(
            params=self.params,
            moments=[trainer.moments() for trainer in self._trainers],
            cursors=[[astuple(cursor) for cursor in batches.cursors] for batches in self._batches],
            momenta=[
                torch.stack([state.momentum for state in swarm.states])
                if swarm.run.rule.keeps_momentum
                else torch.empty(0)
                for swarm in self.swarms
            ],
            rounds=self.rounds,
            curves=[swarm.curve for swarm in self.swarms],
            seconds=seconds,
        )

    def restore(self, kept: Progress) -> None:
        self.params.copy_(kept.params)
        self.rounds = kept.rounds
        for trainer, batches, moments, cursors in zip(
            self._trainers, self._batches, kept.moments, kept.cursors, strict=True
        ):
            trainer.restore(*moments)
            batches.move_to([Cursor(*cursor) for cursor in cursors])
        for swarm, momenta, curve in zip(self.swarms, kept.momenta, kept.curves, strict=True):
            swarm.restore(momenta, kept.rounds, curve)


class OneModel:
    """The peers of a `ddp` run as one model, whose gradient is the mean over the windows of all peers."""

    def __init__(self, run: WorthRun, corpus: Corpus, model: LlamaSection) -> None:
        self.model, self.run, self.every = model, run, run.every
        self.params = first_params(model, run.seed).unsqueeze(0)
        self._trainer = StackedTrainer(model, self.params, [OptimizerSection(lr=run.lr)])
        self._batches = Batches([(run, peer) for peer in range(run.peers)], corpus)
        self.rounds = 0
        self.curve: list[tuple[int, float | None]] = []

    @property
    def more(self) -> Record:
        """Further fields of the run's record, as for a `Swarm`."""
        return {}

    def play_round(self) -> None:
        """Make the inner steps of a round."""
        first, shape = self.rounds * self.every, OptimizerSection()
        for step in range(first, first + self.every):
            factor = schedule(step / self.run.steps, shape.warmup_fraction, shape.final_fraction)
            self._trainer.update(self._mean(self._batches.next().flatten(0, 1)), [self.run.lr * factor])
        self.rounds += 1

    def _mean(self, windows: Tensor) -> list[Tensor]:
        """Return the gradient of the mean loss over all windows, [windows, context + 1]."""
        total: list[Tensor] = []
        for part in torch.split(windows, ROWS):
            grads = [one.mul_(len(part) / len(windows)) for one in self._trainer.gradients(part.unsqueeze(0))]
            total = [one.add_(other) for one, other in zip(total, grads, strict=True)] if total else grads
        return total

    def progress(self, seconds: float) -> Progress:
        cursors = [[astuple(cursor) for cursor in self._batches.cursors]]
        return Progress(self.params, [self._trainer.moments()], cursors, [], self.rounds, [self.curve], seconds)

    def restore(self, kept: Progress) -> None:
        self.params.copy_(kept.params)
        self._trainer.restore(*kept.moments[0])
        self._batches.move_to([Cursor(*cursor) for cursor in kept.cursors[0]])
        self.rounds, self.curve = kept.rounds, [(at, loss) for at, loss in kept.curves[0]]


def play(
    runs: Sequence[WorthRun],
    corpus: Corpus,
    save: Save,
    model: LlamaSection = MODEL,
    swarm: MakeSwarm = Swarm,
    ends: float = math.inf,
) -> list[Record]:
    """Play the runs, or resume them from `save`, and return the record of each. A `ddp` run is played alone. The caller
    removes the save.

    `ends`: limit in `time.monotonic` seconds. When a round ends after it, the runs are saved and the result is
    empty."""
    ddp = runs[0].method == DDP
    assert not ddp or len(runs) == 1, runs
    began = time.process_time()
    played = OneModel(runs[0], corpus, model) if ddp else Stacks(runs, corpus, model, swarm)
    swarms: Sequence[OneModel | Swarm] = [played] if isinstance(played, OneModel) else played.swarms
    if (kept := save.read()) is not None:
        played.restore(kept)
        began -= kept.seconds
    windows = holdout_windows(corpus.holdout, context=CONTEXT, count=EVAL_WINDOWS)
    holdout = torch.from_numpy(windows.astype(np.int64))
    rounds = runs[0].steps // runs[0].every
    while played.rounds < rounds:
        played.play_round()
        if played.rounds % max(1, rounds // POINTS) == 0:
            for one in swarms:
                sample = losses_of(model, one.params[:SAMPLE], holdout)
                one.curve.append((played.rounds, rounded(sum(sample) / len(sample))))
        over = time.monotonic() > ends
        save.write(time.process_time() - began, played.progress, now=over)
        if over:
            return []
    found = [outcome(one.run, one.params, one.curve, model, holdout) | one.more for one in swarms]
    seconds, peers = time.process_time() - began, sum(run.peers for run in runs)
    return [
        {**run.key, **one, "core_seconds": round(seconds * run.peers / peers, 1)}
        for run, one in zip(runs, found, strict=True)
    ]


def outcome(
    run: WorthRun, params: Tensor, curve: Sequence[tuple[int, float | None]], model: LlamaSection, holdout: Tensor
) -> Record:
    """Return the last losses of a run, in nats per byte (mean over the peers, worst peer, mean of their params), the
    spread of the params, and the curve. A loss is None if it is not finite."""
    mean = params.mean(0, keepdim=True)
    distinct = run.method != DDP and run.rule.topology != "group"
    own = losses_of_all(model, params if distinct else params[:1], holdout)
    return {
        "loss": rounded(sum(own) / len(own)),
        "worst": rounded(max(own)),
        "soup": rounded(losses_of(model, mean, holdout)[0]),
        "spread": rounded(float((params - mean).norm(dim=1).mean() / mean.norm())),
        "curve": [[at, loss] for at, loss in curve],
    }


def losses_of_all(model: LlamaSection, params: Tensor, holdout: Tensor) -> list[float]:
    """Return the loss of each row of `params`, one stack after another."""
    return [loss for part in torch.split(params, ROWS) for loss in losses_of(model, part, holdout)]
