"""The effective speed-up of a swarm: how many times the tokens of each peer one machine alone needs for the same loss.

The protocol, written before anything was measured:

* **Effective speed-up** of a run: the tokens after which `single` (one peer alone, its learning-rate schedule fitted to
  its length, its rate tuned) has the run's loss, over the tokens of each peer. Those tokens are interpolated in
  log(tokens) between the lengths of `single` that were played, seed by seed. The interval is of 95 %, over the seeds,
  by Student's t. Beyond the longest `single` it is only known to be more.
* The loss of a run is the mean of the peers' own at its end, on 256 windows of the hold-out. That of the mean of their
  params, and of the mean of the params of the last 5 rounds, stand beside it.
* **Cell**: method, peers, steps, steps between two exchanges, batch, start, data, rule. Every cell is tuned for itself:
  its rates are 4e-3 times powers of 2, on seed 100, from two rungs on and beyond the best one while this is at an end.
  Then it plays the seeds 0, 1 and 2 at the best rate. `single` is tuned at each length, too.
* The default cell is that of the default run: 217,664 parameters, context 64, 8 windows a step, 20 steps a round. One
  factor is changed at a time, then the best two together. `CELLS` has the order; what was not reached is not in the
  tables.
* Cells that compare batches at equal processor time were added after 150 runs. On one core here a step of 8, 4 and 2
  windows takes 31, 17 and 11 ms.
* The text is the source of the standard library of CPython 3.11 (data of kind `stdlib`), the same digest in all runs.
* `CHECKS` are cells of the map with another text and the seeds 10, 11 and 12, at the rate of the map's cell. Nothing is
  tuned for them. The text is the King James Bible, as Debian's package bible-kjv-text prints it:
  `mkdir kjv; bible -l 200 gen1:1-rev22:21 > kjv/kjv.txt`. They are played with `--check kjv`.

Bound: none. The figures include the number of runs that have been played. The wanted speed-ups are 2.5 with 4 peers and
4 with 8.

    python -m benchmarks.worth [--minutes N] [--rows 16] [--check FOLDER] [--json FILE] [--results]

Without minutes the runs that are kept are summed up, and nothing is played. With them, runs are played and appended to
results/worth/runs.jsonl. None is played twice, and none begins after so many minutes. `core_seconds` is what a run
took."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, parsed, product_commit, publish
from benchmarks.worth_runs import CONTEXT, DDP, SINGLE, WorthRun, play
from peer.lab.bench.tables import Cell
from peer.lab.compare.worth import Worth, length_for
from peer.run.sections import DataSection
from peer.trainer.data import load_corpus

ABOUT = Benchmark(
    "worth",
    "What is it worth to join: how many times a peer's tokens does one machine alone need for the swarm's loss?",
    "wanted: 2.5 with 4 peers and 4 with 8 in a run of the default length",
    smallest="--minutes 0",
)
RUNS = RESULTS / "worth" / "runs.jsonl"
DIGEST = "d19f98b8ef494fdba3f4f9c32fd642abb9645cf554336655b79205f154b04cae"
KJV = "kjv"
KJV_DIGEST = "bbb5cef87fd2272cf9456ba58f858f15a2f94199de529183620b3950e6261447"
TUNING, SEEDS, CHECK_SEEDS = 100, (0, 1, 2), (10, 11, 12)
LOWEST, HIGHEST = -4, 5
Record = dict[str, Any]
Cells = dict[str, list[Record]]


def cell(method: str, peers: int, steps: int, *, every: int = 20, batch: int = 8, **more: Any) -> WorthRun:
    """Return a cell, as a run whose learning rate and seed are not used."""
    return WorthRun(method=method, peers=peers, steps=steps, every=every, batch=batch, lr=0.0, seed=-1, **more)


def alone(batch: int, lengths: Iterable[int], **more: Any) -> list[WorthRun]:
    return [cell(SINGLE, 1, steps, batch=batch, **more) for steps in lengths]


def of_methods(methods: str, peers: int, steps: int, **more: Any) -> list[WorthRun]:
    return [cell(method, peers, steps, **more) for method in methods.split()]


BOTH, ALL = "gossip diloco", "gossip diloco ddp"
CELLS: list[WorthRun] = [
    # The default cell, at 20 and 80 rounds.
    *alone(8, (200, 400, 600, 800, 1200, 1600)),
    *of_methods(ALL, 4, 400),
    *alone(8, (2400, 3200)),
    *of_methods(BOTH, 4, 400, every=5),
    *of_methods(ALL, 4, 1600),
    *alone(8, (4800, 6400)),
    *of_methods(BOTH, 4, 1600, every=5),
    # Small batches.
    *alone(2, (400, 800, 1600, 3200, 6400)),
    *of_methods(ALL, 4, 1600, batch=2),
    *of_methods(BOTH, 4, 1600, batch=2, every=5),
    # As many processor seconds and bytes as 800 steps of 8 windows with 20 steps between exchanges.
    *of_methods(BOTH, 4, 800),
    *of_methods(BOTH, 4, 1480, batch=4, every=37),
    *alone(4, (1480,), every=37),
    *alone(4, (2960, 4440)),
    *of_methods(BOTH, 4, 2200, batch=2, every=55),
    *of_methods(BOTH, 4, 1600, batch=2, every=80),
    # Around today's default: batch 4 and 80 rounds.
    *of_methods("gossip noloco diloco ddp", 4, 1600, batch=4),
    *of_methods(BOTH, 4, 1600, batch=4, every=5),
    *of_methods(BOTH, 8, 1600, batch=4),
    *alone(4, (6400,)),
    *of_methods("ddp", 8, 1600, batch=4),
    *of_methods("diloco", 8, 1600, batch=4, every=5),
    *of_methods(BOTH, 2, 1600, batch=4),
    *of_methods("gossip", 4, 1600, batch=4, own=True),
    *of_methods(BOTH, 4, 1600, batch=4, bend=2.0),
    *of_methods("diloco", 4, 1600, batch=4, outer=(1.0, 0.0)),
    # Steps between exchanges.
    *of_methods(BOTH, 4, 400, every=2),
    *of_methods(BOTH, 4, 400, every=1),
    *of_methods(BOTH, 4, 400, every=50),
    *of_methods(BOTH, 4, 1600, every=2),
    # Numbers of peers.
    *of_methods(ALL, 8, 400),
    *of_methods(BOTH, 2, 400),
    *of_methods(ALL, 8, 1600, batch=2),
    *of_methods(BOTH, 8, 1600, batch=2, every=5),
    *of_methods(BOTH, 16, 1600, batch=2, every=5),
    # Short rounds early, long ones late, at equal bytes.
    *of_methods(BOTH, 4, 400, bend=2.0),
    *of_methods(BOTH, 4, 1600, bend=2.0),
    # A warm start, and own data.
    *alone(8, (400, 800, 1600), start=1600),
    *of_methods(ALL, 4, 400, start=1600),
    *of_methods(BOTH, 4, 400, own=True),
    # Rules.
    *of_methods("diloco", 4, 400, outer=(1.0, 0.0)),
    *of_methods("diloco", 4, 1600, outer=(1.0, 0.0)),
    *of_methods("diloco", 4, 1600, outer=(0.7, 0.9)),
    *of_methods("noloco", 4, 1600),
    # Longer runs.
    *alone(8, (9600, 12800)),
    *of_methods(ALL, 8, 1600),
    *of_methods(BOTH, 4, 6000),
]

CHECKS: list[WorthRun] = [
    *alone(4, (1480,), every=37, text=KJV),
    *of_methods("gossip diloco ddp", 4, 1600, batch=4, text=KJV),
    *alone(4, (2960, 4440), text=KJV),
    *of_methods("noloco", 4, 1600, batch=4, text=KJV),
]


def rate(rung: int) -> float:
    return float(f"{4e-3 * 2.0**rung:.6g}")


RUNGS = {rate(rung): rung for rung in range(LOWEST, HIGHEST + 1)}


def name_of(record: Record | WorthRun) -> str:
    """Return the key of the cell that a record or run belongs to."""
    run = record if isinstance(record, WorthRun) else run_of(record)
    return json.dumps(replace(run, lr=0.0, seed=-1).key)


def run_of(record: Record) -> WorthRun:
    fields = {name: record[name] for name in WorthRun.__slots__ if name in record}
    if "outer" in fields:
        fields["outer"] = tuple(fields["outer"])
    return WorthRun(**fields)


def kept() -> list[Record]:
    return [json.loads(line) for line in RUNS.read_text().splitlines()] if RUNS.exists() else []


def tuning(found: Sequence[Record]) -> dict[int, float]:
    """Return the loss of each rung that was played. A run that diverged counts as infinite."""
    losses = {RUNGS[one["lr"]]: one["loss"] for one in found if one["seed"] == TUNING}
    return {rung: math.inf if loss is None else loss for rung, loss in sorted(losses.items())}


def wanted(found: Sequence[Record], of: WorthRun) -> list[WorthRun]:
    """Return the runs of a cell that can be played next. `found`: its records, and those of the cell that it is tuned
    with. A check waits until that one is tuned."""
    losses, runs = tuning(found), []
    if missing := [rung for rung in (0, 1) if rung not in losses]:
        runs = [replace(of, lr=rate(rung), seed=TUNING) for rung in missing]
    else:
        best = min(losses, key=losses.__getitem__)
        if best == max(losses) and best < HIGHEST:
            runs = [replace(of, lr=rate(best + 1), seed=TUNING)]
        elif best == min(losses) and best > LOWEST:
            runs = [replace(of, lr=rate(best - 1), seed=TUNING)]
    if runs:
        return runs if of == tuned_with(of) else []
    there = {one["seed"] for one in found if one["lr"] == rate(best)}
    return [replace(of, lr=rate(best), seed=seed) for seed in seeds_of(of) if seed not in there]


def tuned_with(of: WorthRun) -> WorthRun:
    """Return the cell whose tuning determines the rate of this one: itself, or for a check the cell of the map."""
    return replace(of, text="stdlib")


def seeds_of(of: WorthRun) -> tuple[int, ...]:
    return SEEDS if of == tuned_with(of) else CHECK_SEEDS


def by_cell(records: Iterable[Record]) -> Cells:
    """Return the records of each cell, by its name."""
    found: Cells = {}
    for one in records:
        found.setdefault(name_of(one), []).append(one)
    return found


def records_of(cells: Cells, of: WorthRun) -> list[Record]:
    """Return the records of a cell, and those of the cell that it is tuned with."""
    return [one for name in {name_of(of), name_of(tuned_with(of))} for one in cells.get(name, [])]


def next_batch(records: Sequence[Record], rows: int, cells: Sequence[WorthRun] = CELLS) -> list[WorthRun]:
    """Return the next runs to play in one stack: the first missing run, then further ones with the same steps and batch
    while at most `rows` peers fit. Empty: everything was played."""
    found = by_cell(records)
    batch: list[WorthRun] = []
    for of in cells:
        if batch and (of.steps, of.batch) != (batch[0].steps, batch[0].batch):
            continue
        for run in wanted(records_of(found, of), of):
            if not batch or sum(one.peers for one in batch) + run.peers <= rows:
                batch.append(run)
    return batch


def play_on(minutes: float, rows: int, check: Path | None) -> None:
    """Play missing runs and append their records to `RUNS`. `check`: folder of the other text, to play `CHECKS`; None:
    play `CELLS`."""
    ends = time.monotonic() + 60 * minutes
    section = DataSection(kind="text", digest=KJV_DIGEST) if check else DataSection(kind="stdlib", digest=DIGEST)
    corpus = load_corpus(section, str(check) if check else None, CONTEXT)
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    cells = CHECKS if check else CELLS
    while time.monotonic() < ends and (batch := next_batch(kept(), rows, cells)):
        for one in play(batch, corpus):
            with RUNS.open("a") as file:
                file.write(json.dumps({**one, "commit": product_commit()}) + "\n")
            print(json.dumps(one), flush=True)


def best_rung(cells: Cells, of: WorthRun) -> int:
    """Return the rung with the least loss in the tuning."""
    losses = tuning(records_of(cells, of))
    return min(losses, key=losses.__getitem__)


def scores(cells: Cells, of: WorthRun, measure: str = "loss") -> dict[int, float]:
    """Return the loss of each seed at the cell's tuned rate. Empty: the cell is not complete."""
    found = records_of(cells, of)
    if name_of(of) not in cells or wanted(found, of):
        return {}
    lr = rate(best_rung(cells, of))
    return {one["seed"]: one[measure] for one in found if one["lr"] == lr and one["seed"] in seeds_of(of)}


