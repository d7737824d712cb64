"""How few bits can carry the params of a pair? Replicas of the tiny byte model train on the standard library in one
process with NoLoCo's outer step; what partners get of each other goes through the codec. Compared by the loss at the
end, the error of what is decoded against the difference of the two, bits a parameter, and blocks asked for.

    python benchmarks/partner_codec.py [--seeds 3] [--replicas 8] [--rounds 12] [--start scratch] [--away] [--json FILE]
    python benchmarks/partner_codec.py --hints    # which guess of the partner's distance makes asking rare

`--start warm` goes on from a model that one worker trained before. `--away`: for three rounds replica 0 finds nobody
(solo steps), replica 1 is stopped, and replica 2 trains on without an outer step; then all three are back.

The error is the L2 norm of decoded minus sent, over that of sent minus the receiver's own; `step` is that of the outer
step it leads to, over the outer step with fp32. One thread."""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from peer.codec.blocks import INT8
from peer.codec.lattice.codec import Modulo, ask, asked
from peer.codec.lattice.spread import FACTOR, Distance, rms_apart
from peer.codec.plain import BF16, FP32, Codec
from peer.outer.rules import scale_work_
from peer.outer.state import OuterState
from peer.run.sections import DataSection, ModelSection, OptimizerSection, TrainSection
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus, load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.model import first_params, layout_of

MODEL = ModelSection()
LAYOUT = layout_of(MODEL)
CONTEXT = 64
SYNC_EVERY = 30
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.5
WARM_STEPS, WARM_BATCH = 400, 16
LEARNING_RATE = {"scratch": 4e-3, "warm": 1e-3}
AWAY = range(3, 6)
FACTORS = (4.0, 5.0, 6.0, 8.0, 12.0)


@dataclass(frozen=True)
class Setting:
    seed: int
    replicas: int
    rounds: int
    start: str
    away: bool


@dataclass
class Carried:
    """Of one payload."""

    bits: float
    failed: float
    error: float
    step: float
    late: bool


@dataclass
class Outcome:
    codec: str
    setting: Setting
    loss: float
    spread: float
    seconds: float
    rounds: list[list[Carried]] = field(default_factory=list)


@cache
def corpus() -> Corpus:
    return load_corpus(DataSection(), None, CONTEXT)


