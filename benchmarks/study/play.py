"""Plays runs of one cell next to each other in one process: a row of the stack for each peer of each run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.study.methods import METHODS, Accept, StudySwarm, take_all
from benchmarks.study.stacked import StackedTrainer
from peer.protocol.learning_rate import progress_of, schedule
from peer.run.sections import LlamaSection, OptimizerSection, TrainSection
from peer.trainer.batches import BatchStream, holdout_windows
from peer.trainer.data import Corpus
from peer.trainer.models.llama import first_params, layout_of

MODEL = LlamaSection()
TRAIN = TrainSection(context=64, batch=2, total_rounds=20, eval_windows=256)
"""The same in all cells."""


@dataclass(frozen=True, slots=True)
class StudyCell:
    """The setting that all methods of a comparison share. `every`: inner steps of a round."""

    corpus: str
    peers: int
    every: int


@dataclass(frozen=True, slots=True)
class StudyRun:
    """One swarm from the first parameters to its last round."""

    cell: StudyCell
    method: str
    lr: float
    seed: int

    @property
    def key(self) -> dict[str, Any]:
        """The run's name in the file of results."""
        return {**asdict(self.cell), "method": self.method, "lr": self.lr, "seed": self.seed}


def play(
    runs: Sequence[StudyRun],
    corpus: Corpus,
    train: TrainSection = TRAIN,
    accept: Callable[[int], Accept] = lambda run: take_all,
) -> list[dict[str, Any]]:
    """Return the record of each run. All of them are of one cell. `accept`: of the run with this place."""
    began, cell = time.monotonic(), runs[0].cell
    assert all(run.cell == cell for run in runs)
    rates = [OptimizerSection(lr=run.lr) for run in runs for _ in range(cell.peers)]
    first = torch.stack([first_params(MODEL, run.seed) for run in runs for _ in range(cell.peers)])
    trainer, batches = StackedTrainer(MODEL, first, rates), _Batches(runs, corpus, train)
    rows = [slice(at, at + cell.peers) for at in range(0, len(first), cell.peers)]
    layout = layout_of(MODEL)
    swarms = [
        StudySwarm(METHODS[run.method], layout, trainer.params[part], run.seed, accept(place))
        for place, (run, part) in enumerate(zip(runs, rows, strict=True))
    ]
    tokens = cell.every * train.batch * train.context
    for round_ in range(train.total_rounds):
        for step in range(cell.every):
            trainer.step(batches.next(), [one.lr * _factor(one, round_, step, cell, train) for one in rates])
        for swarm in swarms:
            swarm.end_round(round_, tokens)
    holdout = holdout_windows(corpus.holdout, context=train.context, count=train.eval_windows)
    losses = trainer.evaluate(torch.from_numpy(holdout.astype(np.int64)))
    seconds = (time.monotonic() - began) / len(runs)
    return [
        {**run.key, **_outcome(losses[part]), "spread": _rounded(swarm.spread), "seconds": round(seconds, 1)}
        for run, swarm, part in zip(runs, swarms, rows, strict=True)
    ]


def _factor(optimizer: OptimizerSection, round_: int, step: int, cell: StudyCell, train: TrainSection) -> float:
    """Return the schedule's factor of the learning rate, as the product's inner loop has it."""
    progress = progress_of(round_, step, cell.every, train.total_rounds)
    bounds = optimizer.warmup_fraction, optimizer.final_fraction
    return schedule(progress, *bounds, optimizer.schedule, optimizer.decay_fraction)


def _outcome(losses: Sequence[float]) -> dict[str, Any]:
    """Return the mean and the losses of the replicas. None: one of them is not finite."""
    mean = sum(losses) / len(losses)
    return {"loss": _rounded(mean), "losses": [_rounded(one) for one in losses]}


def _rounded(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


class _Batches:
    """The windows of all rows. Peers of the same number and seed draw the same ones, whatever their method."""

    def __init__(self, runs: Sequence[StudyRun], corpus: Corpus, train: TrainSection) -> None:
        self._names = [(run.seed, peer) for run in runs for peer in range(run.cell.peers)]
        self._streams = {
            (seed, peer): BatchStream(
                corpus, seed=seed, peer_id=f"peer-{peer}", context=train.context, batch=train.batch
            )
            for seed, peer in self._names
        }

    def next(self) -> Tensor:
        """Return [rows, windows, context + 1] int64."""
        drawn = {name: stream.next().windows for name, stream in self._streams.items()}
        return torch.from_numpy(np.stack([drawn[name] for name in self._names]).astype(np.int64))
