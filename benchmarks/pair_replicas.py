"""Replicas that train one after the other in this process, and exchange in pairs through a codec that is measured."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.study.methods import partners
from peer.codec.lattice.codec import Modulo, ask, asked
from peer.codec.lattice.spread import Distance
from peer.codec.plain import Codec
from peer.codec.registry import EVERY
from peer.outer.state import OuterState
from peer.outer.values import OwnWork, PartnerParams
from peer.protocol.model.layout import Layout
from peer.protocol.sampling import START, Cursor
from peer.run.presets import PRESETS
from peer.run.sections import LlamaSection, OptimizerSection, TrainSection
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params, layout_of

CONTEXT, PEERS = 64, 4
RULE = PRESETS["noloco"]
LATTICES = ("modulo7", "modulo6")


@dataclass(frozen=True, slots=True)
class Size:
    """A model, and how long and how fast its replicas train."""

    model: LlamaSection
    steps: int
    """Inner steps of a round."""
    batch: int
    lr: float


SIZES = {
    "5m": Size(
        LlamaSection(hidden_size=256, intermediate_size=704, num_hidden_layers=6, num_key_value_heads=4), 20, 1, 2e-3
    ),
    "110m": Size(
        LlamaSection(
            vocab_size=32000,
            hidden_size=768,
            intermediate_size=2048,
            num_hidden_layers=12,
            num_attention_heads=12,
            num_key_value_heads=12,
        ),
        2,
        1,
        6e-4,
    ),
}


# -- how params are carried --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Carried:
    """The size and the error of one payload that a peer sent."""

    bits: float
    """Bits that the two peers sent for each parameter, with request and answer."""
    asked: float
    """Part of the blocks that the receiver asked for."""
    error: float
    step: float


class Whole:
    """A codec that needs nothing of the receiver."""

    def __init__(self, codec: Codec) -> None:
        self.name = codec.name
        self._codec = codec

    def carry(self, sender: int, sent: Tensor, outer: Tensor, own: Tensor) -> tuple[Tensor, int, float]:
        """Return what is decoded, the bytes, and the part of the blocks that was asked for. `outer`: the sender's."""
        payload = self._codec.encode(sent)
        return self._codec.decode(payload, len(sent)), len(payload), 0.0

    def learn(self, receiver: int, own: Tensor, partner: Tensor, outer: Tensor) -> None:
        """Take note of a partner's decoded params."""


class Near(Whole):
    """A lattice codec, which reads the low bits against the receiver's own params."""

    def __init__(self, bits: int) -> None:
        self._modulo = Modulo(bits)
        self._known: dict[int, Distance] = defaultdict(Distance)
        self.name = self._modulo.name

    def carry(self, sender: int, sent: Tensor, outer: Tensor, own: Tensor) -> tuple[Tensor, int, float]:
        payload = self._modulo.encode(sent, self._known[sender].spread(sent, outer))
        values, failed = self._modulo.decode(payload, own)
        request = ask(failed)
        answer = self._modulo.encode_blocks(sent, payload, asked(request, len(sent)))
        self._modulo.decode_blocks_(values, payload, failed, answer)
        return values, len(payload) + len(request) + len(answer), float(failed.float().mean())

    def learn(self, receiver: int, own: Tensor, partner: Tensor, outer: Tensor) -> None:
        self._known[receiver].learn(own, partner, outer)


def wire_of(name: str) -> Whole:
    return Near(int(name.removeprefix("modulo"))) if name in LATTICES else Whole(EVERY[name])


def carried(wire: Whole, sender: int, sent: Tensor, sent_outer: Tensor, receiver: OuterState, own: Tensor) -> Carried:
    """Send params, and compare what comes. The wire learns nothing of it."""
    decoded, nbytes, part = wire.carry(sender, sent, sent_outer, own)
    lost, apart = decoded.sub_(sent).norm(), (sent - own).norm()
    moved = (own + sent).mul_(0.5).sub_(receiver.params).mul_(RULE.outer_lr)
    moved = moved.add_(receiver.momentum, alpha=RULE.outer_momentum).norm()
    step = RULE.outer_lr * lost / 2 / moved
    return Carried(8 * nbytes / len(sent), part, float(lost / apart), float(step))


# -- the replicas ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Replica:
    """The state that a peer keeps between two rounds, as in a checkpoint."""

    name: str
    outer: OuterState
    params: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    age: int = 0
    cursor: Cursor = START


