"""How much can partners spoil that lie about their params?

Promise 11: no stranger decides; one liar of eight costs the honest at most 2 % of loss. Bounds: the loss of the honest
peers, as the mean of the seeds, is at most 2 % above that of a swarm of the honest peers alone with one liar of eight,
and 5 % with two. In `honest` the liars send honest params, which shows how much the size of the swarm and chance change
the loss. A row takes some 3 s of processor time.

    python -m benchmarks.lying_partners [--seeds 3] [--attacks flip,far] [--liars 1,2] [--rounds 20] [--set KEY=VALUE]
                                        [--json FILE] [--results]

The production peer in virtual time with the tiny trainer: 8 peers, rounds of 30 inner steps, the default manifest.
`--set` changes it."""

from __future__ import annotations

import math
import statistics

import torch

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.lab.attack.lies import BACKDOOR, LIES
from peer.lab.attack.play import honest_alone, liars_among, play_attack
from peer.lab.bench.tables import Cell
from peer.lab.sim.run import SimulationSettings
from peer.run.manifest import default_text, derive

PEERS = 8
ROUND_S = 30
MOST_PERCENT = {1: 2.0, 2: 5.0}
HONEST = "honest"
ABOUT = Benchmark(
    "lying_partners",
    "How much can partners spoil that lie about their params?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--seeds 1 --attacks flip --liars 1 --rounds 3",
)


def simulation_of(seed: int, rounds: int, settings: list[str]) -> SimulationSettings:
    changes = [f"seed={seed}", "sync.clock=seconds", f"sync.sync_every={ROUND_S}", *settings]
    return SimulationSettings(
        peers=PEERS,
        manifest=derive(default_text(), changes),
        hours=rounds * ROUND_S / 3600,
        trainer="tiny",
        eval_every=rounds,
    )


def percent(loss: float | None, alone: float | None) -> float:
    return math.inf if loss is None or alone is None else 100 * (loss / alone - 1)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attacks", default=",".join((HONEST, *LIES, BACKDOOR)))
    parser.add_argument("--liars", default="1,2")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    rows, over = list[list[Cell]](), dict[tuple[int, str], list[float]]()
    for count in map(int, given.liars.split(",")):
        numbers = liars_among(PEERS, count / PEERS)
        for seed in range(given.seeds):
            wish = simulation_of(seed, given.rounds, given.settings)
            alone = honest_alone(wish, numbers)
            for attack in given.attacks.split(","):
                played = play_attack(
                    wish, "freeride" if attack == HONEST else attack, () if attack == HONEST else numbers
                )
                more = percent(played.honest_loss, alone)
                over.setdefault((count, attack), []).append(more)
                refused = played.excluded
                rows.append([count, seed, attack, played.honest_loss, alone, more, refused.liars, refused.honest])
                print(*rows[-1], flush=True)
    figures = [
        Figure(
            f"{attack}, {count} of {PEERS}",
            "% of loss",
            statistics.fmean(found),
            None if attack == HONEST else MOST_PERCENT.get(count),
        )
        for (count, attack), found in over.items()
    ]
    heads = ["liars", "seed", "attack", "loss", "loss alone", "% over alone", "refused: liars", "refused: honest"]
    publish(given, ABOUT, figures, Table("", heads, rows))


if __name__ == "__main__":
    main()
