"""Can the params of a pair cross the wire at half the bytes of bf16, and the loss stay what it is?

Bounds of a lattice codec: loss at most .3 % above that of bf16 at equal tokens, at most half the bytes (with what is
asked for), error at most a tenth of the difference between the two partners. About a quarter of an hour of a core each.

    python -m benchmarks.pair_codecs [--seeds 2] [--rounds 12] [--runs FILE] [--json FILE] [--results]
    python -m benchmarks.pair_codecs --tokens DIR --files DIR [--rounds 5]
    python -m benchmarks.pair_codecs --homes DIR

The first command plays four replicas of 5 million parameters with NoLoCo's outer step through each codec. The second
plays four of 110 million on shards of tokens (`benchmarks.real_size --home` keeps some), sends fp32, and measures every
codec beside it in each exchange. Its tensors lie in `--files`, 9 GB. The third measures between the newest checkpoints
of a swarm's peers. Nothing is fetched.

*Error*: L2 norm of decoded minus sent, over that of sent minus the receiver's own. *Step*: its part of the outer step.
Replicas train with the product's inner loop, one after the other, on one thread."""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from benchmarks.pair_replicas import CONTEXT, LATTICES, PEERS, SIZES, Carried, PairRun, carried, wire_of
from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.outer.state import OuterState
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.sections import DataSection
from peer.trainer.data import Corpus, load_corpus

ABOUT = Benchmark(
    "pair_codecs",
    "Can the params of a pair cross the wire at half the bytes of bf16, and the loss stay what it is?",
    "bound: at most .3 % of loss, half the bytes, a tenth of the difference as error",
)
LOSS_PERCENT, HALF, ERROR_PERCENT = 0.3, 0.5, 10.0
BASE = "bf16"
NEWEST = "peer-*/runs/*/checkpoints/*"
HEADS = ["", "bits", "asked for, %", "error, %", "step, %", "error of the last 12, %", "largest error, %"]


def mean_row(found: Sequence[Carried]) -> list[float]:
    columns = zip(*((one.bits, 100 * one.asked, 100 * one.error, 100 * one.step) for one in found), strict=True)
    worst = max(100 * one.error for one in found)
    late = statistics.mean(100 * one.error for one in found[-3 * PEERS :])
    return [*map(statistics.mean, columns), late, worst]


def by_loss(runs: Path, seeds: int, rounds: int, codecs: Sequence[str]) -> tuple[list[Figure], list[Table]]:
    """Play 5 million parameters through each codec, as far as the file does not have the run yet."""
    played = kept_runs(runs)
    for seed, name in itertools.product(range(seeds), codecs):
        if (name, seed, rounds) not in played:
            run = PairRun(SIZES["5m"], load_corpus(DataSection(), None, CONTEXT), seed, rounds, wire_of(name))
            run.play(lambda line: print(line, flush=True))
            record = {
                "codec": name,
                "seed": seed,
                "rounds": rounds,
                "loss": run.loss(),
                "row": mean_row(run.found[name]),
            }
            with runs.open("a") as file:
                file.write(json.dumps(record) + "\n")
    played = {key: record for key, record in kept_runs(runs).items() if key[2] == rounds}
    names = list(dict.fromkeys(name for name, _, _ in played))
    both = {name: [seed for of, seed, _ in played if of == name and (BASE, seed, rounds) in played] for name in names}
    over = {
        name: [100 * (played[name, seed, rounds]["loss"] / played[BASE, seed, rounds]["loss"] - 1) for seed in of]
        for name, of in both.items()
    }
    means = {
        name: [
            statistics.mean(column) for column in zip(*(played[name, seed, rounds]["row"] for seed in of), strict=True)
        ]
        for name, of in both.items()
    }
    figures = []
    for name in (name for name in LATTICES if name in over):
        figures += [
            Figure(f"{name}: loss over that of bf16", "%", statistics.mean(over[name]), LOSS_PERCENT),
            Figure(f"{name}: bytes, of those of bf16", "", means[name][0] / 16, HALF),
        ]
    rows: list[list[str | float | None]] = [
        [name, seed, played[name, seed, rounds]["loss"], percent]
        for name, of in both.items()
        for seed, percent in zip(of, over[name], strict=True)
    ]
    losses = Table("loss of the hold-out", ["", "seed", "nats a byte", "over bf16, %"], rows)
    return figures, [losses, Table("payloads", HEADS, [[name, *row] for name, row in means.items()])]


def kept_runs(file: Path) -> dict[tuple[str, int, int], dict[str, Any]]:
    """Read the runs that were played: (codec, seed, rounds)."""
    records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {(one["codec"], one["seed"], one["rounds"]): one for one in records}


