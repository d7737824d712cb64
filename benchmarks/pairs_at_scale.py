"""Pairs of up to a thousand real models: how their loss changes with the number of peers.

The protocol, written before anything was measured:

* **Model**: a llama of 115,520 parameters (2 layers, hidden size 64), context 64, 2 windows a peer and step. The text
  is the source of the standard library of CPython 3.11, as in `benchmarks.worth`. Every peer makes 2,000 steps, 100
  rounds of 20, so that peers have equal tokens whatever their number.
* **Methods**: `gossip`, which is the default; the mean of the whole group (`diloco` with outer_lr 1 and no momentum);
  `ddp`, which averages each gradient; `none`. Then `noloco`, `gasloc`, `heloco` and `diloco`.
* **Rates** are 4e-3 times powers of 2, tuned with 4 and with 16 peers, on seed 100, from two rungs on and beyond the
  best one while this is at an end. 64 peers and more have the rate of 16. So has a run of 300 rounds that of 100.
  `none` is tuned with 4 peers alone.
* **Seeds** 0 and 1. 1,024 peers have seed 0 alone. `none` is not played with more than 16 peers: its peers do not
  depend on each other, so that more of them have the same mean.
* **Measure**: the mean of the peers' own losses after their last round, on 256 windows of the hold-out. Beside it are
  the loss of the mean of their params, and the spread: the mean distance of the params to their mean, over its length.
* **Interval**: of 95 %, by Student's t, with one variance for all cells. It is pooled over the cells with two seeds,
  with as many degrees of freedom as there are such cells.
* **Difference**: of a loss to that of `gossip` with 4 peers and the same seed, with an interval of the same kind.
  Methods and numbers of peers are compared by it. It was added when the first cells with 4 peers showed that two seeds
  are farther apart than two methods.
* **Effective speed-up**: the tokens after which one peer alone has the loss, over the tokens of a peer, as in
  `benchmarks.worth`. `single` is tuned at each of its lengths.
* **What would count as a result**: pairs of 256 or 1,024 peers that are better than those of 16, alike, or worse, by
  more than the interval of the difference.
* `PLAN` has the order. What was not reached is not in the tables. All on one core.

    python -m benchmarks.pairs_at_scale [--minutes N] [--save FOLDER] [--runs FILE] [--methods A,B] [--peers N,N]
                                        [--json FILE] [--results]

Bound: none. The figures include the number of runs that have been played.

Without minutes the runs that are kept are summed up, and nothing is played. With them, runs are played and appended to
results/pairs_at_scale/runs.jsonl, or to another file. With a folder for saves, a run goes on where it was after so many
minutes, or when the process was killed. Several processes may play parts of the plan, each with a file of its own: put
the lines of these files together. With MALLOC_TOP_PAD_=268435456 and MALLOC_MMAP_THRESHOLD_=1073741824 in the
environment it takes fewer page faults."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from benchmarks.large_swarms import ROWS, Record, Save, play
from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, parsed, product_commit, publish
from benchmarks.worth import DIGEST, HIGHEST, LOWEST, TUNING, Cells, by_cell, name_of, rate, tuning
from benchmarks.worth_runs import CONTEXT, DDP, SINGLE, WorthRun
from peer.lab.bench.tables import Cell
from peer.lab.compare.worth import T95, length_for
from peer.run.sections import DataSection
from peer.trainer.data import load_corpus

ABOUT = Benchmark(
    "pairs_at_scale",
    "How does the loss of pairs change with the number of peers, from 4 to 1,024?",
    "none: a study",
    smallest="--minutes 0",
)
RUNS = RESULTS / "pairs_at_scale" / "runs.jsonl"
STEPS, EVERY, BATCH = 2000, 20, 2
MOST_TUNED = 16
"""Number of peers of the largest cells that are tuned. Larger cells use their rate."""
MEAN, GOSSIP, NONE = "mean", "gossip", "none"
"""`mean` stands for `diloco` with outer_lr 1 and no momentum: the mean of the whole group."""
FOUR = (GOSSIP, MEAN, DDP, NONE)
OTHERS = ("noloco", "gasloc", "heloco", "diloco")
PLAIN = (1.0, 0.0)


def cell(method: str, peers: int, steps: int = STEPS) -> WorthRun:
    """Return a cell, as a run whose learning rate and seed are not used."""
    preset, outer = ("diloco", PLAIN) if method == MEAN else (method, None)
    return WorthRun(method=preset, peers=peers, steps=steps, every=EVERY, batch=BATCH, lr=0.0, seed=-1, outer=outer)


def method_of(run: WorthRun) -> str:
    """Return the name of a run's method on the page."""
    return MEAN if run.outer == PLAIN else run.method


