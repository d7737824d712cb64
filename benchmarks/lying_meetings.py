"""Pairs of honest peers that meet liars: how an honest peer accepts the params that it receives, and what liars send.

The clip, the check and the limit on a partner's distance are the product's own code. Liars train nothing. They know the
params of all honest peers, and which of them they meet."""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.large_swarms import MakeSwarm, Record, Swarm
from benchmarks.stacked import StackedLlama
from benchmarks.worth_runs import CONTEXT, WorthRun, rounded
from peer.errors import BadPayload
from peer.exchange.pair.acceptance import CHECK, CLIP, FINITE
from peer.exchange.pair.clipping import distance, shorten
from peer.exchange.validation import FAR, FAR_FROM_ZERO, check_partner, rms
from peer.lab.attack.lies import NEAR_THE_LIMIT
from peer.outer.values import OwnWork, PartnerParams
from peer.protocol.model.layout import Layout
from peer.protocol.pair.clip import REMEMBERED, ClipMemory
from peer.protocol.pair.probe_verdict import LastChoices, ProbeLosses, ProbeVerdict, judge
from peer.run.sections import LlamaSection
from peer.trainer.data import Corpus
from peer.trainer.probing.windows import WindowForm, draw

CS_PLUS = "cs+"
ACCEPTANCES = (FINITE, CLIP, CHECK, CS_PLUS)
"""The product's ways to accept a partner's params, and clipping to the threshold of CS+ (arXiv 2410.10418), computed
from the last distances."""
TOGETHER = 8
"""Number of peers whose checks are computed in one stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiarsRun(WorthRun):
    """A run of pairs with liars. `peers` counts the honest ones only."""

    liars: int = 0
    attack: str = ""
    acceptance: str = FINITE

    @property
    def share(self) -> float:
        """The share of an honest peer's meetings that are with a liar."""
        return self.liars / (self.peers + self.liars - 1)


@dataclass(frozen=True, slots=True)
class Known:
    """The liars' knowledge of the honest peers in a round."""

    params: Tensor
    """[honest, elements]: the params that the honest peers send."""
    outer: Tensor
    """The mean of the honest peers' outer params."""
    mean: Tensor
    deviation: float
    """Number of standard deviations by which the attack "a little is enough" departs from the mean (arXiv 1902.06156,
    section 3.1)."""

    @property
    def work(self) -> Tensor:
        """The mean work of the honest peers in this round."""
        return self.mean - self.outer


def _little(known: Known, victim: int) -> Tensor:
    lie: Tensor = known.mean - known.deviation * known.params.std(0)
    return lie


def _spread(known: Known, victim: int) -> Tensor:
    """Return the victim's own params moved away from the honest mean, nearly to the largest distance that a receiver
    accepts."""
    own = known.params[victim]
    away = own - known.mean
    far = NEAR_THE_LIMIT * (FAR * rms(own) + FAR_FROM_ZERO) * math.sqrt(own.numel())
    return own + away * (far / max(float(away.norm()), 1e-12))


ATTACKS: dict[str, Callable[[Known, int], Tensor]] = {
    "negate": lambda known, victim: -known.mean,
    "x-10": lambda known, victim: known.outer - 10 * known.work,
    "inner product": lambda known, victim: known.outer - known.work,
    "a little": _little,
    "spread": _spread,
}
"""Attack -> the params that a liar sends to a victim. `inner product` is the attack of arXiv 1903.03936 with epsilon 1:
it sends the negated mean work."""


def little_deviation(honest: int, liars: int) -> float:
    """Return z of "a little is enough": beyond z standard deviations there are just enough honest peers to form a
    majority with the liars."""
    needed = (honest + liars) // 2 + 1 - liars
    return statistics.NormalDist().inv_cdf((honest - needed) / honest)


def cs_plus_radius(distances: Sequence[float], share: float) -> float:
    """Return the radius to which CS+ clips: the largest of the distances that remains when the largest 2 * `share` of
    them are left out. 0: none remains."""
    if share == 0:
        return max(distances)
    kept = int(len(distances) * (1 - 2 * share) + 1e-9)
    return sorted(distances)[kept - 1] if kept > 0 else 0.0


@dataclass(slots=True)
class Memory:
    """An honest peer's memory of its partners."""

    clip: ClipMemory = field(default_factory=ClipMemory)
    distances: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    last_choices: LastChoices = field(default_factory=LastChoices)


@dataclass(slots=True)
class Meeting:
    """A meeting of an honest peer, with the params that it received."""

    peer: int
    partner: int
    theirs: Tensor
    taken: float = 1.0


