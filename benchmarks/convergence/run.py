"""Do the methods stand as they should at equal tokens? Real swarms of `--replicas` processes on this machine, one after
the other, on the regimes beside this file (Sm and S from random parameters, W from a checkpoint that this makes first):
one worker with the whole batch (dp), no exchange (none), and the presets. A replica takes 8 / M windows a step. With
--shards each replica has texts of its own, neighbours among the files, and all evaluate on the same; dp sees all texts.

    python benchmarks/convergence/run.py W [--presets dp,none,diloco] [--seeds 1] [--shards]
                                           [--set sync.sync_every=10] [--json FILE]

Prints, for every preset and seed, the mean validation loss in nats a byte of the replicas' own params and of their
outer_params, the spread of the replicas, participation, the part of the time the trainers waited, and the excess over
dp; then the medians over the seeds."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from peer import __version__
from peer.run.sections import DataSection
from peer.trainer.data import load_corpus

HERE = Path(__file__).parent
STEPS = {"Sm": 600, "S": 1200, "W": 300}
WARM_STEPS, WARM_BATCH = 500, 16
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
        command = [sys.executable, "-m", "peer", "swarm", "--manifest", str(HERE / f"{self._regime}.toml")]
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
            subprocess.run(command, check=True, stdout=log, stderr=log, timeout=1800)
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


def show(rows: list[dict[str, Any]]) -> None:
    base = [row["own_loss"] for row in rows if row["preset"] == "dp"]
    print(f"{'preset':18} {'n':>2} {'own':>8} {'outer':>8} {'over dp':>8} {'spread':>8} {'part.':>6} {'waited':>7}")
    for preset in dict.fromkeys(row["preset"] for row in rows):
        some = [row for row in rows if row["preset"] == preset]

        def median(name: str, some: list[dict[str, Any]] = some) -> float:
            values = [row[name] for row in some if row[name] is not None]
            return statistics.median(values) if values else float("nan")

        over = f"{100 * (median('own_loss') / statistics.mean(base) - 1):+7.1f}%" if base else "-"
        print(
            f"{preset:18} {len(some):2} {median('own_loss'):8.4f} {median('outer_loss'):8.4f} {over:>8} "
            f"{median('spread'):8.4f} {median('participation'):6.2f} {100 * median('waited'):6.1f}%"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regime", choices=STEPS)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--replicas", type=int, default=4, choices=(2, 4, 8))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--shards", action="store_true", help="texts of its own for each replica")
    parser.add_argument("--json", type=Path)
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
                if given.json:
                    machine = {"cpus": os.cpu_count(), "system": platform.platform(), "version": __version__}
                    given.json.write_text(json.dumps({"regime": given.regime, "machine": machine, "rows": rows}))
    show(rows)


if __name__ == "__main__":
    main()
