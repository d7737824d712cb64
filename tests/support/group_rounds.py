"""Group rounds without a network: tiny models that learn, the production mean of their contributions, and each member's
judgement of each result. Fast enough for many rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.codec.plain import Codec
from peer.codec.registry import EVERY
from peer.exchange.group.compare import compare_parts
from peer.exchange.group.contribution import Contribution
from peer.exchange.group.mean_terms import MeanTerms
from peer.exchange.group.reduce import encoded, reduce_contributions
from peer.exchange.validation import check_result
from peer.lab.sim.probing import SYMBOLS
from peer.lab.sim.tiny_model import BATCH, TENSORS, TinyLoop, first_params, teacher
from peer.methods.diloco import nesterov_
from peer.protocol.group.contributor_judge import ContributorJudge
from peer.protocol.group.plausibility import MeasuredResult, ResultHistory
from peer.protocol.group.shards import Shard, cut
from peer.protocol.messages import PeerId
from peer.protocol.model import fragments
from peer.protocol.wire.payload import BytesSource

STEPS = 15
"""Inner steps per round of a machine of average speed."""
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.5


class DomainLoop(TinyLoop):
    """Trains only on texts whose last two symbols belong to this member; no other member sees them."""

    def __init__(self, params: Tensor, *, seed: int, number: int, members: int) -> None:
        super().__init__(WHOLE, params, seed=seed, data=f"peer {number}")
        self._first, self._own = number * SYMBOLS**2 // members, SYMBOLS**2 // members

    def step(self) -> float:
        key = f"{self._seed}/{self._sources[0]}/{self.round}/{self.step_in_round}".encode()
        random = np.random.default_rng(list(blake3(key).digest(16)))
        pairs = self._first + random.integers(0, self._own, BATCH)
        odds = teacher(self._seed)[pairs].cumsum(1)
        following = np.minimum((odds < random.random((BATCH, 1))).sum(1), SYMBOLS - 1)
        loss = self._backward(pairs // SYMBOLS, pairs % SYMBOLS, following)
        self._adam()
        self.step_in_round += 1
        return loss


WHOLE = fragments.cut(TENSORS, fragments=1, pattern="whole")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSetting:
    """The members of the group, and the codecs of the exchange."""

    members: int = 8
    spread: float = 1.0
    """Speed of the fastest machine divided by that of the slowest."""
    domains: bool = False
    """Whether each member has data that no other member has."""
    codec: str = "fp32"
    result: str = "fp32"
    seed: int = 0


@dataclass(frozen=True, slots=True)
class JudgedRound:
    """A round's results as its members see them."""

    results: list[dict[int, MeasuredResult]]
    """For each member, the results of the shards that others own."""
    doubts: list[dict[int, str]]
    left_out: dict[PeerId, str]
    """Contributor left out of a shard's mean by its owner -> the reason."""


def play(setting: GroupSetting, rounds: int) -> Iterator[JudgedRound]:
    """Play rounds in which all members are honest and apply each result."""
    count, seed = setting.members, setting.seed
    outer, peers = first_params(seed, WHOLE), [PeerId(f"peer {number}") for number in range(count)]
    momentum, histories = torch.zeros_like(outer), [ResultHistory() for _ in peers]
    judges = {peer: ContributorJudge() for peer in peers}
    loops = [_loop(setting, outer, number) for number in range(count)]
    paces = [STEPS * setting.spread ** (0.5 - number / (count - 1)) for number in range(count)]
    for round_ in range(rounds):
        steps = [max(1, int(pace * (round_ + 1)) - int(pace * round_)) for pace in paces]
        for loop, todo in zip(loops, steps, strict=True):
            loop.params.copy_(outer)
            loop.move_to(round_, 0)
            for _ in range(todo):
                loop.step()
        own = [outer - loop.params for loop in loops]
        shards = cut(round_.to_bytes(32, "big"), peers, outer.numel())
        mean, left_out = _mean(setting, shards, own, [BATCH * todo for todo in steps], judges)
        yield _judged(shards, own, mean, histories, left_out)
        nesterov_(outer, momentum, mean, outer_lr=OUTER_LR, outer_momentum=OUTER_MOMENTUM)


def _loop(setting: GroupSetting, outer: Tensor, number: int) -> TinyLoop:
    if setting.domains:
        return DomainLoop(outer, seed=setting.seed, number=number, members=setting.members)
    return TinyLoop(WHOLE, outer, seed=setting.seed, data=f"peer {number}")


def _mean(
    setting: GroupSetting,
    shards: list[Shard],
    own: list[Tensor],
    tokens: list[int],
    judges: Mapping[PeerId, ContributorJudge],
) -> tuple[Tensor, dict[PeerId, str]]:
    """Return the mean as the shards' owners compute it and the members decode it. No contributor is left out."""
    codec, result = EVERY[setting.codec], EVERY[setting.result]
    terms, mean, left_out = MeanTerms(codec=codec, result_codec=result), torch.empty_like(own[0]), dict[PeerId, str]()
    for shard in shards:
        parts = {
            PeerId(f"peer {number}"): Contribution(tokens[number], _travelling(codec, part[shard.start : shard.end]))
            for number, part in enumerate(own)
        }
        left_out |= judges[shard.owner].judge(compare_parts(parts, codec, shard.elements, Random(0)))
        into = mean[shard.start : shard.end]
        reduced = reduce_contributions(parts, terms, into, lambda peers: "", lambda peer, part: True)
        assert reduced.payload is not None
        result.decode_into(reduced.payload, into)
    return mean, left_out


def _travelling(codec: Codec, values: Tensor) -> BytesSource:
    return BytesSource(encoded(codec, values.clone()))


def _judged(
    shards: list[Shard],
    own: list[Tensor],
    mean: Tensor,
    histories: list[ResultHistory],
    left_out: dict[PeerId, str],
) -> JudgedRound:
    seen, doubted = list[dict[int, MeasuredResult]](), list[dict[int, str]]()
    for number, (part, history) in enumerate(zip(own, histories, strict=True)):
        results = dict[int, MeasuredResult]()
        for shard in shards:
            span = slice(shard.start, shard.end)
            measured = check_result(mean[span], part[span], None, history.last_rms or 1.0)
            results[shard.index] = replace(measured, named=len(own), names_us=True)
        foreign = {shard.index: results[shard.index] for shard in shards if shard.owner != f"peer {number}"}
        doubts = history.doubts(foreign, len(own))
        history.applied([result for index, result in results.items() if index not in doubts])
        seen.append(foreign)
        doubted.append(doubts)
    return JudgedRound(seen, doubted, left_out)
