"""Who exchanges on lines of homes, slow ones too, and with homes that let nothing in? Virtual time, the production
coordinator, peers of `noloco` that never met before, rounds of 30 s.

    python -m benchmarks.slow_lines [--peers 8] [--seeds 5] [--rounds 20] [--links full lte home]

Most: what could be exchanged if those who can be dialled took one of the others each (two that cannot do not pair)."""

from __future__ import annotations

import argparse
import random
from collections import Counter
from collections.abc import Collection

from peer.lab.sim.links import profile
from peer.lab.sim.swarm import SimulatedSwarm, layout_of
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.protocol.schedule import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection

PEERS, ROUND_S = 8, 30.0
CLOSED = (0.0, 0.25, 0.5, 0.75)
"""Parts of the peers, drawn by lot."""
ELEMENTS = 16
"""The params are small: these lines carry little, and how much is not the question."""


def play(
    link: str,
    closed: Collection[int],
    rounds: int,
    seed: int,
    peers: int = PEERS,
    round_s: float = ROUND_S,
    step_seconds: dict[int, float] | float = 2.0,
) -> tuple[Counter[str], Counter[str]]:
    """(outcomes of all peer-rounds, why partners failed)."""
    method = resolve(SyncSection(preset="noloco", clock="seconds", sync_every=round_s))

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            peers,
            method=method,
            rounds=RoundClock("seconds", round_s, 1, EPOCH),
            total_rounds=rounds,
            seed=seed,
            step_seconds=step_seconds,
            layout=layout_of(method, ELEMENTS),
            eval_every=100,
            links=profile(link),
            only_dial_out=closed,
        )
        await swarm.run()
        return swarm

    outcomes, failures = Counter[str](), Counter[str]()
    for peer in run_virtual(main()).peers:
        outcomes.update(peer.outcomes())
        failures.update(event.code for event in peer.events if isinstance(event, events.PartnerFailed))
    return outcomes, failures


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--peers", type=int, default=PEERS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--links", nargs="+", default=["full", "lte", "home"])
    given = parser.parse_args()
    print("link            let nothing in  exchanged  of at most  partners that failed")
    for link in given.links:
        for part in CLOSED:
            outcomes, failures, shut = Counter[str](), Counter[str](), int(part * given.peers)
            for seed in range(given.seeds):
                closed = random.Random(seed).sample(range(given.peers), shut)
                one, why = play(link, closed, given.rounds, seed, given.peers)
                outcomes += one
                failures += why
            most = min(given.peers, 2 * (given.peers - shut)) * given.rounds * given.seeds
            found = f"{outcomes['exchanged']:>9}{outcomes['exchanged'] / most:>12.0%}"
            failed = ", ".join(f"{count} {code}" for code, count in failures.most_common())
            print(f"{link:<15}{shut:>8} of {given.peers:>2}{found}  {failed}", flush=True)


if __name__ == "__main__":
    main()
