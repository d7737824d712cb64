"""Clipping of a partner's params to a radius around our own (ClippedGossip, arXiv 2202.01545). The radius follows from
the distances of previous partners and from our own work.

The median of previous distances lets honest partners pass, however different the replicas are. Our own work limits how
far a patient attacker can raise that median step by step."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from peer.protocol.model.fragments import MOST_FRAGMENTS

REMEMBERED = 16
"""Latest exchanges of a fragment that count."""
FEWEST = 4
"""Minimum number of distances for their median to count."""
SLACK = 1.25
"""Factor of every radius."""
APART = math.sqrt(2.0)
"""Distance of two replicas relative to their work, if they started from the same state and worked in independent
directions."""
MIXED = 2.0
"""Factor of `APART` for replicas that have exchanged before. Each keeps half of its previous difference and works in a
similar direction again, so the distance grows towards twice that of one round."""
CAP = 3.0
"""The median counts at most this times the distance that our own largest work would give."""
MOST_RATIO = 20.0
"""The work of a partner counts for at most this times ours."""


@dataclass(frozen=True, slots=True)
class Clip:
    """How far our params may move towards one partner's. Lengths are L2 norms."""

    work: float
    """Length of our own work: what we sent minus our outer_params."""
    distance: float
    """Length of what the partner sent minus what we sent."""
    radius: float
    """Largest distance that is accepted in full."""

    @property
    def taken(self) -> float:
        """Fraction of the way from our values to the partner's that is used, at most 1."""
        return 1.0 if self.distance <= self.radius else self.radius / self.distance


@dataclass(slots=True)
class FragmentDistances:
    """Distances of the latest partners in one fragment, and the length of our own work in the same rounds."""

    distances: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    work: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))

    def clip(self, work: float, distance: float, ratio: float) -> Clip:
        """Return the clip for a partner at this distance, and remember distance and work.

        If we have no work, there is no measure: the radius is 0 and the distance is not remembered. `ratio`:
        `WorkRatio.value`."""
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
    """How much more the partners work in a round than we do. Honest distances may be longer by this factor."""

    partners: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    """Tokens of a round of each of the latest partners, divided by ours."""

    def observe(self, theirs: int, ours: int) -> None:
        """Record the tokens of one round of both sides. A partner that gave none (0) is not counted."""
        if theirs > 0 and ours > 0:
            self.partners.append(min(theirs / ours, MOST_RATIO))

    @property
    def value(self) -> float:
        """The lower median, between 1 and `MOST_RATIO`. Liars change it only if they are half of the partners."""
        return min(max(lower_median(self.partners), 1.0), MOST_RATIO) if self.partners else 1.0


@dataclass(slots=True)
class ClipMemory:
    """All that a peer remembers for its radii. Its size is bounded, and it is stored over restarts."""

    fragments: dict[int, FragmentDistances] = field(default_factory=dict)
    ratio: WorkRatio = field(default_factory=WorkRatio)

    def of(self, fragment: int) -> FragmentDistances:
        """Return the memory of one fragment."""
        assert 0 <= fragment < MOST_FRAGMENTS, fragment
        return self.fragments.setdefault(fragment, FragmentDistances())

    def to_json(self) -> dict[str, Any]:
        """Return a value for `from_json`."""
        kept = {
            str(fragment): {"distances": list(one.distances), "work": list(one.work)}
            for fragment, one in self.fragments.items()
        }
        return {"fragments": kept, "partners": list(self.ratio.partners)}

    @classmethod
    def from_json(cls, kept: Any) -> ClipMemory:
        """Restore a stored memory. Invalid parts are ignored."""
        memory = cls()
        if not isinstance(kept, Mapping):
            return memory
        memory.ratio.partners.extend(_numbers(kept.get("partners")))
        fragments = kept.get("fragments")
        fragments = fragments if isinstance(fragments, Mapping) else {}
        for fragment in range(MOST_FRAGMENTS) if fragments else ():
            if isinstance(one := fragments.get(str(fragment)), Mapping):
                found = memory.of(fragment)
                found.distances.extend(_numbers(one.get("distances")))
                found.work.extend(_numbers(one.get("work")))
        return memory


def lower_median(values: Iterable[float]) -> float:
    """Return the middle value; the lower one of two."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def _numbers(kept: Any) -> list[float]:
    """Return the latest numbers of a stored list that are valid lengths."""
    given = kept[-REMEMBERED:] if isinstance(kept, list) else []
    return [float(number) for number in given if type(number) in (int, float) and 0 <= number < math.inf]
