"""The runs of `benchmarks.worth`, played in one process: a row of the stack for each peer of each run.

The network is the product's, stacked (`benchmarks.stacked`). Optimizer, learning-rate schedule, sampling, outer rules
and the group's mean are the product's own code. No peer leaves, joins or misses a round."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.stacked import StackedTrainer, lengths, losses_of
from peer.methods.method import Method
from peer.methods.registry import PRESETS
from peer.outer.arithmetic import step_along_
from peer.outer.robust_mean import weighted_mean
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient, OwnWork, PartnerParams
from peer.protocol.learning_rate import schedule
from peer.protocol.model.layout import Layout
from peer.protocol.sampling import Cursor
from peer.run.sections import LlamaSection, OptimizerSection
from peer.trainer.batches import BatchStream, holdout_windows
from peer.trainer.data import Corpus
from peer.trainer.models.llama import first_params, layout_of

MODEL = LlamaSection()
"""The manifest's default: 217,664 parameters."""
CONTEXT, EVAL_WINDOWS = 64, 256
LAST_ROUNDS = 5
"""Number of last rounds whose mean params are evaluated too (LAWA, arXiv 2209.14981)."""
SINGLE, DDP = "single", "ddp"
"""`single`: one peer that never exchanges. `ddp`: peers that average every gradient, equal to one model with the batch
of all."""


_WARM: dict[tuple[int, int, str], Tensor] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorthRun:
    """One swarm from its first parameters to its last round. Each field but the default ones is in the record."""

    method: str
    """`single`, `ddp` or a preset."""
    peers: int
    steps: int
    """Inner steps of a peer."""
    every: int
    """Inner steps between two exchanges."""
    batch: int
    """Windows of a peer and step."""
    lr: float
    seed: int
    start: int = 0
    """Steps of one peer alone before the run (a warm start). The run begins with fresh optimizers."""
    own: bool = False
    """Whether each peer trains on a part of the text that no other peer has."""
    bend: float = 1.0
    """Exchange i of n is after `steps * (i / n) ** bend` steps. Above 1: short rounds early, long ones late."""
    outer: tuple[float, float] | None = None
    """(outer_lr, outer_momentum) in place of the preset's. For pairs consensus is set to outer_lr."""
    text: str = "stdlib"
    """Name of the text that is trained on."""

    @property
    def key(self) -> dict[str, Any]:
        """The run's key in the file of results: its fields, except optional ones that have their default."""
        plain = {"start": 0, "own": False, "bend": 1.0, "outer": None, "text": "stdlib"}
        return {name: value for name, value in asdict(self).items() if name not in plain or value != plain[name]}

    @property
    def tokens(self) -> int:
        """Tokens that each peer trains on."""
        return self.steps * self.batch * CONTEXT

    @property
    def rule(self) -> Method:
        if self.method in (SINGLE, DDP):
            return PRESETS["none"].method
        preset = PRESETS[self.method].method
        constants: dict[str, float] = {}
        if self.outer:
            lr, momentum = self.outer
            constants = {"outer_lr": lr, "outer_momentum": momentum}
            constants["consensus"] = lr if preset.topology == "pair" else 0.0
        codec = "bf16" if preset.topology == "pair" else "fp32"
        return Method(**(asdict(preset) | {"codec": codec} | constants))

    @property
    def exchanges(self) -> list[int]:
        """The numbers of steps after which the peers exchange."""
        if self.peers == 1 or self.method == DDP:
            return []
        count = self.steps // self.every
        return sorted({round(self.steps * (at / count) ** self.bend) for at in range(1, count + 1)} - {0})


