"""The share of liars at which pairs that train a real model break, for each way to accept a partner's params.

The protocol, written before anything was measured:

* **Swarm**: 64 replicas of the model of `benchmarks.pairs_at_scale`, of which 4, 8, 12, 16, 24 or 28 are liars: 6, 13,
  19, 25, 38 and 44 % of an honest peer's meetings. The rule is `noloco`, for which the share of 0.126 is derived in
  `peer.lab.attack.breakdown`; from 0.41 on no radius bounds the spread. The learning rate is the default, 4e-3.
* **Length**: 30 rounds of 20 steps. By the derived growth the mean square of the spread is 120 times as large after 30
  rounds in which 19 % of the meetings are hostile. What breaks more slowly is not found.
* **Liars** train nothing, and know all params and whom they meet. They send minus the mean params (`negate`), minus ten
  times the mean work (`x-10`), minus the mean work (`inner product`), the mean less z standard deviations (`a little`,
  arXiv 1902.06156), or their victim's own params and a way from the mean, as far as values are decoded (`spread`).
* **Acceptance**: `finite`, `clip` and `check` are the product's. `cs+` clips to the threshold of CS+ (arXiv
  2410.10418) over the distances of the last 16 partners. It knows the share of liars. A partner that was refused twice
  is a last choice, as in the product; a bad reputation has no other effect here.
* **Broken**: the mean loss of the honest is above that of peers that exchange nothing (`none`). **Breakdown point**: it
  lies between the largest share that holds and the smallest that is broken, found by bisection over the six shares with
  seed 0. So it is assumed that a smaller share does no more harm. Then both are played with seed 1.
* Without liars each acceptance is played, too: what it costs the honest.
* **Interval**: of 95 %, as in `benchmarks.pairs_at_scale`.

    python -m benchmarks.pair_breakdown [--minutes N] [--runs FILE] [--json FILE] [--results]

Bound: none. The figures include the number of runs that have been played.

Without minutes the runs that are kept are summed up. With them, runs are played and appended to
results/pair_breakdown/runs.jsonl. None is played twice. A run takes two minutes."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.large_swarms import MODEL, Record, Save, play
from benchmarks.lying_meetings import ACCEPTANCES, ATTACKS, LiarsRun, honest_pairs
from benchmarks.pairs_at_scale import kept, quantile
from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, parsed, product_commit, publish
from benchmarks.worth import DIGEST
from benchmarks.worth_runs import CONTEXT
from peer.lab.bench.tables import Cell
from peer.run.sections import DataSection
from peer.trainer.data import load_corpus

ABOUT = Benchmark(
    "pair_breakdown",
    "At which share of liars do pairs that train a real model break?",
    "none: a study beside the derived shares of 0.126 and 0.41",
    smallest="--minutes 0",
)
RUNS = RESULTS / "pair_breakdown" / "runs.jsonl"
PEERS, ROUNDS, EVERY, BATCH, LR = 64, 30, 20, 2, 4e-3
LIARS = (4, 8, 12, 16, 24, 28)
SEEDS = (0, 1)
ALONE = 16
"""Number of peers in the control run without exchanges."""
Bounds = tuple[int, int]
"""(largest number of liars known to hold, smallest number known to break). 0 or `PEERS`: unknown."""


def run_of(acceptance: str, attack: str, liars: int, seed: int) -> LiarsRun:
    """Return a run of the plan. An empty `attack` needs 0 liars."""
    return LiarsRun(
        method="noloco",
        peers=PEERS - liars,
        steps=ROUNDS * EVERY,
        every=EVERY,
        batch=BATCH,
        lr=LR,
        seed=seed,
        liars=liars,
        attack=attack,
        acceptance=acceptance,
    )


def alone(seed: int) -> LiarsRun:
    """Return the control run, whose peers never exchange."""
    return LiarsRun(method="none", peers=ALONE, steps=ROUNDS * EVERY, every=EVERY, batch=BATCH, lr=LR, seed=seed)


PLAN = [
    alone(0),
    *(run_of(acceptance, "", 0, 0) for acceptance in ACCEPTANCES),
    *(run_of(*one, 0) for one in itertools.product(ACCEPTANCES, ATTACKS, LIARS)),
]
"""All runs with seed 0 that the bisection may need."""


def named(run: LiarsRun) -> str:
    return json.dumps(run.key)


class Played:
    """The records of the runs that were played."""

    def __init__(self, records: Iterable[Record]) -> None:
        fields = LiarsRun.__dataclass_fields__
        self._records = {
            named(LiarsRun(**{name: value for name, value in one.items() if name in fields})): one for one in records
        }

    def record(self, run: LiarsRun) -> Record | None:
        return self._records.get(named(run))

    def loss(self, run: LiarsRun) -> float | None:
        """Return the loss of a run. Infinite: it diverged. None: it was not played."""
        record = self.record(run)
        if record is None:
            return None
        return math.inf if record["loss"] is None else float(record["loss"])

    def broken(self, acceptance: str, attack: str, liars: int, seed: int = 0) -> bool | None:
        """Return whether the honest peers' loss is above that of the control run. None: one of the two was not
        played."""
        loss, bar = self.loss(run_of(acceptance, attack, liars, seed)), self.loss(alone(seed))
        return None if loss is None or bar is None else loss > bar

    def bounds(self, acceptance: str, attack: str) -> Bounds:
        """Return the bounds of the breakdown point that the runs with seed 0 give."""
        found = {liars: self.broken(acceptance, attack, liars) for liars in LIARS}
        breaks = min((liars for liars, broken in found.items() if broken), default=PEERS)
        holds = max((liars for liars, broken in found.items() if broken is False and liars < breaks), default=0)
        return holds, breaks

    def next_run(self) -> LiarsRun | None:
        """Return the next run to play. None: all were played."""
        for seed in SEEDS:
            first = [alone(seed), *(run_of(acceptance, "", 0, seed) for acceptance in ACCEPTANCES)]
            if missing := [run for run in first if self.record(run) is None]:
                return missing[0]
            each = [(acceptance, attack) for attack in reversed(ATTACKS) for acceptance in ACCEPTANCES]
            between = {one: self._between(*one) for one in each}
            if seed == 0 and (most := max(len(liars) for liars in between.values())):
                one = next(one for one in each if len(between[one]) == most)  # all points become narrower alike
                return run_of(*one, between[one][(most - 1) // 2], seed)
            if seed:
                for one in each:
                    for liars in self.bounds(*one):
                        if 0 < liars < PEERS and self.record(run := run_of(*one, liars, seed)) is None:
                            return run
        return None

    def _between(self, acceptance: str, attack: str) -> list[int]:
        """Return the numbers of liars between the bounds, for which it is unknown whether they break `acceptance`."""
        holds, breaks = self.bounds(acceptance, attack)
        return [liars for liars in LIARS if holds < liars < breaks]


def play_on(minutes: float, runs: Path) -> None:
    """Play runs of the plan and append their records to the file `runs`."""
    ends = time.monotonic() + 60 * minutes
    corpus = load_corpus(DataSection(kind="stdlib", digest=DIGEST), None, CONTEXT)
    runs.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < ends and (run := Played(kept(runs)).next_run()):
        for one in play([run], corpus, Save(None, []), swarm=honest_pairs(MODEL, corpus)):
            with runs.open("a") as file:
                file.write(json.dumps({**one, "commit": product_commit()}) + "\n")
            print(json.dumps({name: value for name, value in one.items() if name != "curve"}), flush=True)


def half_width(played: Played) -> float | None:
    """Return half the width of the 95 % interval of one run's loss. None: no run was played with both seeds."""
    pairs = [[played.loss(replace(run, seed=seed)) for seed in SEEDS] for run in PLAN]
    whole = [[loss for loss in pair if loss is not None and math.isfinite(loss)] for pair in pairs]
    variances = [statistics.variance(pair) for pair in whole if len(pair) == len(SEEDS)]
    return quantile(len(variances)) * math.sqrt(statistics.fmean(variances)) if variances else None


