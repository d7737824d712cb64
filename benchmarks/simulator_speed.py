"""What does a simulated round cost, and how does it grow with the swarm? Virtual time, the fake trainer, rounds of five
minutes, one core.

    .venv/bin/python benchmarks/simulator_speed.py [--day]

Timed in pieces of 256 peer-rounds, the same number of them for swarms of any size, after the first rounds; the best
piece counts, for the others say what else the machine did, and the middle one is printed beside it. How many functions
are called is counted apart: that is the same on any machine, whatever its caches hold.

Limits: 64 peers for a day in less than a minute; from 16 to 256 peers a peer's round at most 1.3 times as dear."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import statistics
import time
from dataclasses import dataclass

from peer.protocol.roundclock import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection
from peer.testing.clock import EPOCH, run_virtual
from peer.testing.swarm import LOOK, SimulatedSwarm

ROUND_S = 300.0
FIRST = 4
"""Rounds before the first piece: peers find their places in the directory."""
PIECE = 256
PIECES = 10
CALLS = 1024
"""Peer-rounds over which calls are counted."""


@dataclass(frozen=True, slots=True)
class Cost:
    best_ms: float
    """Of a peer's round."""
    middle_ms: float
    exchanged: float
    """The part of the peer-rounds in which a peer exchanged."""
    calls: float
    """Of functions, built-in ones too, in a peer's round."""


def swarm_of(peers: int, rounds: int, look: int | None = LOOK) -> SimulatedSwarm:
    method = resolve(SyncSection(preset="noloco", codec="fp32", clock="seconds", sync_every=ROUND_S))
    clock = RoundClock("seconds", ROUND_S, 1, EPOCH)
    return SimulatedSwarm(
        peers, method=method, rounds=clock, total_rounds=rounds, seed=1, step_seconds=1.0, look=look, stops=False
    )


def cost(peers: int, look: int | None = LOOK, pieces: int = PIECES) -> Cost:
    """Processor time of a peer's round; start and end excluded."""
    each = PIECE // peers
    rounds, marks = FIRST + pieces * each + 1, list[float]()

    async def main() -> int:
        swarm = swarm_of(peers, rounds, look)
        for piece in range(pieces + 1):
            at = (FIRST + piece * each + 0.5) * ROUND_S
            asyncio.get_running_loop().call_at(at, lambda: marks.append(time.process_time()))
        await swarm.run()
        return sum(peer.outcomes()["exchanged"] for peer in swarm.peers)

    exchanged = run_virtual(main())
    took = [1000 * (end - begin) / PIECE for begin, end in itertools.pairwise(marks)]
    return Cost(min(took), statistics.median(took), exchanged / (peers * rounds), calls(peers, look))


def calls(peers: int, look: int | None) -> float:
    """In a peer's round, over as many peer-rounds for swarms of any size."""
    counted, rounds = CALLS // peers, FIRST + CALLS // peers + 1
    profile = cProfile.Profile()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_at((FIRST + 0.5) * ROUND_S, profile.enable)
        loop.call_at((FIRST + 0.5 + counted) * ROUND_S, profile.disable)
        await swarm_of(peers, rounds, look).run()

    run_virtual(main())
    return sum(entry.callcount for entry in profile.getstats()) / (counted * peers)


def day_s(peers: int) -> float:
    """Processor seconds of a day, start and end included."""
    began = time.process_time()

    async def main() -> None:
        await swarm_of(peers, int(24 * 3600 / ROUND_S)).run()

    run_virtual(main())
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", action="store_true", help="64 peers for 288 rounds as well")
    given = parser.parse_args()
    print("peers  records a look  ms a peer and round: best  middle  as 16 peers  exchanged  calls  as 16 peers")
    first: Cost | None = None
    for peers, look in ((16, LOOK), (64, LOOK), (256, LOOK), (256, None)):
        took = cost(peers, look)
        first = first or took
        growth = f"{took.best_ms / first.best_ms:.2f} x"
        more = f"{took.calls / first.calls:.2f} x"
        columns = f"{took.best_ms:>26.2f}{took.middle_ms:>8.2f}{growth:>13}{took.exchanged:>11.1%}"
        columns += f"{took.calls:>7.0f}{more:>13}"
        print(f"{peers:>5}{min(peers, look or peers):>16}{columns}", flush=True)
    if given.day:
        print(f"64 peers, a day (288 rounds): {day_s(64):.1f} s")


if __name__ == "__main__":
    main()
