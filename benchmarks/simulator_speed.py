"""What does a simulated round cost, and how does it grow with the swarm? Virtual time, the fake trainer, rounds of five
minutes, one core.

    .venv/bin/python benchmarks/simulator_speed.py [--day] [--turns 7]

Timed in pieces of 256 peer-rounds, the same number of them for swarms of any size, after the first rounds; the best
piece counts, for the others say what else the machine did. The sizes take turns, for the machine is not as fast in one
minute as in the next: printed are the medians over the turns, and of the ratios in each. How many functions are called
is counted apart: that is the same on any machine, whatever its caches hold.

Under `valgrind --tool=cachegrind --cache-sim=yes --D1=49152,12,64 --LL=2097152,16,64`, `--alone 256 --rounds 4` counts
instructions, and misses of a core's cache of 2 MiB; what it counts more with `--rounds 12` is that of eight rounds.

Limits: 64 peers for a day in less than a minute; from 16 to 256 peers a peer's round at most 1.3 times as dear."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import statistics
import time
from dataclasses import dataclass

from peer.lab.sim.swarm import LOOK, SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.protocol.schedule import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection

ROUND_S = 300.0
FIRST = 4
"""Rounds before the first piece: peers find their places in the directory."""
PIECE = 256
PIECES = 6
CALLS = 1024
"""Peer-rounds over which calls are counted."""


@dataclass(frozen=True, slots=True)
class Cost:
    best_ms: float
    """Of a peer's round."""
    exchanged: float
    """The part of the peer-rounds in which a peer exchanged."""


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
    return Cost(min(took), exchanged / (peers * rounds))


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


async def alone(peers: int, rounds: int) -> None:
    await swarm_of(peers, rounds).run()


SIZES = ((16, LOOK), (64, LOOK), (256, LOOK), (256, None))
"""Peers, and records in a look (None: all)."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--day", action="store_true", help="64 peers for 288 rounds as well")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--alone", type=int, metavar="PEERS", help="only this swarm, untimed, for a profiler")
    parser.add_argument("--rounds", type=int, default=12, help="with --alone")
    given = parser.parse_args()
    if given.alone:
        run_virtual(alone(given.alone, given.rounds))
        return
    turns = [[cost(peers, look) for peers, look in SIZES] for _ in range(given.turns)]
    base = calls(*SIZES[0])
    print("peers  records a look  ms a peer and round  as 16 peers (least, most)  exchanged  calls  as 16 peers")
    for (peers, look), costs in zip(SIZES, zip(*turns, strict=True), strict=True):
        growth = [one.best_ms / turn[0].best_ms for one, turn in zip(costs, turns, strict=True)]
        ratios = f"{statistics.median(growth):.2f} x ({min(growth):.2f}, {max(growth):.2f})"
        columns = f"{statistics.median(one.best_ms for one in costs):>21.2f}{ratios:>27}{costs[0].exchanged:>11.1%}"
        called = calls(peers, look)
        print(f"{peers:>5}{min(peers, look or peers):>16}{columns}{called:>7.0f}{called / base:>11.2f} x", flush=True)
    if given.day:
        print(f"64 peers, a day (288 rounds): {day_s(64):.1f} s")


if __name__ == "__main__":
    main()
