"""The methods of the study, and the outer step that a swarm takes with each of them.

Every step is made by the product's code."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from peer.outer.robust_mean import weighted_mean
from peer.outer.rules import step_along_
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient, OwnWork, PartnerParams
from peer.protocol.model.layout import Layout
from peer.run.presets import PRESETS, Method

DEFAULT, GROUP, ALONE = "noloco", "diloco", "none"
CHOSEN = "noloco-mean"
"""The pair method that the study found. It is the preset `gossip`, and the default since."""


Accept = Callable[[int, Tensor, Tensor, Tensor], bool]
"""Whether a peer of this number, with these outer_params and params, takes its partner's params, the last argument. It
may shorten them in place."""


def take_all(peer: int, outer: Tensor, own: Tensor, theirs: Tensor) -> bool:
    """Take whatever comes."""
    return True


def _pair(rule: str, outer_lr: float, outer_momentum: float) -> Method:
    """Make a method of pairs with consensus = outer_lr."""
    constants = {"outer_lr": outer_lr, "outer_momentum": outer_momentum, "consensus": outer_lr}
    return replace(PRESETS[DEFAULT], rule=rule, codec="bf16", **constants)


METHODS = {
    ALONE: PRESETS[ALONE],
    DEFAULT: _pair("noloco", 0.7, 0.5),
    GROUP: PRESETS[GROUP],
    "noloco-mean": _pair("noloco", 1.0, 0.0),
    "gasloc-.3": _pair("gasloc", 1.0, 0.3),
    "noloco-1-.3": _pair("noloco", 1.0, 0.3),
    "gasloc-.1": _pair("gasloc", 1.0, 0.1),
    "gasloc-.5": _pair("gasloc", 1.0, 0.5),
    "noloco-.7-.3": _pair("noloco", 0.7, 0.3),
}
"""The methods, in the order in which they are played."""


def partners(peers: int, seed: int, round_: int) -> list[int]:
    """Return each peer's partner, drawn at random. An even number of peers leaves nobody alone."""
    assert peers % 2 == 0, peers
    order = list(range(peers))
    random.Random(f"{seed}/{round_}").shuffle(order)
    found = [0] * peers
    for one, other in zip(order[::2], order[1::2], strict=True):
        found[one], found[other] = other, one
    return found


class StudySwarm:
    """The peers of one run. They hold their outer state, and exchange at the end of each round."""

    def __init__(self, method: Method, layout: Layout, params: Tensor, seed: int, accept: Accept = take_all) -> None:
        """`params`: [peers, elements], those that the peers train. A step writes its result there."""
        self._accept = accept
        self._method = method
        self._params = params
        self._seed = seed
        self._states = [OuterState.fresh(layout, row.clone()) for row in params]

    def end_round(self, round_: int, tokens: int) -> None:
        """Exchange, take the outer step and give the result to the trainers. `tokens`: of each peer in the round."""
        match self._method.topology:
            case "pair":
                self._pairs(partners(len(self._states), self._seed, round_))
            case "group":
                self._group(tokens)
            case _:
                for state, own in zip(self._states, self._params, strict=True):
                    state.step_with(0, OwnWork(own, 1.0), self._method)
        for state, own in zip(self._states, self._params, strict=True):
            own.copy_(state.params)

    def _pairs(self, partner_of: Sequence[int]) -> None:
        method = self._method
        assert (method.codec, method.sends_outer) == ("bf16", False), method
        sent = [row.clone() for row in self._params]
        for row, state in zip(sent, self._states, strict=True):
            step_along_(row, state.params, method.sent_lr)
        received = [sent[partner].to(torch.bfloat16).to(torch.float32) for partner in partner_of]
        for peer, (state, own, theirs) in enumerate(zip(self._states, self._params, received, strict=True)):
            work = OwnWork(own, 1.0)
            taken = self._accept(peer, state.params, own, theirs)
            state.step_with(0, PartnerParams(work, theirs) if taken else work, method)

    def _group(self, tokens: int) -> None:
        gradients = [
            state.pseudo_gradient(0, own.clone()) for state, own in zip(self._states, self._params, strict=True)
        ]
        mean = weighted_mean(gradients, [tokens] * len(gradients))
        for state in self._states:
            state.step_with(0, MeanGradient(mean.clone(), [(0, mean.numel())]), self._method)

    @property
    def spread(self) -> float:
        """The replicas' distance from their mean, as a part of the mean's length."""
        mean = self._params.mean(0)
        return float((self._params - mean).norm(dim=1).mean() / mean.norm())
