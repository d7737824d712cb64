"""How much can members of a group spoil by what they send?

Promise 11: no stranger decides; one liar of eight costs the honest at most 2 % of loss. Bounds: the loss of the honest
members, as the mean of the seeds, is at most 2 % above that of a swarm of the honest members alone with one liar of
eight, and 5 % with two. No honest member is left out. In the column `honest` the liars send honest work, which shows
how much the size of the swarm and chance change the loss. A row takes some 3 s of processor time.

    python -m benchmarks.liars [--presets diloco,rda] [--attacks flip,noise] [--liars 1,2] [--seeds 3] [--rounds 20]
                               [--set KEY=VALUE] [--json FILE] [--results]

The production peer in virtual time with the tiny trainer, as in `benchmarks.lying_partners`: 8 peers, rounds of 30
inner steps, the default manifest with a preset for groups (`rda`: `diloco` with `mean` rda). `--set` changes it. A
liar leaves nobody out of the mean of its own shard, least of all itself. A result of one preset goes to a file of its
own, and docs/explanation/security.md shows them all."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

import torch

from benchmarks.lying_partners import HONEST, MOST_PERCENT, PEERS, percent, simulation_of
from benchmarks.result import RESULTS, ROOT, Benchmark, Figure, Table, options, parsed, publish
from peer.lab.attack.play import honest_alone, liars_among, play_attack
from peer.lab.bench.tables import Cell

PRESETS = {
    "diloco": ["sync.preset=diloco"],
    "streaming-diloco": ["sync.preset=streaming-diloco"],
    "rda": ["sync.preset=diloco", "sync.mean=rda"],
    "sparseloco": ["sync.preset=sparseloco"],
    "qsr": ["sync.preset=qsr"],
    "eager": ["sync.preset=eager"],
}
ATTACKS = ("flip", "x-10", "negate", "noise")
ABOUT = Benchmark(
    "liars",
    "How much can members of a group spoil by what they send?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--presets diloco --seeds 1 --attacks flip --liars 1 --rounds 3",
)
HEADS = ("preset", "liars", "attack", "% over alone", "least", "most", "liars left out", "honest left out")
PAGE = "docs/explanation/security.md"
MARK = "<!-- Made by benchmarks/liars.py of results/liars-*.json. -->\n"


def rows_of(
    preset: str, count: int, attacks: Iterable[str], seeds: int, rounds: int, more: list[str]
) -> list[list[Cell]]:
    """Simulate all seeds of a preset with `count` liars. Return a table row for each attack."""
    numbers, over, out = liars_among(PEERS, count / PEERS), dict[str, list[float]](), dict[str, list[int]]()
    for seed in range(seeds):
        wish = simulation_of(seed, rounds, [*PRESETS[preset], *more])
        alone = honest_alone(wish, numbers)
        for attack in attacks:
            liars = () if attack == HONEST else numbers
            played = play_attack(wish, "flip" if attack == HONEST else attack, liars)
            over.setdefault(attack, []).append(percent(played.honest_loss, alone))
            total = out.setdefault(attack, [0, 0])
            total[0], total[1] = total[0] + played.excluded.liars, total[1] + played.excluded.honest
            print(preset, count, seed, attack, f"{over[attack][-1]:+.2f} %", played.excluded, flush=True)
    return [
        [preset, count, attack, statistics.fmean(found), min(found), max(found), *out[attack]]
        for attack, found in over.items()
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--presets", default=",".join(PRESETS))
    parser.add_argument("--attacks", default=",".join((HONEST, *ATTACKS)))
    parser.add_argument("--liars", default="1,2")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    presets, rows = given.presets.split(","), list[list[Cell]]()
    for preset in presets:
        for count in map(int, given.liars.split(",")):
            rows += rows_of(preset, count, given.attacks.split(","), given.seeds, given.rounds, given.settings)
    figures = list[Figure]()
    for preset, liars, attack, mean, _, _, _, honest in rows:
        assert isinstance(mean, float)
        assert isinstance(honest, int)
        assert isinstance(liars, int)
        name, bound = f"{preset}, {attack}, {liars} of {PEERS}", MOST_PERCENT.get(0 if attack == HONEST else liars)
        figures.append(Figure(name, "% of loss", mean, bound))
        figures.append(Figure(name, "honest left out", honest, 0.0))
    publish(given, ABOUT, figures, Table("", HEADS, rows), variant=presets[0] if len(presets) == 1 else "")


def page(file: Path = ROOT / PAGE, folder: Path = RESULTS) -> str:
    """Return the security page with the table of these results."""
    found = dict[tuple[str, int], dict[str, str]]()
    for result in sorted(folder.glob("liars-*.json")):
        for preset, count, attack, mean, least, most, *_ in json.loads(result.read_text())["tables"][0]["rows"]:
            found.setdefault((preset, count), {})[attack] = f"{mean:+.1f} ({least:+.1f} to {most:+.1f})"
    lines = ["| preset | liars of 8 | " + " | ".join(f"`{attack}`" for attack in (*ATTACKS, HONEST)) + " |"]
    lines.append("| --- " * (len(ATTACKS) + 3) + "|")
    for preset in PRESETS:
        for count in (1, 2):
            if cells := found.get((preset, count)):
                told = " | ".join(cells.get(attack, "–") for attack in (*ATTACKS, HONEST))
                lines.append(f"| `{preset}` | {count} | {told} |")
    table = "\n".join(lines) + "\n\n" if found else ""
    return re.sub(re.escape(MARK) + r"\n(\|[^\n]*\n)*\n*", lambda _: f"{MARK}\n{table}", file.read_text())


if __name__ == "__main__":
    main()