@dataclass(frozen=True, slots=True)
class Stage:
    """Cells that are played before those of the next stage, and their seeds."""

    cells: tuple[WorthRun, ...]
    seeds: tuple[int, ...] = (0, 1)


def stage(methods: Iterable[str], peers: Iterable[int], steps: int = STEPS, seeds: tuple[int, ...] = (0, 1)) -> Stage:
    methods = tuple(methods)
    return Stage(tuple(cell(method, count, steps) for count in peers for method in methods), seeds)


PLAN: list[Stage] = [
    stage(FOUR, (4, 16)),
    stage(FOUR[:3], (64,)),
    stage([SINGLE], (1,), 2 * STEPS),
    stage([SINGLE], (1,), 4 * STEPS),
    stage(FOUR[:3], (256,), seeds=(0,)),
    stage([SINGLE], (1,), 8 * STEPS),
    stage(OTHERS, (4, 16)),
    stage(FOUR[:3], (256,), seeds=(1,)),
    stage([SINGLE], (1,), 16 * STEPS),
    stage(FOUR, (4, 16), 3 * STEPS),
    stage(FOUR[:3], (1024,), seeds=(0,)),
]
BASE = cell(GOSSIP, 4)
"""The cell that all others are compared with."""
CELLS: list[WorthRun] = list(dict.fromkeys(of for one in PLAN for of in one.cells))


def tuned_with(of: WorthRun) -> WorthRun:
    """Return the cell whose tuning determines the rate of this one."""
    if of.method == SINGLE:
        return of
    return replace(of, peers=4 if of.method == NONE else min(of.peers, MOST_TUNED), steps=STEPS)


def tuning_runs(found: Sequence[Record], of: WorthRun) -> list[WorthRun]:
    """Return the runs that the tuning of a cell needs next. `found`: its records. Empty: it is tuned."""
    losses = tuning(found)
    if missing := [rung for rung in (0, 1) if rung not in losses]:
        return [replace(of, lr=rate(rung), seed=TUNING) for rung in missing]
    best = min(losses, key=losses.__getitem__)
    if best == max(losses) and best < HIGHEST:
        return [replace(of, lr=rate(best + 1), seed=TUNING)]
    if best == min(losses) and best > LOWEST:
        return [replace(of, lr=rate(best - 1), seed=TUNING)]
    return []


def tuned(cells: Cells, of: WorthRun) -> float | None:
    """Return the tuned rate of a cell. None: the tuning is not complete."""
    found = cells.get(name_of(tuned_with(of)), [])
    if tuning_runs(found, of):
        return None
    losses = tuning(found)
    return rate(min(losses, key=losses.__getitem__))


def wanted(cells: Cells, of: WorthRun, seeds: Sequence[int]) -> list[WorthRun]:
    """Return the next missing runs of a cell. Until its rate is tuned, these are runs of the tuning."""
    if (lr := tuned(cells, of)) is None:
        model = tuned_with(of)
        return tuning_runs(cells.get(name_of(model), []), model)
    there = {one["seed"] for one in cells.get(name_of(of), []) if one["lr"] == lr}
    return [replace(of, lr=lr, seed=seed) for seed in seeds if seed not in there]


