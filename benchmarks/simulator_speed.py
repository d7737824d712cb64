"""How much does a peer's round cost in the simulator, by the size of the swarm?

Promise: none by number; long simulations of every promise have to stay affordable. Bounds: 64 peers for a day in less
than a minute; a peer's round among 256 peers costs at most 1.3 times as much as among 16. About a minute a turn, on one
core.

    python -m benchmarks.simulator_speed [--day] [--turns 7] [--json FILE] [--results]

Swarms of `noloco` play rounds of five minutes with the fake trainer. They are timed in pieces of 256 peer-rounds, as
many of them for swarms of any size, after the first rounds. The fastest piece counts, for the other ones tell what else
the machine did. The sizes take turns. The figures are medians over the turns. Function calls are counted apart: they
are the same on any machine, whatever its caches hold.

Under `valgrind --tool=cachegrind --cache-sim=yes --D1=49152,12,64 --LL=2097152,16,64`, `--alone 256 --rounds 4` counts
instructions and the misses of a core's cache of 2 MiB. Eight rounds cost what `--rounds 12` counts beyond that."""

from __future__ import annotations

import asyncio
import cProfile
import itertools
import statistics
import time
from dataclasses import dataclass

from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.lab.sim.setting import LOOK, DirectoryViews, SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.protocol.schedule import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection

ROUND_S = 300.0
MOST_TIMES, DAY_S = 1.3, 60.0
ABOUT = Benchmark(
    "simulator_speed",
    "How much does a peer's round cost in the simulator, by the size of the swarm?",
    "bound; simulations of every promise stay affordable",
)
FIRST = 4
"""Rounds before the first piece: peers find their places in the directory."""
PIECE = 256
PIECES = 6
CALLS = 1024
"""Peer-rounds over which calls are counted."""


@dataclass(frozen=True, slots=True)
class Cost:
    best_ms: float
    """The fastest piece, a peer's round."""
    exchanged: float
    """The part of the peer-rounds in which a peer exchanged."""


def swarm_of(peers: int, rounds: int, look: int | None = LOOK) -> SimulatedSwarm:
    method = resolve(SyncSection(preset="noloco", codec="fp32", clock="seconds", sync_every=ROUND_S))
    clock = RoundClock("seconds", ROUND_S, 1, EPOCH)
    return SimulatedSwarm(
        peers,
        SwarmSetting(method=method, rounds=clock, total_rounds=rounds, seed=1),
        SwarmWorld(views=DirectoryViews(look=look), stops=False),
        step_seconds=1.0,
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
    """Count the calls of a peer's round, over as many peer-rounds for swarms of any size."""
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
    parser = options(__doc__)
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
    figures, rows = list[Figure](), list[list[str | float]]()
    for (peers, look), costs in zip(SIZES, zip(*turns, strict=True), strict=True):
        growth = [one.best_ms / turn[0].best_ms for one, turn in zip(costs, turns, strict=True)]
        best, called = statistics.median(one.best_ms for one in costs), calls(peers, look)
        times = statistics.median(growth)
        name = f"{peers} peers, {min(peers, look or peers)} records a look"
        rows.append([name, best, times, min(growth), max(growth), costs[0].exchanged, called, called / base])
        if (peers, look) == (256, LOOK):
            figures.append(Figure("256 peers, time as 16", "", times, MOST_TIMES))
            figures.append(Figure("256 peers, function calls as 16", "", called / base, MOST_TIMES))
    if given.day:
        figures.append(Figure("64 peers for a day (288 rounds)", "s", day_s(64), DAY_S))
    heads = ["", "ms a peer's round", "as 16 peers", "least", "most", "exchanged", "calls", "calls as 16 peers"]
    publish(given, ABOUT, figures, Table(f"{given.turns} turns", heads, rows))


if __name__ == "__main__":
    main()
