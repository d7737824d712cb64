"""Which runs the protocol asks for next, from the records of those that were played."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.study.methods import METHODS
from benchmarks.study.play import StudyCell, StudyRun

CELLS = [StudyCell(corpus, peers, every) for every in (20, 50) for corpus in ("pages", "stdlib") for peers in (4, 8)]
"""The cells, in the order in which they are played: a table that is not complete says something already."""
TUNING, SCORING = (100, 101), (0, 1, 2, 3, 4)
"""Seeds."""
FIRST, LAST = -1, 2
"""The rungs that every method begins with."""
LOWEST, HIGHEST = -8, 12

Records = Sequence[dict[str, Any]]


def rate(rung: int) -> float:
    """Return the learning rate of a rung, to three digits."""
    return float(f"{4e-3 * 1.5**rung:.3g}")


RUNGS = {rate(rung): rung for rung in range(LOWEST, HIGHEST + 1)}


def wanted(records: Records, cell: StudyCell) -> list[StudyRun]:
    """Return the runs of a cell that can be played next, method after method. None: the cell is complete.

    A method is tuned on its first rungs, then beyond the best one while this is at an end, and scored at last."""
    found = of_cell(records, cell)
    there = {(one["method"], one["lr"], one["seed"]) for one in found}
    runs = [run for method in METHODS for run in _of_method(found, cell, method)]
    return [run for run in runs if (run.method, run.lr, run.seed) not in there]


def _of_method(records: Records, cell: StudyCell, method: str) -> list[StudyRun]:
    """Return the runs of a method's next stage, those that were played included."""
    losses = tuning(records, cell, method)
    rungs: Iterable[int] = range(FIRST, LAST + 1)
    if losses.keys() >= set(rungs):
        more = beyond(losses)
        if more is None:
            return [StudyRun(cell, method, tuned(records, cell, method), seed) for seed in SCORING]
        rungs = [more]
    return [StudyRun(cell, method, rate(rung), seed) for seed in TUNING for rung in rungs]


def of_cell(records: Records, cell: StudyCell) -> list[dict[str, Any]]:
    return [one for one in records if StudyCell(one["corpus"], one["peers"], one["every"]) == cell]


def tuning(records: Records, cell: StudyCell, method: str) -> dict[int, float]:
    """Return the mean loss of each rung that was played on all tuning seeds. A run that diverged counts as infinite."""
    found: dict[int, list[float]] = {}
    for one in of_cell(records, cell):
        if one["method"] == method and one["seed"] in TUNING:
            found.setdefault(RUNGS[one["lr"]], []).append(math.inf if one["loss"] is None else one["loss"])
    return {rung: sum(losses) / len(losses) for rung, losses in sorted(found.items()) if len(losses) == len(TUNING)}


def beyond(losses: Mapping[int, float]) -> int | None:
    """Return the rung to add. None: the best one lies inside, or the ladder ends. `losses`: by rung."""
    best = min(losses, key=losses.__getitem__)
    if best == max(losses) and best < HIGHEST:
        return best + 1
    return best - 1 if best == min(losses) and best > LOWEST else None


def tuned(records: Records, cell: StudyCell, method: str) -> float:
    """Return the learning rate of the best rung."""
    losses = tuning(records, cell, method)
    return rate(min(losses, key=losses.__getitem__))