class HonestPairs(Swarm):
    """The honest peers of a run with liars."""

    def __init__(self, run: WorthRun, layout: Layout, params: Tensor, *, model: LlamaSection, corpus: Corpus) -> None:
        super().__init__(run, layout, params)
        assert isinstance(run, LiarsRun), run
        self._liars_run, self._model, self._corpus = run, model, corpus
        self._memories = [Memory() for _ in params]
        self._form = WindowForm.affordable(run.batch * CONTEXT, CONTEXT)
        self._taken: dict[bool, list[float]] = {True: [], False: []}
        """Whether the partner was honest -> for each meeting, the fraction of the way to its params that was
        accepted."""
        self._refused: Counter[str] = Counter()

    @property
    def more(self) -> Record:
        """Mean accepted fraction of the params from honest partners and from liars, the number of refusals of each, and
        the number of meetings with liars."""
        taken = {honest: rounded(statistics.fmean(parts)) if parts else None for honest, parts in self._taken.items()}
        return {
            "taken_of_honest": taken[True],
            "taken_of_liars": taken[False],
            "honest_refused": self._refused["honest refused"],
            "liars_refused": self._refused["liar refused"],
            "liars_met": len(self._taken[False]),
        }

    def partners(self) -> list[int]:
        """Draw the pairs; numbers from `peers` on are liars. An honest peer meets one of its last choices only when no
        other partner is left."""
        run = self._liars_run
        free = list(range(run.peers + run.liars))
        random.Random(f"{run.seed}/{self.round}").shuffle(free)
        found = [0] * len(free)
        while free:
            one = free.pop()
            other = next((other for other in reversed(free) if not self._avoid(one, other)), free[-1])
            free.remove(other)
            found[one], found[other] = other, one
        return found

    def _avoid(self, one: int, other: int) -> bool:
        return any(
            mine < len(self._memories) and str(theirs) in self._memories[mine].last_choices.in_round(self.round)
            for mine, theirs in ((one, other), (other, one))
        )

    def _pairs(self) -> None:
        run, partner_of = self._liars_run, self.partners()
        assert (self._method.codec, self._method.sends_outer, self._method.sent_lr) == ("bf16", False, 1.0)
        sent = self.params.clone()
        outer = torch.stack([state.params for state in self.states]).mean(0)
        deviation = little_deviation(run.peers, run.liars) if run.liars else 0.0
        known = Known(sent, outer, sent.mean(0), deviation)
        meetings = list[Meeting]()
        for peer in range(run.peers):
            partner = partner_of[peer]
            theirs = sent[partner] if partner < run.peers else ATTACKS[run.attack](known, peer)
            theirs = theirs.to(torch.bfloat16).to(torch.float32)
            meetings.append(Meeting(peer, partner, theirs, self._part(peer, theirs, sent[peer])))
        verdicts = self._checked(meetings, sent) if run.acceptance == CHECK else {}
        for one in meetings:
            self._step(one, sent[one.peer], verdicts.get(one.peer))

    def _part(self, peer: int, theirs: Tensor, own: Tensor) -> float:
        """Return the fraction of the way to the partner's params that `peer` accepts. 0: it refuses them."""
        run, memory = self._liars_run, self._memories[peer]
        try:
            check_partner(theirs, own)
        except BadPayload:
            return 0.0
        if run.acceptance == FINITE:
            return 1.0
        apart = distance(theirs, own)
        if run.acceptance == CS_PLUS:
            memory.distances.append(apart)
            radius = cs_plus_radius(memory.distances, run.share)
            return 1.0 if apart <= radius else radius / apart
        return memory.clip.of(0).clip(distance(own, self.states[peer].params), apart, memory.clip.ratio.value).taken

    def _checked(self, meetings: Sequence[Meeting], sent: Tensor) -> dict[int, ProbeVerdict]:
        """Judge each partner by the losses of the params averaged with its own, as the product does. Return peer ->
        verdict."""
        found, guess = {}, float(np.log(self._model.vocab_size))
        there = [one for one in meetings if one.taken]
        for at in range(0, len(there), TOGETHER):
            part = there[at : at + TOGETHER]
            rows, windows = list[Tensor](), list[Tensor]()
            for one in part:
                own = sent[one.peer]
                rows += [self.states[one.peer].params, own, own.lerp(one.theirs, one.taken / 2), one.theirs]
                seed = (self.run.seed * 1000 + self.round) * 1000 + one.peer
                drawn = torch.from_numpy(draw(self._corpus.train, seed=seed, form=self._form).astype(np.int64))
                windows += [drawn] * 4
            with torch.no_grad():
                losses = StackedLlama(self._model, torch.stack(rows)).window_losses(torch.stack(windows)).tolist()
            for number, one in enumerate(part):
                base, own_, mixed, theirs = (tuple(losses[4 * number + place]) for place in range(4))
                verdict = judge(ProbeLosses(base, own_, mixed, theirs, guess))
                if verdict is not None:
                    found[one.peer] = verdict
        return found

    def _step(self, one: Meeting, own: Tensor, verdict: ProbeVerdict | None) -> None:
        honest, choices = one.partner < self.run.peers, self._memories[one.peer].last_choices
        refused = one.taken == 0 or (verdict is not None and not verdict.accepted)
        if verdict is not None and refused:
            choices.refused(str(one.partner), self.round)
        elif verdict is not None:
            choices.accepted(str(one.partner))
        self._taken[honest].append(0.0 if refused else one.taken)
        if refused:
            self._refused["honest refused" if honest else "liar refused"] += 1
            self.states[one.peer].step_with(0, OwnWork(own, 1.0), self._method)
            return
        shorten(one.theirs, own, one.taken)
        self.states[one.peer].step_with(0, PartnerParams(OwnWork(own, 1.0), one.theirs), self._method)


def honest_pairs(model: LlamaSection, corpus: Corpus) -> MakeSwarm:
    """Return a factory of the swarm of a run."""
    return partial(HonestPairs, model=model, corpus=corpus)
