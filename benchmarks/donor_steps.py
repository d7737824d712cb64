"""What does it cost a donor's training to give its state?

    python -m benchmarks.donor_steps [--turns 10] [--megabytes 200] [--mbit 50] [--quiet-s 6] [--out donor-steps.json]

Processes, processors, caps and trainer as in `benchmarks/state_transfer.py`, nobody killed. A new joiner fetches the
whole state, nothing happens, the next one fetches it; the donors copy their state anew for each. A turn's step time
over the mean of the quiet turns before and after it; medians. Beside it the same of each quiet turn between two
others, which is what the machine does by itself, and how much of its time the trainer waited for its processor. The
joiners stand for other machines, but run on this one: what is shown is an upper bound. Wanted: at most +3 %. Linux."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.state_transfer import (
    Process,
    donors_of,
    joining,
    median_ms,
    not_run_percent,
    steps_of,
    trainer_beside,
    until,
    within,
)

Turn = tuple[float, float]
"""Begin and end, as of `time.time`."""


def quiet(seconds: float) -> Turn:
    begins = time.time()
    time.sleep(seconds)
    return begins, time.time()


def giving(options: argparse.Namespace, donors: list[Process], told: str, home: Path) -> Turn:
    """A whole transfer, and until its joiner has gone."""
    for donor in donors:
        donor.stats("afresh")
    running: list[Process] = []
    try:
        joiner = joining(options, told, home, running)
        begins = joiner.read()["begins"]
        result = until(joiner, 2.0)
        assert result["same"], "not the donors' state"
        joiner.popen.wait(60)
        return begins, begins + result["wall_s"]
    finally:
        for process in running:
            process.kill()


def by_turns(options: argparse.Namespace, folder: Path) -> tuple[list[Turn], list[Turn]]:
    """(quiet ones, one more than there are others; those in which the donors gave)."""
    running: list[Process] = []
    try:
        donors, told = donors_of(options, running)
        rests, transfers = [quiet(options.quiet_s)], list[Turn]()
        for number in range(options.turns):
            transfers.append(giving(options, donors, told, folder / str(number)))
            rests.append(quiet(options.quiet_s))
        return rests, transfers
    finally:
        for process in running:
            process.kill()


def more_percent(turns: list[float], before: list[float], after: list[float]) -> list[float]:
    """Of each turn, than the mean of those around it."""
    around = zip(turns, before, after, strict=True)
    return [100 * (took / statistics.mean((one, two)) - 1) for took, one, two in around]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="peer-donor-steps-") as name:
        log = Path(name) / "steps"
        with log.open("w") as file:
            trainer = trainer_beside(file)
            try:
                rests, transfers = by_turns(options, Path(name))
            finally:
                trainer.kill()
                trainer.wait(60)
        steps = steps_of(log.read_text())
    rest, give = ([within(steps, *turn) for turn in turns] for turns in (rests, transfers))
    rest_ms, give_ms = ([median_ms(turn) for turn in turns] for turns in (rest, give))
    return {
        "rest_ms": rest_ms,
        "give_ms": give_ms,
        "give_s": [ends - begins for begins, ends in transfers],
        "more_percent": more_percent(give_ms, rest_ms[:-1], rest_ms[1:]),
        "by_itself_percent": more_percent(rest_ms[1:-1], rest_ms[:-2], rest_ms[2:]),
        "waited_percent": [not_run_percent(turn) for turn in give],
        "rest_waited_percent": [not_run_percent(turn) for turn in rest],
    }


def row(name: str, values: list[float], form: str) -> None:
    low, middle, high = min(values), statistics.median(values), max(values)
    print(f"{name:<44}{format(middle, form):>9}   ({low:{form}} to {high:{form}})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--mbit", type=float, default=50.0)
    parser.add_argument("--quiet-s", type=float, default=6.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.turns < 2 or options.quiet_s < 1:
        parser.error("at least two turns, and a second of rest")
    found = measure(options)
    print(f"{options.turns} transfers of {options.megabytes} MB, by turns with nothing: median (least to most)")
    row("a transfer, s", found["give_s"], ".1f")
    row("step time while nothing happens, ms", found["rest_ms"], ".2f")
    row("step time while the donors give, ms", found["give_ms"], ".2f")
    row("more than around it, % (at most 3)", found["more_percent"], "+.2f")
    row("a quiet turn than those around it, %", found["by_itself_percent"], "+.2f")
    row("the trainer waited while they gave, %", found["waited_percent"], ".2f")
    row("the trainer waited otherwise, %", found["rest_waited_percent"], ".2f")
    if options.out:
        options.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
