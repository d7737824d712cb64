"""How far a partner's params may move us: a radius about our own values, from the distances of former partners and from
our own work (ClippedGossip, arXiv 2202.01545).

The median of former distances lets honest partners through, however far replicas usually are. Our own work bounds what
a patient liar can make of that median, step by step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from peer.protocol.model.fragments import MOST_FRAGMENTS

REMEMBERED = 16
"""Exchanges of a fragment that count."""
FEWEST = 4
"""Distances from which on their median counts."""
SLACK = 1.25
"""Factor on every radius."""
APART = math.sqrt(2.0)
"""Distance of two replicas in units of their work, when they began from the same state and worked in directions of
their own."""
MIXED = 2.0
"""Factor on `APART` for replicas that have exchanged before. Each keeps half of what it had been apart by, and works in
the same direction again, so that the distance grows towards twice that of one round."""
CAP = 3.0
"""Times the distance of two replicas that our own largest work makes: no median counts for more."""
MOST_RATIO = 20.0
"""A partner's work counts for at most so many times ours."""


@dataclass(frozen=True, slots=True)
class Clip:
    """What may be taken of one partner's params."""

    work: float
    """L2 norm of our own work: of what we sent, less our outer_params."""
    distance: float
    """L2 norm of what the partner sent, less what we sent."""
    radius: float

    @property
    def taken(self) -> float:
        """The part of the way from our values to the partner's that is gone, at most 1."""
        return 1.0 if self.distance <= self.radius else self.radius / self.distance


@dataclass(slots=True)
class FragmentDistances:
    """The distances of the last partners of one fragment, and the own work of the same rounds."""

    distances: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    work: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def clip(self, work: float, distance: float, ratio: float) -> Clip:
        """Return what is taken of a partner so far away, and remember distance and work.

        Without any work of our own there is no measure: nothing is taken, and no distance learnt."""
        self.work.append(work)
        radius = self._radius(work, ratio)
        if radius > 0:
            self.distances.append(min(distance, 2 * radius))
        return Clip(work, distance, radius)

    def _radius(self, work: float, ratio: float) -> float:
        if len(self.distances) < FEWEST:
            return SLACK * MIXED * APART * work * ratio
        most = CAP * APART * max(self.work) * ratio
        return SLACK * min(max(lower_median(self.distances), APART * work), most)


@dataclass(slots=True)
class WorkRatio:
    """How much more the partners work in a round than we do: what an honest distance may be longer by."""

    partners: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Tokens of a round, of each of the last partners that told them, over ours."""

    def observe(self, theirs: int, ours: int) -> None:
        """Note the tokens of a round of both. A partner that tells none says nothing."""
        if theirs > 0 and ours > 0:
            self.partners.append(min(theirs / ours, MOST_RATIO))

    @property
    def value(self) -> float:
        """The lower median, so that liars are heard only if they are half of the partners. From 1 to `MOST_RATIO`."""
        return min(max(lower_median(self.partners), 1.0), MOST_RATIO) if self.partners else 1.0


@dataclass(slots=True)
class ClipMemory:
    """All that a peer remembers for its radii. It is bounded, and outlives restarts."""

    fragments: dict[int, FragmentDistances] = field(default_factory=dict)
    ratio: WorkRatio = field(default_factory=WorkRatio)

    def of(self, fragment: int) -> FragmentDistances:
        """Return the memory of one fragment."""
        assert 0 <= fragment < MOST_FRAGMENTS, fragment
        return self.fragments.setdefault(fragment, FragmentDistances())

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        kept = {
            str(fragment): {"distances": list(one.distances), "work": list(one.work)}
            for fragment, one in self.fragments.items()
        }
        return {"fragments": kept, "partners": list(self.ratio.partners)}

    @classmethod
    def from_json(cls, kept: Any) -> ClipMemory:
        """Return a kept memory. What cannot be one of ours counts as forgotten."""
        memory = cls()
        if not isinstance(kept, Mapping):
            return memory
        memory.ratio.partners.extend(_numbers(kept.get("partners")))
        fragments = kept.get("fragments")
        fragments = fragments if isinstance(fragments, Mapping) else {}
        for fragment in range(MOST_FRAGMENTS):
            if isinstance(one := fragments.get(str(fragment)), Mapping):
                found = memory.of(fragment)
                found.distances.extend(_numbers(one.get("distances")))
                found.work.extend(_numbers(one.get("work")))
        return memory


def lower_median(values: Iterable[float]) -> float:
    """Return the middle value; of an even number the lower of the two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _numbers(kept: Any) -> list[float]:
    """Return the last numbers of a kept list that can be lengths."""
    given = kept[-REMEMBERED:] if isinstance(kept, list) else []
    return [float(number) for number in given if type(number) in (int, float) and 0 <= number < math.inf]
