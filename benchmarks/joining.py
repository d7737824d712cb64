"""Does joining pay? NoLoCo against no exchange at equal tokens, several seeds.

Promise 8 in the words of a volunteer: work that is exchanged is worth more. Bounds: every seed's loss is lower with
exchange than without it, the replicas' spread is at most a tenth, and the ledger balances. About two minutes a seed.

    python -m benchmarks.joining [--seeds 3] [--json FILE] [--results]

Four peers of a swarm of real processes train 600 steps and exchange every ten (`joining.toml`), once with the preset
`noloco` and once with `none`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.python_child import run_python

MANIFEST = Path(__file__).with_name("joining.toml")
GAIN_PERCENT, SPREAD_RATIO = 0.0, 0.1
ABOUT = Benchmark(
    "joining", "Does joining pay at equal tokens?", "bound: an exchange lowers the loss; 2 (conservation)"
)


def run(preset: str, seed: int, folder: Path) -> dict[str, Any]:
    report = folder / f"{preset}-{seed}.json"
    command = ["swarm", "--manifest", str(MANIFEST), "--peers", "4", "--steps", "600"]
    command += ["--preset", preset, "--seed", str(seed), "--home", str(folder / f"{preset}-{seed}")]
    with (folder / f"{preset}-{seed}.log").open("w") as log:
        run_python("peer", *command, "--report", str(report), check=True, stdout=log, stderr=log, timeout=900)
    loaded: dict[str, Any] = json.loads(report.read_text())
    return loaded


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="peer-joining-") as name:
        for seed in range(given.seeds):
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
                "imbalance": sum(abs(imbalance(one["ledger"])) for one in (noloco, none)),
            }
            rows.append(row)
            print(row, flush=True)
    worst = [
        Figure("least gain of a seed", "%", min(row["gain_percent"] for row in rows), None, GAIN_PERCENT),
        Figure("largest spread, of the control's", "", max(row["spread_ratio"] for row in rows), SPREAD_RATIO),
        Figure("ledger, off by", "", sum(row["imbalance"] for row in rows), 0),
    ]
    publish(given, ABOUT, worst, Table("", list(rows[0]), [list(row.values()) for row in rows]))


def imbalance(book: dict[str, int]) -> int:
    return book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]


if __name__ == "__main__":
    main()