def part_of(plan: Sequence[Stage], methods: str, peers: str) -> list[Stage]:
    """Return the cells of a plan with these methods and numbers of peers, both separated by commas. Empty: all."""
    names, counts = methods.split(","), [int(count) for count in peers.split(",") if count]
    return [
        Stage(
            tuple(
                of for of in one.cells if (not methods or method_of(of) in names) and (not counts or of.peers in counts)
            ),
            one.seeds,
        )
        for one in plan
    ]


def next_batch(records: Sequence[Record], plan: Sequence[Stage]) -> list[WorthRun]:
    """Return the next runs to play together: the first missing run of the plan, then runs of the same stage with as
    many steps while all fit into one stack. Empty: everything was played."""
    cells, batch = by_cell(records), list[WorthRun]()
    for one in plan:
        for of in one.cells:
            for run in wanted(cells, of, one.seeds):
                fits = sum(other.peers for other in batch) + run.peers <= ROWS
                alike = batch and run.steps == batch[0].steps and DDP not in (run.method, batch[0].method)
                if run not in batch and (not batch or (alike and fits)):
                    batch.append(run)
        if batch:
            return batch
    return batch


def kept(file: Path = RUNS) -> list[Record]:
    """Return the records of a file. Empty: there is no file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def play_on(minutes: float, folder: Path | None, runs: Path, plan: Sequence[Stage]) -> None:
    """Play runs of the plan and append their records to the file `runs`."""
    ends = time.monotonic() + 60 * minutes
    corpus = load_corpus(DataSection(kind="stdlib", digest=DIGEST), None, CONTEXT)
    runs.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < ends and (batch := next_batch(kept(runs), plan)):
        save = Save(folder, batch)
        for one in play(batch, corpus, save, ends=ends if folder else math.inf):
            with runs.open("a") as file:
                file.write(json.dumps({**one, "commit": product_commit()}) + "\n")
            print(json.dumps({name: value for name, value in one.items() if name != "curve"}), flush=True)
            save.remove()


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a cell with at least one seed."""

    run: WorthRun
    """The run, with the tuned rate."""
    records: dict[int, Record]
    """Record by seed."""
    half_width: float | None
    """Half the width of the 95 % interval of the loss. None: no cell has two seeds."""
    difference: float | None
    """Mean over the seeds of the loss less that of `gossip` with 4 peers. None: no seed has both."""
    difference_half: float | None
    """Half the width of its 95 % interval. None: no cell has a difference for two seeds."""
    speed_ups: list[float]
    """Speed-up of each seed against one peer alone. Infinite: above what the longest run of one peer can show. 0: below
    the shortest one."""

    @property
    def loss(self) -> float:
        return self.mean("loss")

    def mean(self, measure: str) -> float:
        """Return the mean over the seeds. A run that diverged counts as infinite."""
        values = [one[measure] for one in self.records.values()]
        return math.inf if None in values else statistics.fmean(values)