@cache
def start_params(start: str) -> Tensor:
    first = first_params(MODEL, 0)
    if start == "scratch":
        return first
    loop = make_loop(first, 0, 4e-3, WARM_STEPS // SYNC_EVERY + 1, "warm", WARM_BATCH)
    for step in range(WARM_STEPS):
        loop.move_to(step // SYNC_EVERY, step % SYNC_EVERY)
        loop.step()
    return loop.params.clone()


def make_loop(params: Tensor, seed: int, lr: float, rounds: int, name: str, batch: int = 1) -> InnerLoop:
    config = TrainerConfig(
        model=MODEL,
        optimizer=OptimizerSection(lr=lr),
        train=TrainSection(context=CONTEXT, batch=batch, total_rounds=rounds, eval_windows=256),
        sync_every=SYNC_EVERY,
        seed=seed,
        peer_id=name,
    )
    return InnerLoop(config, LAYOUT, choose_device("cpu"), corpus(), params)


# -- how far a partner may be ------------------------------------------------------------------------------------------


class Hint(Protocol):
    """What gives the spreads, and learns from each exchange: see peer.codec.lattice.spread.Distance, which is one."""

    def spread(self, params: Tensor, outer_params: Tensor) -> Tensor: ...

    def learn(self, own: Tensor, partner: Tensor, outer_params: Tensor) -> None: ...


class OwnUpdate:
    """sqrt(2) times the rms of the own update in the block, and nothing of the partners."""

    def spread(self, params: Tensor, outer_params: Tensor) -> Tensor:
        return Distance().spread(params, outer_params)

    def learn(self, own: Tensor, partner: Tensor, outer_params: Tensor) -> None:
        pass


class LastPartner(OwnUpdate):
    """The rms of the last difference; of the own update before the first."""

    def __init__(self) -> None:
        self._seen: Tensor | None = None

    def spread(self, params: Tensor, outer_params: Tensor) -> Tensor:
        return super().spread(params, outer_params) if self._seen is None else FACTOR * self._seen

    def learn(self, own: Tensor, partner: Tensor, outer_params: Tensor) -> None:
        self._seen = rms_apart(own, partner)


HINTS: list[Callable[[], Hint]] = [OwnUpdate, LastPartner, Distance]


# -- how params are carried --------------------------------------------------------------------------------------------


@dataclass
class Way:
    """From sender to receiver."""

    sender: int
    sent: Tensor
    outer: Tensor
    own: Tensor
    """The receiver's."""


class Whole:
    """A codec that needs nothing of the receiver."""

    def __init__(self, codec: Codec) -> None:
        self.name, self._codec = codec.name, codec

    def carry(self, way: Way) -> tuple[Tensor, float, float]:
        """(decoded, bits a parameter, blocks asked for)."""
        payload = self._codec.encode(way.sent)
        return self._codec.decode(payload, len(way.sent)), 8 * len(payload) / len(way.sent), 0.0

    def learn(self, i: int, own: Tensor, partner: Tensor, outer: Tensor) -> None:
        pass


class Near(Whole):
    """Modulo, with the request and its answer counted in."""

    def __init__(self, bits: int, hint: Callable[[], Hint] = Distance, factor: float = FACTOR) -> None:
        self._modulo, self._factor = Modulo(bits), factor
        self._known: dict[int, Hint] = defaultdict(hint)
        self.name = self._modulo.name

    def carry(self, way: Way) -> tuple[Tensor, float, float]:
        spread = self._known[way.sender].spread(way.sent, way.outer) * (self._factor / FACTOR)
        payload = self._modulo.encode(way.sent, spread)
        values, failed = self._modulo.decode(payload, way.own)
        request = ask(failed)
        answer = self._modulo.encode_blocks(way.sent, payload, asked(request, len(way.sent)))
        self._modulo.decode_blocks_(values, payload, failed, answer)
        nbytes = len(payload) + len(request) + len(answer)
        return values, 8 * nbytes / len(way.sent), float(failed.float().mean())

    def learn(self, i: int, own: Tensor, partner: Tensor, outer: Tensor) -> None:
        self._known[i].learn(own, partner, outer)


class Shadow(Whole):
    """Carries fp32, and tries every hint beside it."""

    def __init__(self) -> None:
        super().__init__(FP32)
        self._ways = {(hint.__name__, k): Near(5, hint, k) for hint in HINTS for k in FACTORS}
        self.tried: dict[tuple[str, float], list[tuple[float, float, float]]] = defaultdict(list)

    def carry(self, way: Way) -> tuple[Tensor, float, float]:
        apart = (way.sent - way.own).norm()
        for name, wire in self._ways.items():
            decoded, bits, failed = wire.carry(way)
            self.tried[name].append((failed, bits, float((decoded - way.sent).norm() / apart)))
        return super().carry(way)

    def learn(self, i: int, own: Tensor, partner: Tensor, outer: Tensor) -> None:
        for wire in self._ways.values():
            wire.learn(i, own, partner, outer)


# -- the swarm ---------------------------------------------------------------------------------------------------------


class Swarm:
    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        first, lr = start_params(setting.start), LEARNING_RATE[setting.start]
        names = [f"r{i}" for i in range(setting.replicas)]
        self.loops = [make_loop(first, setting.seed, lr, setting.rounds, name) for name in names]
        self.outer = [OuterState.fresh(LAYOUT, first.clone()) for _ in names]
        self.steps = [0] * len(names)
        """Since the base."""
        self._random = random.Random(setting.seed)

    def pairs(self, round_: int) -> list[tuple[int, int | None]]:
        away = self.setting.away and round_ in AWAY
        here = list(range(3 if away else 0, len(self.loops)))
        self._random.shuffle(here)
        if len(here) % 2:
            here.append(-1)
        pairs = list(zip(here[::2], here[1::2], strict=True))
        found: list[tuple[int, int | None]] = [(max(p), min(p) if min(p) >= 0 else None) for p in pairs]
        return [*found, (0, None)] if away else found

    def train(self, round_: int) -> None:
        for i, loop in enumerate(self.loops):
            if i == 1 and self.setting.away and round_ in AWAY:
                continue
            for step in range(SYNC_EVERY):
                loop.move_to(round_, step)
                loop.step()
            self.steps[i] += SYNC_EVERY

    def snapshot(self, i: int) -> Tensor:
        """What is sent: work that piled up is scaled down."""
        params = self.loops[i].params.clone()
        scale_work_(params, self.outer[i].params, min(1.0, SYNC_EVERY / self.steps[i]))
        return params

    def step(self, i: int, own: Tensor, partner: Tensor | None) -> None:
        rule = {"rule": "noloco", "outer_lr": OUTER_LR, "outer_momentum": OUTER_MOMENTUM}
        self.outer[i].step(0, own.clone(), None if partner is None else partner.clone(), **rule)  # type: ignore[arg-type]
        with torch.no_grad():
            self.loops[i].params.copy_(self.outer[i].params)
        self.steps[i] = 0

    def exchange(self, a: int, b: int, wire: Whole, late: bool) -> list[Carried]:
        params = {a: self.snapshot(a), b: self.snapshot(b)}
        found, carried = {}, []
        for sender, receiver in ((a, b), (b, a)):
            sent, own = params[sender], params[receiver]
            decoded, bits, failed = wire.carry(Way(sender, sent, self.outer[sender].params, own))
            found[receiver] = decoded
            lost, apart = (decoded - sent).norm(), (sent - own).norm()
            moved = self.moved(receiver, own, sent)
            carried.append(Carried(bits, failed, float(lost / apart), float(OUTER_LR * lost / 2 / moved), late))
        for i, decoded in found.items():
            wire.learn(i, params[i], decoded, self.outer[i].params)
            self.step(i, params[i], decoded)
        return carried

    def moved(self, i: int, own: Tensor, partner: Tensor) -> Tensor:
        """Norm of the outer step with the partner's exact params."""
        outer = self.outer[i]
        pulled: Tensor = OUTER_LR * ((own + partner) / 2 - outer.params)
        moved: Tensor = (OUTER_MOMENTUM * outer.momentum + pulled).norm()
        return moved

    def round(self, round_: int, wire: Whole) -> list[Carried]:
        self.train(round_)
        carried = []
        back = self.setting.away and round_ == AWAY.stop
        for a, b in self.pairs(round_):
            if b is None:
                self.step(a, self.snapshot(a), None)
            else:
                carried += self.exchange(a, b, wire, back and min(a, b) < 3)
        return carried

    def result(self) -> tuple[float, float]:
        """(mean of the replicas' losses, relative distance to their mean)."""
        losses = [loop.evaluate(outer.params).loss for loop, outer in zip(self.loops, self.outer, strict=True)]
        every = torch.stack([outer.params for outer in self.outer])
        mean = every.mean(0)
        return statistics.mean(losses), float((every - mean).norm(dim=1).mean() / mean.norm())


def run(setting: Setting, wire: Whole) -> Outcome:
    began, swarm = time.monotonic(), Swarm(setting)
    rounds = [swarm.round(round_, wire) for round_ in range(setting.rounds)]
    loss, spread = swarm.result()
    return Outcome(wire.name, setting, loss, spread, time.monotonic() - began, rounds)


# -- what is printed ---------------------------------------------------------------------------------------------------


def wires() -> list[Callable[[], Whole]]:
    whole = [partial(Whole, codec) for codec in (FP32, BF16, INT8)]
    return [*whole, *(partial(Near, bits) for bits in (7, 6, 5, 4))]


def mean_of(outcomes: list[Outcome], what: str, keep: Callable[[int, Carried], bool] = lambda _, c: True) -> float:
    rounds = [(number, each) for outcome in outcomes for number, each in enumerate(outcome.rounds)]
    found = [float(getattr(c, what)) for number, each in rounds for c in each if keep(number, c)]
    return statistics.mean(found) if found else math.nan


def describe(outcomes: list[Outcome], fp32: list[Outcome]) -> str:
    losses = [o.loss for o in outcomes]
    apart = [o.loss - f.loss for o, f in zip(outcomes, fp32, strict=True)]
    first, late = mean_of(outcomes, "failed", lambda n, _: n == 0), mean_of(outcomes, "failed", lambda _, c: c.late)
    return (
        f"{outcomes[0].codec:9} {statistics.mean(losses):8.4f} {statistics.mean(apart):+8.4f}"
        f" {max(map(abs, apart)):7.4f} {statistics.mean(o.spread for o in outcomes):8.4f}"
        f" {mean_of(outcomes, 'bits'):7.2f} {mean_of(outcomes, 'failed'):8.3%} {first:8.3%} {late:8.3%}"
        f" {mean_of(outcomes, 'error'):8.2%} {mean_of(outcomes, 'step'):8.2%}"
        f" {statistics.mean(o.seconds for o in outcomes):6.0f}"
    )


HEADING = (
    f"{'codec':9} {'loss':>8} {'to fp32':>8} {'largest':>7} {'spread':>8} {'bits':>7} {'asked':>8} {'round 0':>8}"
    f" {'late':>8} {'error':>8} {'step':>8} {'s':>6}"
)


def compare(settings: list[Setting]) -> list[Outcome]:
    print(HEADING, flush=True)
    every: list[Outcome] = []
    fp32: list[Outcome] = []
    for make in wires():
        outcomes = [run(setting, make()) for setting in settings]
        fp32 = fp32 or outcomes
        print(describe(outcomes, fp32), flush=True)
        every += outcomes
    return every


def try_hints(settings: list[Setting]) -> list[dict[str, object]]:
    tried: dict[tuple[str, float], list[tuple[float, float, float]]] = defaultdict(list)
    for setting in settings:
        shadow = Shadow()
        run(setting, shadow)
        for key, found in shadow.tried.items():
            tried[key] += found
    print(f"{'spread (modulo5)':32} {'k':>4} {'asked':>8} {'most':>8} {'bits':>6} {'error':>7}")
    rows: list[dict[str, object]] = []
    for (name, factor), each in tried.items():
        failed, bits, error = (statistics.mean(column) for column in zip(*each, strict=True))
        most = max(f for f, _, _ in each)
        print(f"{name:32} {factor:4.0f} {failed:8.3%} {most:8.3%} {bits:6.2f} {error:7.2%}")
        rows.append({"hint": name, "factor": factor, "failed": failed, "most": most, "bits": bits, "error": error})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--start", choices=sorted(LEARNING_RATE), default="scratch")
    parser.add_argument("--away", action="store_true")
    parser.add_argument("--hints", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = [Setting(s, args.replicas, args.rounds, args.start, args.away) for s in range(args.seeds)]
    found = try_hints(settings) if args.hints else [asdict(outcome) for outcome in compare(settings)]
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
