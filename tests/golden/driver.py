"""Plays a game with the program's outer state and rules, in a minimal loop that decides when each action is due."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.methods.registry import RULES
from peer.methods.rule import OuterRule
from peer.outer import arithmetic, state
from peer.outer.values import MeanGradient, OuterValues, OwnWork, PartnerParams
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.schedule import RoundClock
from tests.golden.reference import Game, Span

Step = Callable[[], None]


def layout_of(fragments: tuple[Span, ...]) -> Layout:
    """Return a layout with one tensor per fragment."""
    tensors = tuple(TensorSpec(f"w{at}", (end - start,)) for at, (start, end) in enumerate(fragments))
    return Layout(tensors, tuple((at, at + 1) for at in range(len(fragments))))


@dataclass(slots=True)
class Replica:
    params: Tensor
    outer: state.OuterState


@dataclass(frozen=True, slots=True)
class GameMethod:
    """The method of a game, as the outer state needs it."""

    game: Game

    @property
    def outer_rule(self) -> OuterRule:
        return RULES[self.game.rule]

    @property
    def outer_lr(self) -> float:
        return self.game.outer_lr

    @property
    def outer_momentum(self) -> float:
        return self.game.outer_momentum

    @property
    def consensus(self) -> float:
        return self.game.consensus


class Driver:
    """Plays a game. `late`: outer steps are computed just before the merge instead of when they are due."""

    def __init__(self, game: Game, late: bool = False) -> None:
        self.game = game
        self._late = late
        growth = tuple(enumerate(game.slots))
        self._clock = RoundClock("steps", game.sync_every, len(game.fragments), growth=growth)
        layout = layout_of(game.fragments)
        starts = [torch.tensor(start, dtype=torch.float32) for start in game.start]
        self.world = [Replica(start.clone(), state.OuterState.fresh(layout, start.clone())) for start in starts]

    def play(self) -> dict[tuple[int, int], tuple[NDArray[np.float32], ...]]:
        moments = {}
        merges: dict[int, list[Step]] = {}
        for step, updates in enumerate(self.game.updates, 1):
            for replica, update in zip(self.world, updates, strict=True):
                replica.params += torch.tensor(update, dtype=torch.float32)
            if (round_ := self._round_due_after(step)) is not None:
                merges.setdefault(step + self.game.delay, []).extend(self._due(round_))
            for merge in merges.pop(step, []):
                merge()
            for who, replica in enumerate(self.world):
                now = (replica.params, replica.outer.params, replica.outer.momentum)
                moments[who, step] = tuple(values.numpy().copy() for values in now)
        return moments

    def _round_due_after(self, step: int) -> int | None:
        """Return the step after which a round is due, as the round clock computes it."""
        ends = accumulate(self._clock.steps_of(round_) for round_ in range(len(self.game.meetings)))
        return next((round_ for round_, end in enumerate(ends) if end == step), None)

    def _due(self, round_: int) -> list[Step]:
        """The actions at the merge."""
        fragment = self.fragment_due(round_)
        at_merge: list[Step] = []
        for meeting in self.game.meetings[round_]:
            steps = (self._group if self.game.tokens is not None else self._meet)(round_, fragment, meeting)
            if self._late:
                at_merge += steps
            else:
                for step in steps:
                    step()
            at_merge += [lambda who=who: self.merge(who, fragment) for who in meeting]
        return at_merge

    def fragment_due(self, round_: int) -> int:
        return round_ % len(self.game.fragments)

    def snapshot(self, who: int, fragment: int) -> Tensor:
        return self.world[who].params[slice(*self.game.fragments[fragment])].clone()

    def merge(self, who: int, fragment: int) -> None:
        replica = self.world[who]
        part = replica.params[slice(*self.game.fragments[fragment])]
        arithmetic.merge_(part, replica.outer.fragment(fragment), self.game.alpha)

    # -- a pair, or one alone ----------------------------------------------------------------------------------------

    def _meet(self, round_: int, fragment: int, meeting: tuple[int, ...]) -> list[Step]:
        sent = {who: self.sent(round_, fragment, who) for who in meeting}
        steps = []
        for who in meeting:
            partner = next((sent[other] for other in meeting if other != who), None)
            steps.append(self._outer_step(round_, fragment, who, partner))
        return steps

    def sent(self, round_: int, fragment: int, who: int) -> tuple[Tensor, Tensor]:
        """Return (params, outer params) as the partner receives them: without the part of the work that does not
        count."""
        params, outer = self.snapshot(who, fragment), self.world[who].outer.fragment(fragment).clone()
        arithmetic.step_along_(params, outer, self.game.share(round_, who) * self.sent_lr())
        return params, outer

    def sent_lr(self) -> float:
        return RULES[self.game.rule].sent_lr(self.game)

    def _outer_step(self, round_: int, fragment: int, who: int, partner: tuple[Tensor, Tensor] | None) -> Step:
        game, own = self.game, self.snapshot(who, fragment)
        work, theirs = OwnWork(own, game.share(round_, who)), None if partner is None else torch.cat(partner)
        values = work if theirs is None else PartnerParams(work, theirs)
        return lambda: self._step(who, fragment, values)

    # -- a group -----------------------------------------------------------------------------------------------------

    def _group(self, round_: int, fragment: int, meeting: tuple[int, ...]) -> list[Step]:
        mean = self.mean(round_, fragment, meeting)
        edges = [0, *(edge for span in self.game.lost.get(round_, ()) for edge in span), mean.numel()]
        spans = list(zip(edges[::2], edges[1::2], strict=True))
        for start, end in self.game.lost.get(round_, ()):
            mean[start:end] = torch.nan  # must not be read
        return [lambda who=who: self._step(who, fragment, MeanGradient(mean.clone(), spans)) for who in meeting]

    def mean(self, round_: int, fragment: int, meeting: tuple[int, ...]) -> Tensor:
        """Return the mean weighted by tokens, as an owner computes it."""
        assert self.game.tokens is not None
        weights = {who: float(self.game.tokens[round_][who]) for who in meeting}
        parts = [self.gradient(round_, fragment, who) * weights[who] for who in meeting if weights[who]]
        return torch.stack(parts).sum(0) / sum(weights.values())

    def gradient(self, round_: int, fragment: int, who: int) -> Tensor:
        share = self.game.share(round_, who)
        own, rule = self.snapshot(who, fragment), RULES[self.game.rule]
        return self.world[who].outer.contribution(fragment, own, rule, share)

    def _step(self, who: int, fragment: int, values: OuterValues) -> None:
        self.world[who].outer.step_with(fragment, values, GameMethod(self.game))
