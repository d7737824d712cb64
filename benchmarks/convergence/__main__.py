"""Do the methods stand as they should at equal tokens?

Promise: none by number; the presets are worth choosing. Bounds: every preset's loss is below that of no exchange, a
group ends with one state, and the ledger balances. Ten to forty minutes a seed.

    python -m benchmarks.convergence W [--presets dp,none,diloco] [--replicas 4] [--seeds 1] [--shards]
                                       [--set sync.sync_every=10] [--json FILE] [--results]

Swarms of real processes run one after the other, on the regimes in this folder. Sm and S begin with random parameters,
W with a checkpoint that is made first. The presets are compared with one worker that takes the batch of all (dp) and
with replicas that exchange nothing (none). A replica takes 8 / M windows a step. With --shards each replica has texts
of its own, neighbours among the files, and all evaluate on the same. dp sees all texts."""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.python_child import run_python
from peer.run.sections import DataSection
from peer.trainer.data import load_corpus

HERE = Path(__file__).parent
STEPS = {"Sm": 600, "S": 1200, "W": 300}
WARM_STEPS, WARM_BATCH = 500, 16
ABOUT = Benchmark(
    "convergence",
    "Do the methods stand as they should at equal tokens?",
    "bound: every preset beats no exchange; 2 (conservation), 3 (one truth per group)",
)
PRESETS = ("dp", "none", "diloco", "streaming-diloco", "noloco", "streaming-noloco")


class Bench:
    """`folder`: homes and reports of the swarms."""

    def __init__(self, regime: str, replicas: int, settings: list[str], folder: Path, shards: bool) -> None:
        self._regime = regime
        self._replicas = replicas
        self._settings = settings
        self._folder = folder
        self._state: Path | None = None
        self._shards = cut_corpus(folder / "texts", replicas) if shards else []

    def warm_up(self) -> None:
        """Make the checkpoint that W begins from."""
        sync = ["sync.sync_every=50", f"train.batch={WARM_BATCH}", "optimizer.lr=4e-3"]
        report = self._swarm("warm", "none", 1, WARM_STEPS, 0, sync)
        kept = self._folder.glob("warm-0/peer-1/runs/*/checkpoints/checkpoint-*")
        self._state = max(kept, key=lambda path: int(path.name.rpartition("-")[2]))
        print(f"checkpoint: {report['swarm']['val_loss_mean']:.4f} nats a byte after {WARM_STEPS} steps", flush=True)

    def run(self, preset: str, seed: int) -> dict[str, Any]:
        """One row of the table."""
        replicas = 1 if preset == "dp" else self._replicas
        batch = [f"train.batch={8 // replicas}"]
        report = self._swarm(preset, "none" if preset == "dp" else preset, replicas, STEPS[self._regime], seed, batch)
        peers, swarm = report["peers"], report["swarm"]
        waited = sum(p["seconds_waiting"] for p in peers)
        return {
            "preset": preset,
            "seed": seed,
            "own_loss": statistics.mean(p["val_loss_own"] for p in peers),
            "outer_loss": swarm["val_loss_mean"],
            "spread": swarm["replica_spread"],
            "participation": swarm["participation"],
            "waited": waited / (waited + sum(p["seconds_training"] for p in peers)),
            "tokens": sum(p["tokens"] for p in peers),
            "ledger": swarm["ledger"],
            "digests": len({p.get("outer_digest") for p in peers}),
            "wall_s": report["wall_s"],
        }

    def _swarm(self, name: str, preset: str, peers: int, steps: int, seed: int, more: list[str]) -> dict[str, Any]:
        home, report = self._folder / f"{name}-{seed}", self._folder / f"{name}-{seed}.json"
        command = ["swarm", "--manifest", str(HERE / f"{self._regime}.toml")]
        command += ["--preset", preset, "--peers", str(peers), "--steps", str(steps), "--seed", str(seed)]
        command += ["--home", str(home), "--report", str(report)]
        for setting in [*more, *(self._settings if preset == name else [])]:
            command += ["--set", setting]
        if self._state is not None:
            command += ["--state", str(self._state)]
        if self._shards and peers > 1:
            command += ["--set", "data.kind=text"]
            for number, texts in enumerate(self._shards, 1):
                command += ["--data", f"{number}@{texts}"]
        with (self._folder / f"{name}-{seed}.log").open("w") as log:
            run_python("peer", *command, check=True, stdout=log, stderr=log, timeout=1800)
        loaded: dict[str, Any] = json.loads(report.read_text())
        return loaded


def cut_corpus(folder: Path, replicas: int) -> list[Path]:
    """A folder of texts for each replica: a part of the built-in corpus in its order, and all of its hold-out."""
    corpus = load_corpus(DataSection(), None, 128)
    found = []
    for number, part in enumerate(np.array_split(corpus.train, replicas)):
        found.append(folder / str(number))
        (found[-1] / "holdout").mkdir(parents=True)
        (found[-1] / "texts").write_bytes(part.tobytes())
        (found[-1] / "holdout" / "texts").write_bytes(corpus.holdout.tobytes())
    return found


SHOWN = ("own_loss", "outer_loss", "spread", "participation", "waited", "wall_s")


def medians(rows: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Medians over the seeds, by preset. None: no row has the value."""
    found: dict[str, dict[str, float | None]] = {}
    for preset in dict.fromkeys(row["preset"] for row in rows):
        some = [row for row in rows if row["preset"] == preset]
        values = {name: [row[name] for row in some if row[name] is not None] for name in SHOWN}
        found[preset] = {name: statistics.median(each) if each else None for name, each in values.items()}
    return found


def figures(rows: list[dict[str, Any]]) -> list[Figure]:
    found, by_preset = [], medians(rows)
    none, dp = (by_preset.get(name, {}).get("own_loss") for name in ("none", "dp"))
    for preset, row in by_preset.items():
        bound = none if preset not in ("dp", "none") else None
        found.append(Figure(f"{preset}: loss of its own params", "nats a byte", row["own_loss"], bound))
        if dp and preset != "dp" and row["own_loss"]:
            found.append(Figure(f"{preset}: over dp", "%", 100 * (row["own_loss"] / dp - 1)))
    states = [row["digests"] for row in rows if "diloco" in row["preset"]]
    if states:
        found.append(Figure("states at the end of a group", "", max(states), 1))
    books = [row["ledger"] for row in rows]
    off = [book["processed"] - book["applied"] - book["dropped"] - book["outstanding"] for book in books]
    return [*found, Figure("ledger, off by", "", sum(map(abs, off)), 0)]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("regime", choices=STEPS)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--replicas", type=int, default=4, choices=(2, 4, 8))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--shards", action="store_true", help="texts of its own for each replica")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="peer-convergence-") as folder:
        bench = Bench(given.regime, given.replicas, given.settings, Path(folder), given.shards)
        if given.regime == "W":
            bench.warm_up()
        for seed in range(given.seeds):
            for preset in given.presets.split(","):
                rows.append(bench.run(preset, seed))
                row = rows[-1]
                print(f"{preset} seed {seed}: own {row['own_loss']:.4f} outer {row['outer_loss']:.4f}", flush=True)
    cells = [[preset, *row.values()] for preset, row in medians(rows).items()]
    kind = f"{given.regime}, {given.replicas} replicas, medians of {given.seeds} seeds"
    publish(given, ABOUT, figures(rows), Table(kind, ["", *SHOWN], cells))


if __name__ == "__main__":
    main()
