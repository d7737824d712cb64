"""Does a day of a thousand peers keep every promise in the simulator, and where does its processor time go?

All promises that `tests.support.invariants` reads from a simulated swarm. Bounds: nothing broken, the ledger balances,
no due round passes without an outcome, and the day takes at most thirty minutes of one core.

    python -m benchmarks.simulated_day [--peers 1000] [--hours 24] [--churn 0.2] [--json FILE] [--results]

The day is that of `tests.simulation.day` with rounds of five minutes: home links, machines of which the fastest is
twenty times as fast as the slowest, 2.5 million parameters. Each peer leaves without notice `--churn` times an hour and
comes back. A second, short run under cProfile tells the share of each part of the program."""

from __future__ import annotations

import cProfile
import pstats
from collections import defaultdict
from pathlib import Path

from benchmarks.result import ROOT, Benchmark, Figure, Table, options, parsed, publish
from peer.lab.bench.machine import resident
from tests.simulation.day import Day, play_day

SYNC_EVERY_S = 300.0
DAY_HOURS, DAY_MINUTES = 24.0, 30.0
PROFILED_ROUNDS = 6
SHOWN = 12
ABOUT = Benchmark(
    "simulated_day",
    "Does a day of a thousand peers keep every promise in the simulator, and where does its processor time go?",
    "1, 2, 4, 8, 10 (as the journals and the network show them); bound: affordable",
    smallest="--peers 8 --hours 1 --churn 4",
)


def part_of(file: str) -> str:
    """Return the part of the program of a profiled file: our folder, another package, or `interpreter` for
    built-ins."""
    path = Path(file)
    if not path.is_absolute():
        return "interpreter"
    if path.is_relative_to(ROOT) and "site-packages" not in path.parts:
        return "/".join(path.relative_to(ROOT).parts[:2])
    return next((name for name in ("torch", "asyncio") if name in path.parts), "library")


def profiled(peers: int, churn: float) -> tuple[dict[str, float], dict[str, float]]:
    """Profile a few rounds. Return the own seconds of each part and of each function."""
    profile = cProfile.Profile()
    profile.enable()
    play_day(1, peers, PROFILED_ROUNDS * SYNC_EVERY_S / 3600, churn, SYNC_EVERY_S)
    profile.disable()
    parts, functions = defaultdict[str, float](float), defaultdict[str, float](float)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = vars(pstats.Stats(profile))["stats"]
    for (file, _, name), (_, _, own, _, _) in stats.items():
        parts[part_of(file)] += own
        functions[f"{Path(file).name} {name}" if file != "~" else name] += own
    return parts, functions


def figures_of(day: Day, hours: float) -> list[Figure]:
    report = day.report
    minutes = day.processor_s / 60
    return [
        Figure("promises broken", "", len(day.broken), 0),
        Figure("ledger, off by", "", report.ledger_imbalance, 0),
        Figure("due rounds without an outcome", "", report.live_missed, 0),
        Figure(
            "exchanged of the rounds due", "%", None if report.participation is None else 100 * report.participation
        ),
        Figure("processor time of these hours", "min", minutes),
        Figure("processor time of a whole day", "min", minutes * DAY_HOURS / hours, DAY_MINUTES),
        Figure("hours within thirty minutes", "h", DAY_MINUTES * hours / minutes),
        Figure("memory", "MiB", float(resident("VmHWM"))),
    ]


def shares(title: str, own: dict[str, float]) -> Table:
    whole, most = sum(own.values()), sorted(own.items(), key=lambda item: -item[1])[:SHOWN]
    return Table(title, ["", "% of the time"], [[name, 100 * used / whole] for name, used in most])


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--peers", type=int, default=1000)
    parser.add_argument("--hours", type=float, default=DAY_HOURS)
    parser.add_argument("--churn", type=float, default=0.2, help="departures a peer and hour")
    given = parsed(parser, ABOUT)
    day = play_day(1, given.peers, given.hours, given.churn, SYNC_EVERY_S)
    print(day, flush=True)
    figures = figures_of(day, given.hours)
    parts, functions = profiled(given.peers, given.churn)
    title = f"under cProfile, {PROFILED_ROUNDS} rounds of {given.peers} peers"
    publish(given, ABOUT, figures, shares(f"parts, {title}", parts), shares(f"functions, {title}", functions))


if __name__ == "__main__":
    main()
