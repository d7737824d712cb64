"""What does each method gain or lose against no exchange, at equal tokens?

Promise: none by number; docs/explanation/methods.md has the table. Bounds: all methods train on equally many tokens,
the ledger balances, and the payloads have the bytes that `peer manifest show` computes, within 5 %. Payloads of
`sparseloco` may have fewer, because its results are smaller if peers select the same values. A run of 20 exchanges
takes about 20 seconds of a core.

    python -m benchmarks.methods_loss [--minutes N] [--exchanges 20] [--rates 4e-3,8e-3] [--methods none,diloco]
                                      [--json FILE] [--results]

The production peer plays each method in virtual time, with the product's inner loop on the source of the standard
library. Without minutes the runs that are kept are summed up, and nothing is played. With them, runs are played and
appended to results/methods_loss/runs.jsonl one by one. None is played twice, and none begins after so many minutes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, parsed, product_commit, publish
from peer.lab.sim.links import PROFILES
from peer.lab.sim.setting import SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.methods.codec_specs import SPARSE
from peer.methods.registry import PRESETS
from peer.observe.events import Evaluated, RoundEnded
from peer.ports.trainer import Evaluation
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.run.costs import exchange_bytes
from peer.run.manifest import Manifest, default_text, derive, parse_manifest
from peer.run.resolve import resolve
from peer.run.sections import LlamaSection
from peer.run.sync.growth import rounds_of
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus, load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params, layout_of

ABOUT = Benchmark(
    "methods_loss",
    "What does each method gain or lose against no exchange, at equal tokens?",
    "bound: equal tokens, a ledger that balances, and the bytes that `peer manifest show` computes",
    smallest="--minutes 0",
)
RUNS = RESULTS / "methods_loss" / "runs.jsonl"
ALONE = "none"
PEERS, LAYERS, SYNC_EVERY, CONTEXT, BATCH = 4, 2, 20, 64, 2
SEEDS = (0, 1, 2)
GROWTH = 1.1
"""`growth_lr` of `qsr` divided by the peak learning rate: the paper's value for AdamW, which gives the preset's at the
default rate."""
STEP_SECONDS = 1.0
METHODS: dict[str, dict[str, Any]] = {name: {"sync.preset": name} for name in (ALONE, *PRESETS)}
"""Method -> its settings, in the order of playing."""
METHODS["diloco+muon"] = {"sync.preset": "diloco", "optimizer.kind": "muon"}
METHODS["eager-with-momentum"] = {"sync.preset": "eager", "sync.outer_momentum": "0.5"}
METHODS["eager-at-0.4"] = METHODS["eager-with-momentum"] | {"sync.outer_lr": "0.4"}
EVAL_WINDOWS = 256
NEVER = 10**6
"""Rounds between evaluations for a run that is evaluated only at its beginning and end."""
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LossRun:
    """One swarm from the first parameters to its last round."""

    exchanges: int
    """Number of periods of `SYNC_EVERY` steps, which is the number of exchanges of a fragment if rounds do not grow."""
    method: str
    lr: float
    seed: int

    @property
    def manifest(self) -> Manifest:
        preset = PRESETS[METHODS[self.method]["sync.preset"]].method
        settings = METHODS[self.method] | {
            "seed": self.seed,
            "model.num_hidden_layers": LAYERS,
            "sync.clock": "steps",
            "sync.sync_every": SYNC_EVERY,
            "train.context": CONTEXT,
            "train.batch": BATCH,
            "train.total_rounds": self.exchanges * preset.fragments,
            "train.eval_every": NEVER,
            "train.eval_windows": EVAL_WINDOWS,
            "optimizer.lr": self.lr,
        }
        if preset.growth_lr:
            settings["sync.growth_lr"] = float(f"{GROWTH * self.lr:.6g}")
        return parse_manifest(derive(default_text(), [f"{key}={value}" for key, value in settings.items()]).encode())


class TextTrainer(VirtualTrainer):
    """The product's inner loop in virtual time."""

    kind = "text"

    def __init__(
        self,
        config: TrainerConfig,
        layout: Layout,
        clock: VirtualClock,
        corpus: Corpus,
        step_seconds: float = STEP_SECONDS,
    ) -> None:
        super().__init__(layout, clock, step_seconds=step_seconds, tokens_per_step=config.tokens_per_step)
        self._config, self._corpus = config, corpus
        self._loop: InnerLoop

    def _reset(self, params: torch.Tensor) -> None:
        self._loop = InnerLoop(self._config, self._layout, choose_device("cpu", "fp32"), self._corpus, params)

    def _params(self) -> torch.Tensor:
        return self._loop.params

    def _train(self, steps: int) -> float:
        self._loop.move_to(self.round, self.step_in_round)
        losses = [self._loop.step() for _ in range(steps)]
        return math.fsum(math.nan if loss is None else loss for loss in losses)

    def _measure(self, params: torch.Tensor) -> Evaluation:
        return self._loop.evaluate(params)

    def _scale_lr(self, scale: float) -> None:
        super()._scale_lr(scale)
        self._loop.scale_learning_rate(scale)


