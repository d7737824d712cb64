"""Replay the promises under random faults: `python -m tests.simulation --seed 7`, or `--seeds 0:1000`. With `--day`
play a day of heavy churn (`tests.simulation.day`), two seeds in parallel, and print a line for each.

`--preset all --digests FILE` writes a digest of the journals and the final state of every run. A change that must not
change behavior leaves this file the same."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from peer.methods.registry import PRESETS as ALL_PRESETS
from tests.simulation.day import HOURS, PEERS, play_day, play_days
from tests.simulation.scenario import PRESETS, play


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, help="one seed, told at length")
    parser.add_argument("--seeds", default="0:100", help="FROM:TO")
    parser.add_argument("--preset", choices=[*ALL_PRESETS, "all"], action="append", help="default: five")
    parser.add_argument("--digests", type=Path, help="the file to write: a line for each run")
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
    presets = list(ALL_PRESETS) if given.preset == ["all"] else given.preset or PRESETS
    digests = []
    for preset in presets:
        for seed in seeds:
            played = play(seed, preset)
            digests.append(f"{preset} {seed} {played.digest}\n")
            bad += bool(played.broken)
            if played.broken or given.seed is not None:
                print(played)
    runs = len(seeds) * len(presets)
    if given.digests is not None:
        given.digests.write_text("".join(digests))
    print(f"{runs} runs, {bad} with a broken promise, {time.monotonic() - began:.0f} s")
    raise SystemExit(1 if bad else 0)


if __name__ == "__main__":
    main()
