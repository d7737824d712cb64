"""`python -m tests.simulation --seed 7`, or `--seeds 0:1000`: the promises under random faults, replayed. `--day`: a
day of heavy churn (`tests.simulation.day`), two seeds side by side, a line for each."""

from __future__ import annotations

import argparse
import time

from tests.simulation.day import HOURS, PEERS, play_day, play_days
from tests.simulation.scenario import PRESETS, play


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="one seed, told at length")
    parser.add_argument("--seeds", default="0:100", help="FROM:TO")
    parser.add_argument("--preset", choices=PRESETS, action="append", help="default: each in turn")
    parser.add_argument("--day", action="store_true", help="a day of heavy churn instead of many small swarms")
    parser.add_argument("--peers", type=int, default=PEERS, help="of a day")
    parser.add_argument("--hours", type=float, default=HOURS, help="of a day")
    given = parser.parse_args()
    low, high = map(int, given.seeds.split(":"))
    seeds = range(low, high) if given.seed is None else [given.seed]
    began, bad = time.monotonic(), 0
    if given.day and given.seed is not None:
        day = play_day(given.seed, given.peers, given.hours)
        print(day)
        raise SystemExit(1 if day.broken else 0)
    if given.day:
        bad = play_days(seeds, given.peers, given.hours)
        print(f"{len(seeds)} days, {bad} bad, {time.monotonic() - began:.0f} s")
        raise SystemExit(1 if bad else 0)
    for preset in given.preset or PRESETS:
        for seed in seeds:
            played = play(seed, preset)
            bad += bool(played.broken)
            if played.broken or given.seed is not None:
                print(played)
    runs = len(seeds) * len(given.preset or PRESETS)
    print(f"{runs} runs, {bad} with a broken promise, {time.monotonic() - began:.0f} s")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
