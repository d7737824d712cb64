"""The verdict of the records: scores, paired differences with intervals, and the part of the gap that is closed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.study.methods import ALONE, DEFAULT, GROUP, METHODS
from benchmarks.study.plan import SCORING, Records, of_cell
from benchmarks.study.play import StudyCell

STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
"""Two-sided 95 % points of Student's t, by degrees of freedom."""
MOST_LOST = 0.3
"""Percent that a new default may lose in a cell."""

Losses = Mapping[int, float]
"""Losses of a method, by seed."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean of paired values and half of its 95 % interval. None: there are too few values."""

    mean: float | None
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Interval:
        if not values:
            return cls(None, None)
        freedom = len(values) - 1
        if freedom not in STUDENT:
            return cls(statistics.mean(values), None)
        return cls(statistics.mean(values), STUDENT[freedom] * statistics.stdev(values) / math.sqrt(len(values)))

    @property
    def below_zero(self) -> bool:
        return self.mean is not None and self.half is not None and self.mean + self.half < 0


def scores(records: Records, cell: StudyCell) -> dict[str, Losses]:
    """Return the losses of each method on the scoring seeds. A run that diverged counts as infinite."""
    found: dict[str, dict[int, float]] = {method: {} for method in METHODS}
    for one in of_cell(records, cell):
        if one["seed"] in SCORING:
            found[one["method"]][one["seed"]] = math.inf if one["loss"] is None else one["loss"]
    return {method: dict(sorted(losses.items())) for method, losses in found.items()}


def complete(of: Mapping[str, Losses]) -> bool:
    return all(len(losses) == len(SCORING) for losses in of.values())


def differences(of: Mapping[str, Losses], method: str) -> dict[int, float]:
    """Return by how many percent the method's loss is above the default's, seed by seed."""
    default = of[DEFAULT]
    return {seed: 100 * (loss / default[seed] - 1) for seed, loss in of[method].items() if seed in default}


def gap_closed(of: Mapping[str, Losses], method: str) -> Interval:
    """Return the percentage of the gap from no exchange to the group, of the means; the interval is of the seeds'."""
    seeds = [seed for seed in of[method] if seed in of[ALONE] and seed in of[GROUP]]
    if not seeds:
        return Interval(None, None)
    none, group, own = ([of[name][seed] for seed in seeds] for name in (ALONE, GROUP, method))
    each = [100 * (a - m) / (a - g) for a, g, m in zip(none, group, own, strict=True)]
    whole = 100 * (sum(none) - sum(own)) / (sum(none) - sum(group))
    return Interval(whole, Interval.of(each).half)


def over_cells(of_cells: Sequence[Mapping[str, Losses]], method: str) -> Interval:
    """Return the difference to the default: of a seed the mean over the cells, then the interval over the seeds."""
    each = [differences(of, method) for of in of_cells]
    return Interval.of([statistics.mean(one[seed] for one in each) for seed in SCORING]) if each else Interval.of([])


def decision(of_cells: Sequence[Mapping[str, Losses]]) -> str:
    """Say what the first two conditions of the protocol decide. `of_cells`: of the complete cells."""
    if not of_cells:
        return "no cell is complete yet"
    pairs = [name for name, method in METHODS.items() if method.topology == "pair" and name != DEFAULT]
    means = {name: over_cells(of_cells, name) for name in pairs}
    best = min(pairs, key=lambda name: means[name].mean or 0.0)
    worst = max(statistics.mean(differences(of, best).values()) for of in of_cells)
    said = f"{best} is the best other pair method: {means[best].mean:+.2f} +- {means[best].half:.2f} %"
    said += f" over {len(of_cells)} cells, {worst:+.2f} % in its worst cell"
    if not means[best].below_zero:
        return f"{said}. The interval holds 0: {DEFAULT} stays."
    if worst > MOST_LOST:
        return f"{said}. It loses more than {MOST_LOST} % in a cell: {DEFAULT} stays."
    return f"{said}. It is the candidate, to be confirmed in swarms of real processes."