def play(run: LossRun, corpus: Corpus) -> Record:
    """Play a run and return its record."""
    began, manifest = time.monotonic(), run.manifest
    swarm = run_virtual(_swarm(run, manifest, corpus))
    method, events = swarm.method, [event for peer in swarm.peers for event in peer.events]
    ended = [event for event in events if isinstance(event, RoundEnded)]
    exchanged = [swarm.layout.fragment_elements(event.fragment) for event in ended if event.outcome == "exchanged"]
    last = [event for event in events if isinstance(event, Evaluated) and event.round == swarm.total_rounds]
    assert len(last) == PEERS, last
    sent, elements = sum(event.bytes_sent for event in ended), sum(exchanged)
    return {
        **asdict(run),
        "loss": _mean([event.loss for event in last]),
        "own_loss": _mean([event.own_loss for event in last]),
        "tokens": sum(peer.counters().tokens for peer in swarm.peers),
        "rounds": len(ended),
        "exchanged": len(exchanged),
        "bytes_a_parameter": sent / (PEERS * swarm.layout.elements),
        "bytes_each": sent / elements if elements else 0.0,
        "bytes_computed": sum(exchange_bytes(method, size, PEERS) for size in exchanged) / elements
        if elements
        else 0.0,
        "ledger": sum(abs(peer.ledger().imbalance) for peer in swarm.peers),
        "seconds": round(time.monotonic() - began, 1),
    }


async def _swarm(run: LossRun, manifest: Manifest, corpus: Corpus) -> SimulatedSwarm:
    """Play a run to its end."""
    assert isinstance(manifest.model, LlamaSection)
    method, tensors = resolve(manifest.sync), layout_of(manifest.model).tensors
    layout = cut(tensors, fragments=method.fragments, pattern=method.fragment_layout, apart=method.fragments_apart)

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> TextTrainer:
        return TextTrainer(TrainerConfig.of(manifest, f"peer-{number}"), layout, clock, corpus)

    swarm = SimulatedSwarm(
        PEERS,
        SwarmSetting(
            method=method,
            rounds=method.round_clock(),
            total_rounds=rounds_of(manifest.train, manifest.sync),
            seed=run.seed,
            layout=layout,
            eval_every=NEVER,
            first=first_params(manifest.model, run.seed, layout),
            min_peers=PEERS,
        ),
        SwarmWorld(links=PROFILES["lan"], stops=False),
        make_trainer=trainer,
    )
    await swarm.run()
    return swarm


def _mean(losses: Sequence[float]) -> float | None:
    """Return the mean. None: one of them is not finite."""
    mean = math.fsum(losses) / len(losses)
    return round(mean, 6) if math.isfinite(mean) else None


def kept() -> list[Record]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def play_on(runs: Sequence[LossRun], minutes: float) -> None:
    """Play the missing runs one by one, for at most `minutes`."""
    ends = time.monotonic() + 60 * minutes
    corpus = load_corpus(parse_manifest(default_text().encode()).data, None, CONTEXT)
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    there = {tuple(record[name] for name in ("exchanges", "method", "lr", "seed")) for record in kept()}
    for run in runs:
        if tuple(asdict(run).values()) in there or time.monotonic() > ends:
            continue
        record = {**play(run, corpus), "corpus": corpus.digest, "commit": product_commit()}
        with RUNS.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(*(record[name] for name in ("exchanges", "method", "lr", "seed", "loss", "seconds")), flush=True)


# -- the summary -------------------------------------------------------------------------------------------------------


def by_rate(records: Sequence[Record], method: str) -> dict[float, list[Record]]:
    """Return learning rate -> a method's runs, ordered by seed. Rates that lack a seed are left out."""
    found: dict[float, list[Record]] = {}
    for record in sorted(records, key=lambda one: (one["lr"], one["seed"])):
        if record["method"] == method:
            found.setdefault(record["lr"], []).append(record)
    return {lr: runs for lr, runs in found.items() if len(runs) == len(SEEDS)}


