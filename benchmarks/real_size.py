"""Does what holds for a tiny model hold for one of 110 million parameters, on two cores?

Promises 2, 5, 7 and 9 at a size that fills a machine. Bounds: every due round is exchanged, the ledger balances, and no
callback holds the daemon's event loop for 100 ms of processor time. The daemon's own memory stays within 14 bytes a
parameter in pairs with a momentum, and within 10 in pairs without one and in groups. It differs from the memory that
`peer manifest show` prints by at most a tenth. Leaving takes at most twice the time that `peer status` announced. About
ten minutes a preset.

    python -m benchmarks.real_size [--parameters 110m] [--preset noloco --preset streaming-diloco] [--peers 3]
        [--join 1] [--rounds 6] [--round-s 40] [--home DIR] [--json FILE] [--results]

Real processes train the built-in llama on BPE tokens of Python's own source. A peer is killed (SIGKILL) and started
again, then one joins while the others train, then one leaves. `--parameters small` tries all of it in two minutes.
`--parameters 350m --peers 1` is a donor and one joiner. What breaks first is named, and ends its preset."""

from __future__ import annotations

import asyncio
import json
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.real_size_swarm import Broke, Played, Wish, play
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.python_child import run_python

ABOUT = Benchmark(
    "real_size",
    "Does what holds for a tiny model hold for one of 110 million parameters, on two cores?",
    "2 (conservation), 5 (control beats bulk), 7 (the trainer does not wait), 9 (leaving)",
    smallest="--parameters small --preset gossip --peers 2 --rounds 2",
    is_long=True,
)
SHAPES = {
    "small": (2000, 128, 352, 4, 4),
    "110m": (32000, 768, 2048, 12, 12),
    "350m": (32000, 1024, 2816, 24, 16),
}
"""Size -> (vocabulary, hidden size, intermediate size, layers, heads)."""
TEXT_BYTES = {"small": 3_000_000, "110m": 24_000_000, "350m": 24_000_000}
PRESETS = ("gossip", "noloco", "streaming-diloco")
FRAGMENTS = 4
CALLBACK_MS, LEAVING_TIMES, LEAVING_S = 100.0, 2.0, 60.0
MEMORY = {"gossip": 10.0, "noloco": 14.0, "streaming-diloco": 10.0}
"""Preset -> bound of the daemon's own memory in bytes per parameter. With gossip the daemon has no momentum: 4 bytes
less than with noloco."""
TOLD_PERCENT = 10.0
LARGE = 50e6
"""Least number of parameters for which the memory bounds apply."""
COMMAND_S = 1800.0