def tokens_in(folder: Path) -> Corpus:
    """Read the shards of a folder that `peer data build` wrote."""
    dtype = np.dtype(json.loads((folder / "index.json").read_text())["dtype"]).newbyteorder("<")
    train, holdout = (
        np.concatenate([np.fromfile(file, dtype) for file in sorted(folder.glob(f"{part}-*.tokens"))])
        for part in ("train", "holdout")
    )
    return Corpus(train, holdout, "0" * 64)


def by_error(tokens: Path, files: Path, rounds: int) -> tuple[list[Figure], list[Table]]:
    """Play 110 million parameters in fp32, with all codecs beside."""
    beside = [wire_of(name) for name in (BASE, *LATTICES)]
    run = PairRun(SIZES["110m"], tokens_in(tokens), 0, rounds, wire_of("fp32"), beside, files)
    run.play(lambda line: print(line, flush=True))
    return of_snapshots(run.distances, {wire.name: run.found[wire.name] for wire in beside})


def of_snapshots(distances: Sequence[float], found: dict[str, list[Carried]]) -> tuple[list[Figure], list[Table]]:
    """Tell the errors of snapshots: two payloads of each codec for each distance."""
    figures = []
    for name in LATTICES:
        worst, bits = (max(getattr(one, what) for one in found[name]) for what in ("error", "bits"))
        figures += [
            Figure(f"{name}: largest error", "%", 100 * worst, ERROR_PERCENT),
            Figure(f"{name}: largest payload, of bf16's", "", bits / 16, HALF),
        ]
    rows = []
    for number, distance in enumerate(distances):
        mean = [100 * statistics.mean(one.error for one in of[2 * number : 2 * number + 2]) for of in found.values()]
        asks = [100 * statistics.mean(one.asked for one in found[name][2 * number :][:2]) for name in LATTICES]
        rows.append([number, 100 * distance, *mean, *asks])
    heads = [
        "snapshot",
        "distance, %",
        *(f"error of {name}, %" for name in found),
        *(f"asked, {n}, %" for n in LATTICES),
    ]
    tables = [Table("payloads", HEADS, [[name, *mean_row(of)] for name, of in found.items()])]
    return figures, [*tables, Table("two payloads of each pair", heads, rows)]


def kept(homes: Path) -> Iterator[tuple[Tensor, OuterState]]:
    """Read the params and outer state of each peer below a folder."""
    for folder in sorted(homes.glob(NEWEST)):
        with (
            safe_open(folder / "outer.safetensors", "pt") as outer,
            safe_open(folder / "trainer.safetensors", "pt") as own,
        ):
            params, *state = own.get_tensor("params"), *map(outer.get_tensor, ("outer_params", "outer_momentum"))
        yield params, OuterState(Layout.whole([TensorSpec("all", tuple(params.shape))]), *state)


def of_homes(homes: Path) -> tuple[list[Figure], list[Table]]:
    """Measure between all pairs of a swarm's peers. Nothing is known of a partner's distance."""
    peers, distances, found = list(kept(homes)), list[float](), defaultdict[str, list[Carried]](list)
    for a, b in itertools.combinations(peers, 2):
        distances.append(float((a[0] - b[0]).norm() / a[0].norm()))
        for (sent, outer), (own, receiver) in ((a, b), (b, a)):
            for name in (BASE, *LATTICES):
                found[name].append(carried(wire_of(name), 0, sent, outer.params, receiver, own))
    return of_snapshots(distances, found)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--runs", type=Path, default=Path("pair_codecs.jsonl"), help="file of the runs that are played")
    parser.add_argument("--codecs", default="bf16,modulo7,modulo6", help="through which 5 million parameters go")
    parser.add_argument("--tokens", type=Path, metavar="DIR", help="shards of 32,000 kinds of tokens, for 110 million")
    parser.add_argument("--files", type=Path, metavar="DIR", help="with --tokens: where the replicas lie")
    parser.add_argument("--homes", type=Path, metavar="DIR", help="the folder of a swarm's homes")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if (given.tokens is None) != (given.files is None):
        parser.error("--tokens and --files belong together")
    measured, variant = chosen(given)
    figures, tables = measured
    publish(given, ABOUT, figures, *tables, variant=variant)


def chosen(given: argparse.Namespace) -> tuple[tuple[list[Figure], list[Table]], str]:
    """Measure what the options say, and name it."""
    if given.homes is not None:
        return of_homes(given.homes), "homes"
    if given.tokens is not None:
        return by_error(given.tokens, given.files, given.rounds or 5), "110m"
    return by_loss(given.runs, given.seeds, given.rounds or 12, given.codecs.split(",")), ""


if __name__ == "__main__":
    main()
