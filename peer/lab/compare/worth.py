"""The worth of a swarm: the tokens with which a single peer alone reaches the swarm's loss, divided by the tokens of
one peer of the swarm.

It is measured against `single` at several lengths, each with its own learning rate schedule. Between two lengths the
loss is interpolated linearly over log(tokens). Thus in a swarm of worth 2.5 each peer saves 1.5 times its own training
time. All runs use the manifest's learning rate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peer.lab.compare.curve import Curve
from peer.lab.compare.entries import DDP, Entry
from peer.run.manifest import derive

FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0)
"""Lengths of `single` as multiples of the others' length, in the order in which they are played."""
SHORTER = (0.75, 0.5)
"""Further lengths, which are played only if a method has a higher loss than `single`."""
T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t of the 95 % confidence interval, indexed by the number of values minus two. With more values: 1.96."""

Play = Callable[[Entry, int], Curve]


@dataclass(frozen=True, slots=True)
class Worth:
    """The effective speed-up of one method over a single peer."""

    values: tuple[float, ...]
    """Speed-up of each seed. Infinite: above the longest `single`; 0: below the shortest."""
    share: float | None
    """The mean divided by the mean of `ddp`. None: `ddp` was not played, or one of the two is unknown."""

    @property
    def mean(self) -> float | None:
        """Mean over the seeds. None: unknown for at least one seed."""
        known = all(0 < value < math.inf for value in self.values)
        return statistics.fmean(self.values) if known else None

    @property
    def half_width(self) -> float | None:
        """Half width of the 95 % confidence interval over the seeds, by Student's t. None: one seed, or no mean."""
        count = len(self.values)
        if count < 2 or self.mean is None:
            return None
        t = T95[count - 2] if count - 2 < len(T95) else 1.96
        return t * statistics.stdev(self.values) / math.sqrt(count)

    @property
    def text(self) -> str:
        """The mean, with the half width of its interval if known. `less` and `more`: outside the lengths of `single`
        that were played."""
        if self.mean is None:
            return "less" if 0.0 in self.values else "more"
        return f"{self.mean:.2f}" + ("" if self.half_width is None else f" ± {self.half_width:.2f}")

    def to_json(self) -> dict[str, Any]:
        values = [value if math.isfinite(value) else None for value in self.values]
        return {"speed_up": self.mean, "half_width": self.half_width, "values": values, "share_of_ddp": self.share}


def length_for(losses: Sequence[tuple[float, float]], loss: float) -> float:
    """Return the length at which `single` reaches this loss, interpolated linearly over log(length).

    losses: (length, loss), in any order and unit. Returns 0 if the loss at the shortest length is already lower or
    `losses` is empty, and infinity if no length reaches the loss."""
    before: tuple[float, float] | None = None
    for length, there in sorted(losses):
        if there <= loss:
            if before is None:
                return length if there == loss else 0.0
            part = (before[1] - loss) / (before[1] - there)
            return math.exp((1 - part) * math.log(before[0]) + part * math.log(length))
        if before is None or there < before[1]:
            before = length, there
    return math.inf if before is not None else 0.0


@dataclass(frozen=True, slots=True)
class Yardstick:
    """The losses of `single`: seed -> (length as a multiple of the others' length, loss)."""

    losses: Mapping[int, Sequence[tuple[float, float]]]

    def factor(self, seed: int, loss: float) -> float:
        """Return the length, as a multiple, at which `single` reaches this loss. See `length_for`."""
        return length_for(self.losses[seed], loss)

    def to_json(self) -> dict[str, Any]:
        return {str(seed): [list(pair) for pair in sorted(pairs)] for seed, pairs in self.losses.items()}


def measure(
    single: Entry, play: Play, seeds: Sequence[int], losses: Mapping[str, Sequence[float]], peers: int
) -> Yardstick:
    """Play `single` at increasing lengths until it reaches the loss of every method, or trains twice as long as all
    peers together.

    losses: method -> loss of each seed. If `single` is among them, it is not played at that length again. Lengths that
    are no whole number of rounds are left out."""
    best = [min(of_seed) for of_seed in zip(*losses.values(), strict=True)]
    worst = [max(of_seed) for of_seed in zip(*losses.values(), strict=True)]
    found: dict[int, list[tuple[float, float]]] = {seed: [] for seed in seeds}
    if known := losses.get(single.name):
        found = {seed: [(FACTORS[0], loss)] for seed, loss in zip(seeds, known, strict=True)}

    def played(factor: float) -> None:
        rounds = single.manifest.train.total_rounds * factor
        if rounds < 1 or rounds != int(rounds) or any(factor == done for done, _ in found[seeds[0]]):
            return
        longer = replace(single, text=derive(single.text, [f"train.total_rounds={int(rounds)}"]))
        for seed in seeds:
            found[seed].append((factor, play(longer, seed)[-1].loss))

    for factor in FACTORS:
        if factor > 2 * peers:
            break
        played(factor)
        if all(min(loss for _, loss in found[seed]) <= aim for seed, aim in zip(seeds, best, strict=True)):
            break
    for factor in SHORTER:
        if all(max(loss for _, loss in found[seed]) >= aim for seed, aim in zip(seeds, worst, strict=True)):
            break
        played(factor)
    return Yardstick(found)


def worths(yardstick: Yardstick, seeds: Sequence[int], losses: Mapping[str, Sequence[float]]) -> dict[str, Worth]:
    """Return the worth of each method. `losses`: as in `measure`."""
    values = {
        name: tuple(yardstick.factor(seed, loss) for seed, loss in zip(seeds, of, strict=True))
        for name, of in losses.items()
    }
    most = Worth(values[DDP], None).mean if DDP in values else None
    found = {}
    for name, each in values.items():
        mean = Worth(each, None).mean
        found[name] = Worth(each, mean / most if mean is not None and most else None)
    return found