class Peers:
    """The peers of one run with their outer states. They exchange at the end of each round."""

    def __init__(self, run: WorthRun, layout: Layout, params: Tensor, last: int = LAST_ROUNDS) -> None:
        """`params`: [peers, elements], trained in place; an exchange writes its result there. `last`: number of last
        rounds whose params are stored."""
        self.run, self.params = run, params
        self._method = run.rule
        self._states = [OuterState.fresh(layout, row.clone()) for row in params]
        self._ends = set(run.exchanges)
        self._round = 0
        self.last: deque[Tensor] = deque(maxlen=last)
        self.noise: list[tuple[float, float]] = []

    def after(self, step: int) -> None:
        """Exchange if a round ends after inner step `step`. In a run without exchanges, only record the params after
        every `every` steps."""
        if step not in self._ends:
            if not self._ends and step % self.run.every == 0:
                self._keep()
            return
        if self._method.topology == "pair":
            self._pairs()
        elif self._method.topology == "group":
            self._group()
        else:
            for state, own in zip(self._states, self.params, strict=True):
                state.step_with(0, OwnWork(own, 1.0), self._method)
        self._take()
        self._keep()
        self._round += 1

    def _take(self) -> None:
        """Copy each peer's outer params to its params, from which it continues to train."""
        for state, own in zip(self._states, self.params, strict=True):
            own.copy_(state.params)

    def _keep(self) -> None:
        if self.last.maxlen:
            self.last.append(self.params.clone())

    def average(self, grads: Sequence[Tensor]) -> None:
        """Replace each copy's gradient by the mean. Record both terms of the gradient noise scale (arXiv 1812.06162,
        appendix A): estimates of the squared norm of the true gradient and of the variance of one window's gradient."""
        small = float((lengths(grads) ** 2).mean())
        for one in grads:
            one.copy_(one.mean(0, keepdim=True).expand_as(one))
        big, peers, batch = float(lengths([one[:1] for one in grads])[0] ** 2), self.run.peers, self.run.batch
        squared = (peers * big - small) / (peers - 1)
        variance = (small - big) / (1 / batch - 1 / (peers * batch))
        self.noise.append((squared, variance))

    def _pairs(self) -> None:
        partner_of = partners(len(self._states), self.run.seed, self._round)
        assert (self._method.codec, self._method.sends_outer) == ("bf16", False), self._method
        sent = [row.clone() for row in self.params]
        for row, state in zip(sent, self._states, strict=True):
            step_along_(row, state.params, self._method.sent_lr)
        received = [sent[partner].to(torch.bfloat16).to(torch.float32) for partner in partner_of]
        for state, own, theirs in zip(self._states, self.params, received, strict=True):
            state.step_with(0, PartnerParams(OwnWork(own, 1.0), theirs), self._method)

    def _group(self) -> None:
        gradients = [
            state.contribution(0, own.clone(), self._method.outer_rule)
            for state, own in zip(self._states, self.params, strict=True)
        ]
        mean = weighted_mean(gradients, [1] * len(gradients))
        for state in self._states:
            state.step_with(0, MeanGradient(mean.clone(), [(0, mean.numel())]), self._method)


def partners(peers: int, seed: int, round_: int) -> list[int]:
    """Return each peer's partner, drawn at random. Needs an even number of peers."""
    assert peers % 2 == 0, peers
    order = list(range(peers))
    random.Random(f"{seed}/{round_}").shuffle(order)
    found = [0] * peers
    for one, other in zip(order[::2], order[1::2], strict=True):
        found[one], found[other] = other, one
    return found


