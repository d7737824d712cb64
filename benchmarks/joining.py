"""Does joining pay? NoLoCo against no exchange at equal tokens, several seeds, side by side.

    python benchmarks/joining.py [--seeds 3] [--out joining.json]

Prints a table: mean validation loss of the peers and spread of the replicas, with and without exchange, and ratios."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

MANIFEST = Path(__file__).with_name("joining.toml")


def run(preset: str, seed: int, folder: Path) -> dict[str, Any]:
    report = folder / f"{preset}-{seed}.json"
    command = [sys.executable, "-m", "peer", "swarm", "--manifest", str(MANIFEST), "--peers", "4", "--steps", "600"]
    command += ["--preset", preset, "--seed", str(seed), "--home", str(folder / f"{preset}-{seed}")]
    with (folder / f"{preset}-{seed}.log").open("w") as log:
        subprocess.run([*command, "--report", str(report)], check=True, stdout=log, stderr=log, timeout=900)
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    print(f"{'seed':>4} {'noloco':>8} {'none':>8} {'gain %':>7} {'spread':>9} {'none':>8} {'ratio':>6} {'part.':>6}")
    with tempfile.TemporaryDirectory(prefix="peer-joining-") as name:
        for seed in range(options.seeds):
            noloco, none = (run(preset, seed, Path(name))["swarm"] for preset in ("noloco", "none"))
            row = {
                "seed": seed,
                "noloco_loss": noloco["val_loss_mean"],
                "none_loss": none["val_loss_mean"],
                "gain_percent": 100 * (1 - noloco["val_loss_mean"] / none["val_loss_mean"]),
                "noloco_spread": noloco["replica_spread"],
                "none_spread": none["replica_spread"],
                "spread_ratio": noloco["replica_spread"] / none["replica_spread"],
                "participation": noloco["participation"],
                "ledgers": [noloco["ledger"], none["ledger"]],
            }
            rows.append(row)
            print(
                f"{seed:>4} {row['noloco_loss']:>8.4f} {row['none_loss']:>8.4f} {row['gain_percent']:>7.2f} "
                f"{row['noloco_spread']:>9.5f} {row['none_spread']:>8.4f} {row['spread_ratio']:>6.3f} "
                f"{row['participation']:>6.3f}",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