def made(folder: Path, size: str) -> None:
    """Make tokenizer and shards in a folder, unless it has them."""
    if (folder / "data" / "index.json").exists():
        return
    texts = folder / "texts"
    texts.mkdir(parents=True, exist_ok=True)
    left = TEXT_BYTES[size]
    libraries = (Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib")) / "torch")
    for number, source in enumerate(file for folder in libraries for file in sorted(folder.rglob("*.py"))):
        text = source.read_bytes()
        if left > len(text) > 1000:
            (texts / f"{number:05}.txt").write_bytes(text)
            left -= len(text)
    vocabulary = str(SHAPES[size][0])
    run(folder, "tokenizer", "train", "texts", "--vocab", vocabulary, "--out", "tokenizer.json", "--yes")
    run(folder, "data", "build", "texts", "--tokenizer", "tokenizer.json", "--out", "data", "--yes")


def run(folder: Path, *command: str) -> str:
    done = run_python("peer", *command, cwd=folder, capture_output=True, text=True, timeout=COMMAND_S, check=False)
    if done.returncode != 0:
        raise Broke(f"peer {' '.join(command)}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
    return str(done.stdout)


def manifest(
    folder: Path, home: Path, size: str, preset: str, round_s: float, peers: int, batch: int = 1
) -> dict[str, Any]:
    """Write run.toml for the operator whose node has this home. Return the output of `manifest show`."""
    vocabulary, hidden, intermediate, layers, heads = SHAPES[size]
    fragments = FRAGMENTS if preset.startswith("streaming") else 1
    settings = {
        "model.vocab_size": vocabulary,
        "model.hidden_size": hidden,
        "model.intermediate_size": intermediate,
        "model.num_hidden_layers": layers,
        "model.num_attention_heads": heads,
        "model.num_key_value_heads": heads,
        "train.batch": batch,
        "train.total_rounds": 100000,
        "train.eval_every": 4 * fragments,
        "train.eval_windows": 4,
        "optimizer.lr": 3e-4,
        "sync.clock": "seconds",
        "sync.sync_every": fragments * round_s,
        **({"sync.fragments": fragments} if fragments > 1 else {}),
        **({"sync.founders": peers} if "diloco" in preset and peers > 1 else {}),
    }
    words = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    files = ("--tokenizer", "tokenizer.json", "--data", "data", "--preset", preset, "--home", str(home / "bootstrap"))
    file = str(home / "run.toml")
    run(folder, "manifest", "new", file, *files, *words)
    told: dict[str, Any] = json.loads(run(folder, "manifest", "show", file, "--json"))
    return told


def figures_of(preset: str, told: dict[str, Any], played: Played) -> list[Figure]:
    parameters = int(told["parameters"])
    own = max((used for name, used in played.own_bytes.items() if name != "bootstrap"), default=0) / parameters
    promised = float(told["memory"]["daemon"]) / parameters
    large = parameters >= LARGE  # with a small model most of the memory is the interpreter's own
    announced = played.leaving.get("announced_s")
    over = 100 * own / promised - 100
    left_s = played.leaving.get("seconds")
    times = left_s / announced if announced and left_s is not None else None
    return [
        Figure(f"{preset}: exchanged of the rounds due", "%", played.participation_percent, None, 100.0),
        Figure(f"{preset}: rounds that most peers exchanged in", "", played.rounds),
        Figure(f"{preset}: ledger, off by", "", played.imbalance, 0),
        Figure(f"{preset}: longest callback of the event loop", "ms", played.worst_callback_ms, CALLBACK_MS),
        Figure(f"{preset}: longest callback of the operator's node", "ms", played.operators_worst_ms, CALLBACK_MS),
        Figure(f"{preset}: the daemon's own memory", "B/parameter", own, MEMORY[preset] if large else None),
        Figure(f"{preset}: that over what manifest show tells", "%", over, TOLD_PERCENT if large else None),
        Figure(f"{preset}: leaving", "s", left_s, LEAVING_S + played.leaving.get("writing_s", 0.0)),
        Figure(f"{preset}: leaving, as announced", "", times, LEAVING_TIMES),
        Figure(f"{preset}: a donor's rate", "MB/s", played.donation.get("mb_per_s")),
        Figure(f"{preset}: training while it donates, of the pace before", "%", played.donation.get("pace_percent")),
    ]


def table_of(preset: str, played: Played) -> Table:
    rows: list[list[Any]] = [[name, value] for name, value in played.told().items()]
    return Table(preset, ["", ""], rows)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--parameters", choices=list(SHAPES), default="110m")
    parser.add_argument("--preset", action="append", choices=PRESETS)
    parser.add_argument("--peers", type=int, default=3)
    parser.add_argument("--join", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--round-s", type=float, help="default: 40, small: 8")
    parser.add_argument("--home", type=Path, help="kept there: data, homes and logs")
    given = parsed(parser, ABOUT)
    round_s = given.round_s or (8.0 if given.parameters == "small" else 40.0)
    figures, tables = list[Figure](), list[Table]()
    with tempfile.TemporaryDirectory(prefix="peer-size-") as name:
        folder = given.home or Path(name)
        for preset in given.preset or PRESETS:
            made(folder, given.parameters)
            home = Path(tempfile.mkdtemp(prefix=f"{preset}-", dir=folder))
            told = manifest(folder, home, given.parameters, preset, round_s, given.peers)
            wish = Wish(home / "run.toml", folder / "data", home, given.peers, given.join, given.rounds, round_s)
            played = asyncio.run(play(wish))
            print(json.dumps(played.told(), indent=1), flush=True)
            figures += figures_of(preset, told, played)
            tables.append(table_of(preset, played))
    usual = (given.parameters, given.peers) == ("110m", 3)
    parts = [*(given.preset or ()), *(() if usual else (given.parameters, str(given.peers)))]
    variant = "-".join(parts)
    publish(given, ABOUT, figures, *tables, variant=variant)


if __name__ == "__main__":
    main()