def play(runs: Sequence[WorthRun], corpus: Corpus) -> list[dict[str, Any]]:
    """Return the record of each run. All have the same number of steps and the same batch."""
    steps, batch = runs[0].steps, runs[0].batch
    assert all((run.steps, run.batch) == (steps, batch) for run in runs)
    began = time.process_time()
    first = torch.stack([_first(run, corpus) for run in runs for _ in range(run.peers)])
    trainer, batches = _stack_of(runs, corpus, first)
    swarms = trainer.swarms

    def together(grads: list[Tensor]) -> None:
        for swarm, part in zip(swarms, trainer.parts, strict=True):
            if swarm.run.method == DDP:
                swarm.average([one[part] for one in grads])

    rates = [run.lr for run in runs for _ in range(run.peers)]
    shape = OptimizerSection()
    for step in range(steps):
        factor = schedule(step / steps, shape.warmup_fraction, shape.final_fraction)
        trainer.stack.step(batches.next(), [rate * factor for rate in rates], together)
        for swarm in swarms:
            swarm.after(step + 1)
    holdout = holdout_windows(corpus.holdout, context=CONTEXT, count=EVAL_WINDOWS)
    windows = torch.from_numpy(holdout.astype(np.int64))
    seconds = time.process_time() - began
    rows = sum(run.peers for run in runs)
    return [
        {**run.key, **_outcome(swarm, windows), "core_seconds": round(seconds * run.peers / rows, 1)}
        for run, swarm in zip(runs, swarms, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Stack:
    stack: StackedTrainer
    swarms: list[Peers]
    parts: list[slice]


def _stack_of(runs: Sequence[WorthRun], corpus: Corpus, first: Tensor) -> tuple[_Stack, Batches]:
    stack = StackedTrainer(
        MODEL, first.clone(), [OptimizerSection(lr=run.lr) for run in runs for _ in range(run.peers)]
    )
    ends = np.cumsum([run.peers for run in runs]).tolist()
    parts = [slice(end - run.peers, end) for run, end in zip(runs, ends, strict=True)]
    layout = layout_of(MODEL)
    swarms = [Peers(run, layout, stack.params[part]) for run, part in zip(runs, parts, strict=True)]
    rows = [(run, peer) for run in runs for peer in range(run.peers)]
    return _Stack(stack, swarms, parts), Batches(rows, corpus)


def _first(run: WorthRun, corpus: Corpus) -> Tensor:
    return _warm(run.start, run.seed, corpus) if run.start else first_params(MODEL, run.seed)


def _warm(steps: int, seed: int, corpus: Corpus) -> Tensor:
    """Return the params after a warm start of one peer: `steps` steps whose learning rate does not decay, as at that
    point of a much longer run."""
    if (found := _WARM.get((steps, seed, corpus.digest))) is not None:
        return found
    run = WorthRun(method=SINGLE, peers=1, steps=steps, every=steps, batch=8, lr=4e-3, seed=seed + 10_000)
    stack, batches = _stack_of([run], corpus, first_params(MODEL, seed).unsqueeze(0))
    for step in range(steps):
        stack.stack.step(batches.next(), [run.lr * min(1.0, step / (0.05 * steps))])
    return _WARM.setdefault((steps, seed, corpus.digest), stack.stack.params[0].clone())


def _outcome(swarm: Peers, holdout: Tensor) -> dict[str, Any]:
    """Return the last losses of a run, in nats per byte: the mean over the peers, the worst peer, that of the mean of
    their params, and both means for the params averaged over the last rounds. A loss is None if it is not finite."""
    mean = swarm.params.mean(0, keepdim=True)
    late = torch.stack(list(swarm.last)).mean(0)
    rows = swarm.params[:1] if swarm.run.method == DDP else swarm.params  # all rows of ddp are alike
    own = losses_of(MODEL, rows, holdout)
    late_own = losses_of(MODEL, late[: len(rows)], holdout)
    found: dict[str, Any] = {
        "loss": rounded(sum(own) / len(own)),
        "worst": rounded(max(own)),
        "soup": rounded(losses_of(MODEL, mean, holdout)[0]),
        "late": rounded(sum(late_own) / len(late_own)),
        "late_soup": rounded(losses_of(MODEL, late.mean(0, keepdim=True), holdout)[0]),
        "spread": rounded(float((swarm.params - mean).norm(dim=1).mean() / mean.norm())),
        "exchanges": len(swarm.run.exchanges),
    }
    if swarm.noise:
        quarters = [swarm.noise[len(swarm.noise) * at // 4 : len(swarm.noise) * (at + 1) // 4] for at in range(4)]
        sums = [np.sum(quarter, axis=0) for quarter in quarters]
        found["noise_scale"] = [rounded(float(variance / squared)) for squared, variance in sums]
    return found


def rounded(value: float) -> float | None:
    """Return the value as it is in a record. None: it is not finite, which JSON cannot hold."""
    return round(value, 6) if math.isfinite(value) else None


class Batches:
    """The windows of all rows. Peers with the same number and seed draw the same windows, whatever their method."""

    def __init__(self, rows: Sequence[tuple[WorthRun, int]], corpus: Corpus) -> None:
        """`rows`: (run, number of a peer in it). All runs have the same batch."""
        self._names = [(run.seed, peer, run.own and run.peers) for run, peer in rows]
        self._streams = {
            (seed, peer, own): BatchStream(
                _part(corpus, peer, own) if own else corpus,
                seed=seed,
                peer_id=f"peer-{peer}",
                context=CONTEXT,
                batch=rows[0][0].batch,
            )
            for seed, peer, own in self._names
        }

    @property
    def cursors(self) -> list[Cursor]:
        """The position of each stream, from which it draws next."""
        return [stream.cursor for stream in self._streams.values()]

    def move_to(self, cursors: Sequence[Cursor]) -> None:
        """Continue from positions that `cursors` returned."""
        for stream, cursor in zip(self._streams.values(), cursors, strict=True):
            stream.move_to(cursor)

    def next(self) -> Tensor:
        """Return the next windows of all rows, [rows, windows, context + 1] int64."""
        drawn = {name: stream.next().windows for name, stream in self._streams.items()}
        return torch.from_numpy(np.stack([drawn[name] for name in self._names]).astype(np.int64))


def _part(corpus: Corpus, peer: int, peers: int) -> Corpus:
    """Return a peer's own part of the text: the `peer`-th of `peers` consecutive pieces."""
    edges = np.linspace(0, len(corpus.train), peers + 1).astype(int)
    return Corpus(corpus.train[edges[peer] : edges[peer + 1]], corpus.holdout, corpus.digest)