@dataclass(frozen=True, slots=True)
class CellResult:
    """A cell that is complete."""

    run: WorthRun
    """The run, with the tuned rate."""
    losses: dict[int, float]
    """Loss by seed."""
    late: float
    """Mean loss of the mean of the last rounds' params."""
    speed_ups: list[float]
    """Speed-up of each seed against `single` with the same batch. Infinite: above what the longest `single` can show.
    0: below the shortest one, or there is no `single`."""
    of_best: list[float]
    """The same against `single` with its best batch."""

    @property
    def loss(self) -> float:
        return statistics.fmean(self.losses.values())

    @property
    def bytes_each(self) -> float:
        """Bytes that a peer sends per parameter over the whole run."""
        if self.run.method == DDP:
            return 8.0 * (1 - 1 / self.run.peers) * self.run.steps
        one = {"pair": 2.0, "group": 8.0 * (1 - 1 / self.run.peers)}.get(self.run.rule.topology, 0.0)
        return one * len(self.run.exchanges)


def results_of(records: Sequence[Record]) -> list[CellResult]:
    """Return the result of each complete cell, in the order of the cells."""
    cells = by_cell(records)
    complete = [(of, found) for of in (*CELLS, *CHECKS) if (found := scores(cells, of))]
    curves: dict[tuple[str, int, int, int], list[tuple[float, float]]] = {}
    for of, losses in complete:
        if of.method == SINGLE:
            for seed, loss in losses.items():
                for batch in (of.batch, 0):  # 0: of all batches
                    curves.setdefault((of.text, batch, of.start, seed), []).append((of.tokens, loss))

    def speed_ups(of: WorthRun, losses: dict[int, float], batch: int) -> list[float]:
        found = [(curves.get((of.text, batch, of.start, seed), []), loss) for seed, loss in losses.items()]
        return [length_for(curve, loss) / of.tokens for curve, loss in found]

    return [
        CellResult(
            replace(of, lr=rate(best_rung(cells, of))),
            losses,
            statistics.fmean(scores(cells, of, "late").values()),
            speed_ups(of, losses, of.batch),
            speed_ups(of, losses, 0),
        )
        for of, losses in complete
    ]


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and half the width of its 95 % interval. None: unknown."""
    found = Worth(tuple(values), None)
    return found.mean, found.half_width


def rows_of(records: Sequence[Record]) -> Iterator[list[Cell]]:
    for one in results_of(records):
        run = one.run
        special = {name: value for name, value in run.key.items() if name in ("start", "own", "bend", "outer", "text")}
        yield [
            run.method,
            run.peers,
            run.steps,
            run.every,
            run.batch,
            " ".join(f"{name}={value}" for name, value in special.items()) or "-",
            run.lr,
            one.loss,
            one.late,
            *_shown(one.speed_ups),
            *_shown(one.of_best),
            one.bytes_each,
        ]


def _shown(speed_ups: Sequence[float]) -> list[Cell]:
    mean, half = interval(speed_ups)
    if mean is not None:
        return [mean, half if half is not None else "-"]
    return ["more" if any(map(math.isinf, speed_ups)) else "-", "-"]


HEADS = (
    "method",
    "peers",
    "steps",
    "every",
    "batch",
    "else",
    "lr",
    "loss",
    "of the last rounds' mean",
    "speed-up",
    "+-",
    "of the best batch",
    "+-",
    "bytes a parameter",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    parser.add_argument("--check", type=Path, help="play the cells of the other text, whose folder this is")
    parser.add_argument("--rows", type=int, default=16, help="peers of all runs that are played together")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.minutes:
        play_on(given.minutes, given.rows, given.check)
    records = kept()
    hours = sum(one["core_seconds"] for one in records) / 3600
    figures = [Figure("core hours that the runs took", "h", hours), Figure("runs", "", float(len(records)))]
    publish(given, ABOUT, figures, Table("Effective speed-up, 3 seeds", HEADS, list(rows_of(records))))


if __name__ == "__main__":
    main()
