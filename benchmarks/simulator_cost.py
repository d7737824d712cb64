"""How much does a peer-round of `peer simulate` cost, by the size of the swarm? Not on Windows.

Bounds: at most 5 ms of processor time a peer-round in the largest swarm, and at most twice that of the smallest. Ten
thousand peers take about ten minutes of one core.

    python -m benchmarks.simulator_cost [--peers 100,400,1600,10000] [--hours 1] [--json FILE] [--results]

Each swarm is one run of the command with the preset gossip, rounds of five minutes, the fake trainer and cable links.
The processor time is that of its process, less that of a run with one peer, which is mostly imports."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.python_child import popen_python

MOST_MS, GROWTH = 5.0, 2.0
ABOUT = Benchmark(
    "simulator_cost",
    "How much does a peer-round of `peer simulate` cost, by the size of the swarm?",
    "bound: affordable",
    smallest="--peers 4,8 --hours 0.2",
)


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the command."""

    peers: int
    peer_rounds: int
    seconds: float
    """Processor time of the process."""
    mib: float
    exchanged: float | None
    """Share of the peer-rounds that were exchanged. None: with one peer."""


def simulated(peers: int, hours: float) -> Run:
    """Simulate a swarm in a process of its own."""
    size = ["--peers", str(peers), "--hours", str(hours)]
    terms = ["--preset", "gossip", "--sync-every", "300", "--link", "cable", "--json"]
    with popen_python("peer", "simulate", *size, *terms, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.read())
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, peers
    seconds = used.ru_utime + used.ru_stime
    run = Run(peers, report["due"], seconds, used.ru_maxrss / 1024, report["participation"])
    print(run, flush=True)
    return run


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--peers", default="100,400,1600,10000", help="sizes of the swarms, ascending")
    parser.add_argument("--hours", type=float, default=1.0)
    given = parsed(parser, ABOUT)
    start_s = simulated(1, given.hours).seconds
    runs = [simulated(int(peers), given.hours) for peers in given.peers.split(",")]
    costs = [1e3 * (run.seconds - start_s) / run.peer_rounds for run in runs]
    largest = runs[-1]
    figures = [
        Figure(f"processor time a peer-round, {largest.peers} peers", "ms", costs[-1], MOST_MS),
        Figure(f"{largest.peers} peers over {runs[0].peers}", "times", costs[-1] / costs[0], GROWTH),
        Figure(f"memory, {largest.peers} peers", "MiB", largest.mib),
    ]
    heads = ["peers", "ms a peer-round", "processor time, s", "memory, MiB", "exchanged"]
    rows = [[run.peers, ms, run.seconds, run.mib, run.exchanged] for run, ms in zip(runs, costs, strict=True)]
    publish(given, ABOUT, figures, Table(f"{given.hours:g} h", heads, rows))


if __name__ == "__main__":
    main()
