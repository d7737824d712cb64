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
* The text is the source of the standard library of CPython 3.11 (data of kind `stdlib`), the same digest in all runs.

Bound: none; the figures say how many runs are played. Wanted are 2.5 with 4 peers and 4 with 8.

    python -m benchmarks.worth [--minutes N] [--rows 16] [--json FILE] [--results]

Without minutes the runs that are kept are summed up, and nothing is played. With them, runs are played and appended to
results/worth/runs.jsonl. None is played twice, and none begins after so many minutes. `core_seconds` is what a run
took."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, parsed, product_commit, publish
from benchmarks.worth_runs import CONTEXT, DDP, SINGLE, WorthRun, play
from peer.lab.bench.tables import Cell
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
TUNING, SEEDS = 100, (0, 1, 2)
LOWEST, HIGHEST = -4, 5
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Student's t for an interval of 95 %, by the number of seeds."""
Record = dict[str, Any]


def cell(method: str, peers: int, steps: int, *, every: int = 20, batch: int = 8, **more: Any) -> WorthRun:
    """A cell, as a run whose rate and seed mean nothing."""
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
    # How often.
    *of_methods(BOTH, 4, 400, every=2),
    *of_methods(BOTH, 4, 400, every=1),
    *of_methods(BOTH, 4, 400, every=50),
    *of_methods(BOTH, 4, 1600, every=2),
    # More peers.
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
    # Long.
    *alone(8, (9600, 12800)),
    *of_methods(ALL, 8, 1600),
    *of_methods(BOTH, 4, 6000),
]


def rate(rung: int) -> float:
    return float(f"{4e-3 * 2.0**rung:.6g}")


RUNGS = {rate(rung): rung for rung in range(LOWEST, HIGHEST + 1)}


def name_of(record: Record | WorthRun) -> str:
    """The cell of a record, as a key."""
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
    """Return the runs of a cell that can be played next. `found`: its records."""
    losses = tuning(found)
    if missing := [rung for rung in (0, 1) if rung not in losses]:
        return [replace(of, lr=rate(rung), seed=TUNING) for rung in missing]
    best = min(losses, key=losses.__getitem__)
    if best == max(losses) and best < HIGHEST:
        return [replace(of, lr=rate(best + 1), seed=TUNING)]
    if best == min(losses) and best > LOWEST:
        return [replace(of, lr=rate(best - 1), seed=TUNING)]
    there = {one["seed"] for one in found if one["lr"] == rate(best)}
    return [replace(of, lr=rate(best), seed=seed) for seed in SEEDS if seed not in there]


def next_batch(records: Sequence[Record], rows: int) -> list[WorthRun]:
    """Return runs that can be stacked, with so many peers together at most, but one run at least: the first that
    misses, and more of its kind from the cells behind it. Empty: all is played."""
    found: dict[str, list[Record]] = {}
    for one in records:
        found.setdefault(name_of(one), []).append(one)
    batch: list[WorthRun] = []
    for of in CELLS:
        if batch and (of.steps, of.batch) != (batch[0].steps, batch[0].batch):
            continue
        for run in wanted(found.get(name_of(of), []), of):
            if not batch or sum(one.peers for one in batch) + run.peers <= rows:
                batch.append(run)
    return batch


def play_on(minutes: float, rows: int) -> None:
    ends = time.monotonic() + 60 * minutes
    corpus = load_corpus(DataSection(kind="stdlib", digest=DIGEST), None, CONTEXT)
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < ends and (batch := next_batch(kept(), rows)):
        for one in play(batch, corpus):
            with RUNS.open("a") as file:
                file.write(json.dumps({**one, "commit": product_commit()}) + "\n")
            print(json.dumps(one), flush=True)


def scores(records: Sequence[Record], of: WorthRun, measure: str = "loss") -> dict[int, float]:
    """Return the loss of each seed at the cell's tuned rate. Empty: it is not complete."""
    found = [one for one in records if name_of(one) == name_of(of)]
    losses = tuning(found)
    if not losses or wanted(found, of):
        return {}
    lr = rate(min(losses, key=losses.__getitem__))
    return {one["seed"]: one[measure] for one in found if one["lr"] == lr and one["seed"] in SEEDS}


def speed_up(single: dict[int, dict[int, float]], of: WorthRun, losses: dict[int, float]) -> list[float]:
    """Return the effective speed-up of each seed. `single`: by seed, the loss after so many steps of this batch.
    Infinite: more than the longest `single` can say."""
    found = []
    for seed, loss in losses.items():
        curve = sorted(single.get(seed, {}).items())
        found.append(_steps_to(curve, loss) / of.steps)
    return found


def _steps_to(curve: Sequence[tuple[int, float]], loss: float) -> float:
    """Return after how many steps `single` has this loss: linear in log(steps) between two lengths."""
    before = None
    for steps, there in curve:
        if there <= loss:
            if before is None:  # or shorter than anything that was played
                return float(steps) if there == loss else math.nan
            fall = (before[1] - loss) / (before[1] - there)
            return math.exp(math.log(before[0]) + fall * (math.log(steps) - math.log(before[0])))
        if before is None or there < before[1]:
            before = steps, there
    return math.inf


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the mean and half the width of its 95 % interval."""
    if not values or not all(map(math.isfinite, values)):
        return None, None
    mean = statistics.fmean(values)
    return mean, T95[len(values)] * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def rows_of(records: Sequence[Record]) -> Iterator[list[Cell]]:
    single: dict[tuple[int, int], dict[int, dict[int, float]]] = {}
    for of in CELLS:
        if of.method == SINGLE:
            for seed, loss in scores(records, of).items():
                single.setdefault((of.batch, of.start), {}).setdefault(seed, {})[of.steps] = loss
    for of in CELLS:
        losses = scores(records, of)
        if not losses:
            continue
        lr = next(one["lr"] for one in records if name_of(one) == name_of(of) and one["seed"] == 0)
        late = scores(records, of, "late")
        faster = speed_up(single.get((of.batch, of.start), {}), of, losses)
        mean, half = interval(faster)
        more = [one for one in faster if math.isinf(one)]
        bytes_each = len(of.exchanges) * {"pair": 2.0, "group": 8.0 * (1 - 1 / of.peers)}.get(of.rule.topology, 0.0)
        special = {name: value for name, value in of.key.items() if name in ("start", "own", "bend", "outer")}
        yield [
            of.method,
            of.peers,
            of.steps,
            of.every,
            of.batch,
            " ".join(f"{name}={value}" for name, value in special.items()) or "-",
            lr,
            statistics.fmean(losses.values()),
            statistics.fmean(late.values()),
            mean if mean is not None else "more" if more else "-",
            half if half is not None else "-",
            bytes_each if of.method != DDP else 8.0 * (1 - 1 / of.peers) * of.steps,
        ]


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
    "bytes a parameter",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    parser.add_argument("--rows", type=int, default=16, help="peers of all runs that are played together")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.minutes:
        play_on(given.minutes, given.rows)
    records = kept()
    hours = sum(one["core_seconds"] for one in records) / 3600
    figures = [Figure("core hours that the runs took", "h", hours), Figure("runs", "", float(len(records)))]
    publish(given, ABOUT, figures, Table("Effective speed-up, 3 seeds", HEADS, list(rows_of(records))))


if __name__ == "__main__":
    main()