def replica(name: str, layout: Layout, first: Tensor, files: Path | None) -> Replica:
    """Make a peer at its start. `files`: where its tensors lie; None: in memory."""
    made = []
    for part in ("params", "outer", "momentum", "exp_avg", "exp_avg_sq"):
        where = None if files is None else str(files / f"{name}-{part}")
        made.append(torch.zeros(len(first)) if where is None else torch.from_file(where, True, len(first)).zero_())
    for filled in made[:2]:
        filled.copy_(first)
    params, outer, momentum, exp_avg, exp_avg_sq = made
    return Replica(name, OuterState(layout, outer, momentum), params, exp_avg, exp_avg_sq)


@dataclass
class PairRun:
    """Replicas that train, exchange through one codec, and are measured through others besides."""

    size: Size
    corpus: Corpus
    seed: int
    rounds: int
    wire: Whole
    beside: Sequence[Whole] = ()
    files: Path | None = None
    found: dict[str, list[Carried]] = field(default_factory=lambda: defaultdict(list), init=False)
    """The payloads that the peers sent, by codec and in the order of rounds."""
    distances: list[float] = field(default_factory=list, init=False)
    """How far apart two partners were before each exchange, over the length of the first one's params."""

    def __post_init__(self) -> None:
        self._layout = layout_of(self.size.model)
        first = first_params(self.size.model, self.seed)
        self.replicas = [replica(f"peer-{i}", self._layout, first, self.files) for i in range(PEERS)]

    def play(self, tell: Callable[[str], None]) -> None:
        """Train and exchange until the last round."""
        for round_ in range(self.rounds):
            losses = [self._train(one, round_) for one in self.replicas]
            partner_of = partners(PEERS, self.seed, round_)
            for a, b in enumerate(partner_of):
                if a < b:
                    self._exchange(a, b)
            errors = {name: round(100 * found[-1].error, 2) for name, found in self.found.items()}
            tell(f"{self.wire.name} seed {self.seed} round {round_}: {statistics.mean(losses):.4f} {errors}")

    def loss(self) -> float:
        """Return the mean loss of the replicas' outer_params."""
        loop = self._loop(self.replicas[0])
        return statistics.mean(loop.evaluate(one.outer.params).loss for one in self.replicas)

    def _loop(self, one: Replica) -> InnerLoop:
        """Make the inner loop of a peer that begins again where it was."""
        size = self.size
        train = TrainSection(context=CONTEXT, batch=size.batch, total_rounds=self.rounds, eval_windows=256)
        config = TrainerConfig(
            model=size.model,
            optimizer=OptimizerSection(lr=size.lr),
            train=train,
            sync_every=size.steps,
            seed=self.seed,
            peer_id=one.name,
        )
        loop = InnerLoop(config, self._layout, choose_device("cpu", "fp32"), self.corpus, one.params)
        loop.optimizer.restore(one.exp_avg, one.exp_avg_sq, one.age)
        loop.batches.move_to(one.cursor)
        return loop

    def _train(self, one: Replica, round_: int) -> float:
        """Return the last loss of the round."""
        loop, loss = self._loop(one), None
        loop.move_to(round_, 0)
        for _ in range(self.size.steps):
            loss = loop.step()
        one.params.copy_(loop.params)
        one.exp_avg.copy_(loop.optimizer.exp_avg)
        one.exp_avg_sq.copy_(loop.optimizer.exp_avg_sq)
        one.age, one.cursor = loop.optimizer.age, loop.batches.cursor
        assert loss is not None, "the loss is finite"
        return loss

    def _exchange(self, a: int, b: int) -> None:
        pair = (self.replicas[a], self.replicas[b])
        self.distances.append(float((pair[0].params - pair[1].params).norm() / pair[0].params.norm()))
        for sender, receiver, i in ((*pair, a), (*pair[::-1], b)):
            for wire in (self.wire, *self.beside):
                told = carried(wire, i, sender.params, sender.outer.params, receiver.outer, receiver.params)
                self.found[wire.name].append(told)
        decoded = [
            self.wire.carry(i, sender.params, sender.outer.params, receiver.params)[0]
            for sender, receiver, i in ((*pair[::-1], b), (*pair, a))
        ]
        for one, values, i in zip(pair, decoded, (a, b), strict=True):
            for wire in (self.wire, *self.beside):
                wire.learn(i, one.params, values, one.outer.params)
        for one, values in zip(pair, decoded, strict=True):
            one.outer.step_with(0, PartnerParams(OwnWork(one.params, 1.0), values), RULE)
            one.params.copy_(one.outer.params)
