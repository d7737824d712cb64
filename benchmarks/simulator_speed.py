"""What does a simulated round cost, and how does it grow with the swarm? Virtual time, the fake trainer, rounds of five
minutes, one core.

    .venv/bin/python benchmarks/simulator_speed.py [--day]

Limits: 64 peers for a day in less than a minute; from 16 to 256 peers a peer's round at most 1.3 times as dear."""

from __future__ import annotations

import argparse
import time

from peer.protocol.roundclock import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection
from peer.testing.clock import EPOCH, run_virtual
from peer.testing.swarm import LOOK, SimulatedSwarm

ROUND_S = 300.0


def cost_s(peers: int, rounds: int, look: int | None = LOOK) -> tuple[float, float]:
    """Processor seconds of a whole run, and the part of the rounds in which a peer exchanged."""
    method = resolve(SyncSection(preset="noloco", codec="fp32", clock="seconds", sync_every=ROUND_S))

    async def main() -> int:
        clock = RoundClock("seconds", ROUND_S, 1, EPOCH)
        swarm = SimulatedSwarm(
            peers, method=method, rounds=clock, total_rounds=rounds, seed=1, step_seconds=1.0, look=look, stops=False
        )
        await swarm.run()
        return sum(peer.outcomes()["exchanged"] for peer in swarm.peers)

    began = time.process_time()
    exchanged = run_virtual(main())
    return time.process_time() - began, exchanged / (peers * rounds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", action="store_true", help="64 peers for 288 rounds as well")
    given = parser.parse_args()
    print("peers  records a look  ms a peer and round, start and end excluded  exchanged")
    for peers, look in ((16, LOOK), (64, LOOK), (256, LOOK), (256, None)):
        few, many = 4, max(8, 1600 // peers)
        (less, _), (more, exchanged) = cost_s(peers, few, look), cost_s(peers, many, look)
        each = (more - less) / (peers * (many - few))
        print(f"{peers:>5}  {min(peers, look or peers):>14}  {1000 * each:>44.2f}  {exchanged:>8.1%}", flush=True)
    if given.day:
        print(f"64 peers, a day (288 rounds): {cost_s(64, 288)[0]:.1f} s")


if __name__ == "__main__":
    main()