def mean_loss(runs: Sequence[Record]) -> float:
    """Return the mean over the seeds. A run that diverged counts as infinite."""
    return sum(math.inf if run["loss"] is None else run["loss"] for run in runs) / len(runs)


def best(records: Sequence[Record], method: str) -> list[Record]:
    """Return a method's runs at its best learning rate. Empty: it has none with all seeds."""
    return min(by_rate(records, method).values(), key=mean_loss, default=[])


def differences(records: Sequence[Record], method: str) -> list[float]:
    """Return for each seed by how many percent the loss of a method is above that of no exchange. Each uses its best
    learning rate."""
    pairs = zip(best(records, method), best(records, ALONE), strict=True)
    return [100 * (mean_loss([one]) / mean_loss([alone]) - 1) for one, alone in pairs]


def rows_of(records: Sequence[Record]) -> Iterator[list[Any]]:
    """Yield the rows of a table, the lowest loss first."""
    found = {method: runs for method in METHODS if (runs := best(records, method))}
    for method, runs in sorted(found.items(), key=lambda item: mean_loss(item[1])):
        over = differences(records, method) if ALONE in found else [math.nan]
        tried = ", ".join(f"{lr:g}" for lr in by_rate(records, method))
        each, whole = (sum(run[name] for run in runs) / len(runs) for name in ("bytes_each", "bytes_a_parameter"))
        losses = [runs[0]["lr"], tried, mean_loss(runs), sum(over) / len(over), min(over), max(over)]
        yield [method, *losses, each, whole, whole / each if each else 0.0]


HEADS = ["method", "lr", "tried", "loss", "over none, %", "least", "most"]
HEADS += ["bytes a parameter and exchange", "bytes a parameter", "exchanges of a parameter"]


def tables(records: Sequence[Record]) -> Iterator[Table]:
    """Yield the tables of each length of a run: all methods at one rate, then each at its best one."""
    for exchanges in sorted({record["exchanges"] for record in records}):
        some = [record for record in records if record["exchanges"] == exchanges]
        title = f"{exchanges} periods of {SYNC_EVERY} steps, {PEERS} peers, {len(SEEDS)} seeds"
        rates = by_rate(some, ALONE).keys()
        for lr in rates:
            rows = list(rows_of([record for record in some if record["lr"] == lr]))
            yield Table(f"{title}, learning rate {lr:g}", HEADS, rows)
        if len(rates) > 1:
            tuned = {method for method in METHODS if by_rate(some, method).keys() >= rates}
            rows = list(rows_of([record for record in some if record["method"] in tuned]))
            yield Table(f"{title}, each at the better rate of those tried", HEADS, rows)


def figures(records: Sequence[Record]) -> Iterator[Figure]:
    apart = [record["tokens"] / (PEERS * record["exchanges"] * SYNC_EVERY * BATCH * CONTEXT) - 1 for record in records]
    yield Figure("tokens of a run, most off", "%", 100 * max(map(abs, apart), default=0.0), at_most=1.0)
    yield Figure("ledger, off by", "", max((record["ledger"] for record in records), default=0), at_most=0)
    exchanging = [record for record in records if record["bytes_each"]]
    for method in dict.fromkeys(record["method"] for record in exchanging):
        shares = [one["bytes_each"] / one["bytes_computed"] for one in exchanging if one["method"] == method]
        preset = PRESETS[METHODS[method]["sync.preset"]].method
        exact = preset.result_codec != SPARSE  # sparse results are smaller where peers agree
        at_least = 0.95 if exact else None
        yield Figure(f"{method}: bytes sent over those computed", "", sum(shares) / len(shares), 1.05, at_least)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    parser.add_argument("--exchanges", type=int, default=20, help="of a fragment in a run")
    parser.add_argument("--rates", default="4e-3,8e-3", help="learning rates")
    parser.add_argument("--methods", default="", metavar="NAME,NAME", help="those that are played; all by default")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.minutes:
        methods, rates = given.methods.split(",") if given.methods else list(METHODS), given.rates.split(",")
        grid = ((float(lr), seed, method) for lr in rates for seed in SEEDS for method in methods)
        play_on([LossRun(given.exchanges, method, lr, seed) for lr, seed, method in grid], given.minutes)
    records = kept()
    publish(given, ABOUT, list(figures(records)), *tables(records))


if __name__ == "__main__":
    main()