def points_of(played: Played) -> Iterator[list[Cell]]:
    """Yield a row for each acceptance and attack: between which shares the breakdown point lies."""
    for acceptance in ACCEPTANCES:
        for attack in ATTACKS:
            holds, breaks = played.bounds(acceptance, attack)
            if holds or breaks < PEERS:
                yield [acceptance, attack, share_of(holds), share_of(breaks) if breaks < PEERS else "-"]


def share_of(liars: int) -> float:
    """Return the share of hostile meetings."""
    return liars / (PEERS - 1)


def rows_of(played: Played) -> Iterator[list[Cell]]:
    """Yield a row for each run that was played."""
    for run in (replace(run, seed=seed) for run in PLAN for seed in SEEDS):
        record, bar = played.record(run), played.loss(alone(run.seed))
        if record is None:
            continue
        loss = played.loss(run)
        over = None if loss is None or bar is None or not math.isfinite(loss) else 100 * (loss / bar - 1)
        acceptance = run.acceptance if run.method != "none" else "none"
        yield [
            acceptance,
            run.attack or "-",
            run.liars,
            run.seed,
            *("-" if one is None else one for one in (record["loss"], over, record["spread"])),
            *("-" if (part := record.get(name)) is None else part for name in ("taken_of_honest", "taken_of_liars")),
        ]


HEADS = ("acceptance", "attack", "liars", "seed", "loss", "% over none", "spread", "taken of honest", "taken of liars")


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FILE", help="where the records are")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.minutes:
        play_on(given.minutes, given.runs)
    records = kept(given.runs)
    played, hours = Played(records), sum(one["core_seconds"] for one in records) / 3600
    figures = [Figure("core hours that the runs took", "h", hours), Figure("runs", "", float(len(records)))]
    if (half := half_width(played)) is not None:
        figures.append(Figure("half of the interval of 95 % of a loss", "nats", half))
    points = Table(
        "Breakdown points: shares of hostile meetings",
        ("acceptance", "attack", "holds", "breaks"),
        list(points_of(played)),
    )
    publish(given, ABOUT, figures, points, Table("Runs", HEADS, list(rows_of(played))))


if __name__ == "__main__":
    main()