def quantile(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t for `freedom` degrees of freedom."""
    return T95[freedom - 1] if freedom <= len(T95) else 1.96 + 2.4 / freedom


def seeds_found(cells: Cells, of: WorthRun) -> dict[int, Record]:
    """Return the records of a cell at its tuned rate, by seed."""
    lr = tuned(cells, of)
    return {one["seed"]: one for one in cells.get(name_of(of), []) if one["lr"] == lr and one["seed"] != TUNING}


def results_of(records: Sequence[Record]) -> list[Result]:
    """Return the result of each cell with at least one seed, in the order of the plan."""
    cells = by_cell(records)
    there = [(of, found) for of in CELLS if (found := seeds_found(cells, of))]
    losses = [{seed: one["loss"] for seed, one in found.items() if one["loss"] is not None} for _, found in there]
    base = {seed: one["loss"] for seed, one in seeds_found(cells, BASE).items() if one["loss"] is not None}
    apart = [{seed: loss - base[seed] for seed, loss in one.items() if seed in base} for one in losses]
    half = half_widths(losses)
    apart_half = half_widths([one for (of, _), one in zip(there, apart, strict=True) if of != BASE])
    curves: dict[int, list[tuple[float, float]]] = {}
    for of, found in there:
        if of.method == SINGLE or (of.method, of.peers, of.steps) == (NONE, MOST_TUNED, STEPS):
            for seed, one in found.items():
                curves.setdefault(seed, []).append((of.tokens, one["loss"]))

    return [
        Result(
            replace(of, lr=tuned(cells, of) or 0.0),
            found,
            half(len(found)),
            statistics.fmean(differences.values()) if differences else None,
            apart_half(len(differences)) if differences and of != BASE else None,
            [
                length_for(sorted(curves.get(seed, [])), math.inf if one["loss"] is None else one["loss"]) / of.tokens
                for seed, one in found.items()
            ],
        )
        for (of, found), differences in zip(there, apart, strict=True)
    ]


def half_widths(each: Iterable[Mapping[int, float]]) -> Callable[[int], float | None]:
    """Return a function from a number of seeds to half of the interval of 95 % of their mean, with one variance for all
    cells. `each`: the values of a cell by seed. None: no cell has two."""
    variances = [statistics.variance(one.values()) for one in each if len(one) > 1]
    deviation = math.sqrt(statistics.fmean(variances)) if variances else 0.0
    return lambda count: quantile(len(variances)) * deviation / math.sqrt(count) if variances else None


def worths_of(results: Iterable[Result]) -> dict[tuple[str, int], tuple[float, float]]:
    """Return (method, peers) -> mean speed-up and half of its 95 % interval, with one variance for all cells of
    `STEPS`. Cells are left out if a seed's speed-up is beyond the runs of one peer alone."""
    swarms = [one for one in results if one.run.steps == STEPS and one.run.method not in (SINGLE, NONE)]
    known = {
        (method_of(one.run), one.run.peers): one.speed_ups
        for one in swarms
        if all(0 < up < math.inf for up in one.speed_ups)
    }
    half = half_widths([dict(enumerate(ups)) for ups in known.values()])
    return {cell: (statistics.fmean(ups), half(len(ups)) or math.inf) for cell, ups in known.items()}


def rows_of(results: Iterable[Result]) -> Iterator[list[Cell]]:
    for one in results:
        run, known = one.run, all(0 < value < math.inf for value in one.speed_ups)
        yield [
            method_of(run),
            run.peers,
            run.steps // run.every,
            run.lr,
            len(one.records),
            one.loss,
            *("-" if value is None else value for value in (one.half_width, one.difference, one.difference_half)),
            one.mean("worst"),
            one.mean("soup"),
            one.mean("spread"),
            statistics.fmean(one.speed_ups) if known else "more" if math.inf in one.speed_ups else "-",
        ]


HEADS = (
    "method",
    "peers",
    "rounds",
    "lr",
    "seeds",
    "loss",
    "+-",
    "less gossip of 4",
    "+-",
    "worst",
    "of the mean",
    "spread",
    "speed-up",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="where runs are saved every ten minutes")
    parser.add_argument("--methods", default="", help="play these alone")
    parser.add_argument("--peers", default="", help="play these numbers of peers alone")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FILE", help="where the records are")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.minutes:
        play_on(given.minutes, given.save, given.runs, part_of(PLAN, given.methods, given.peers))
    records = kept(given.runs)
    hours = sum(one["core_seconds"] for one in records) / 3600
    figures = [Figure("core hours that the runs took", "h", hours), Figure("runs", "", float(len(records)))]
    publish(given, ABOUT, figures, Table("By the number of peers", HEADS, list(rows_of(results_of(records)))))


if __name__ == "__main__":
    main()
