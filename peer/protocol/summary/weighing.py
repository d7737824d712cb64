"""Means and quantiles of what peers say, where each address block has one voice.

Keys are free, addresses are not: as with votes (`peer.protocol.swarm.block_votes`), all peers of a block weigh as much
together as a peer that is alone in its block. Where all of them are in one block, each peer has a voice."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Voice(NamedTuple):
    """A number that one peer says, and how much its word weighs."""

    value: float
    weight: float


class Quartiles(NamedTuple):
    """The middle of some numbers, and where half of them lie."""

    low: float
    median: float
    high: float


def voices(said: Sequence[tuple[str, float | None]]) -> list[Voice]:
    """Weigh (address block, number) pairs. Numbers that are missing or not finite are dropped."""
    usable = [(block, value) for block, value in said if value is not None and math.isfinite(value)]
    sizes = Counter(block for block, _ in usable)
    if len(sizes) < 2:
        return [Voice(value, 1.0) for _, value in usable]
    return [Voice(value, 1.0 / sizes[block]) for block, value in usable]


def quartiles(said: Sequence[Voice]) -> Quartiles | None:
    """Return the weighted quartiles; None: nobody said anything."""
    if not said:
        return None
    return Quartiles(_quantile(said, 0.25), _quantile(said, 0.5), _quantile(said, 0.75))


def mean(said: Sequence[Voice]) -> float | None:
    """Return the weighted mean; None: nobody said anything."""
    total = sum(voice.weight for voice in said)
    return sum(voice.value * voice.weight for voice in said) / total if total else None


def lower_median(said: Sequence[Voice]) -> float | None:
    """Return the first value up to which half of the weight lies, which somebody said; None: nobody said anything."""
    half, reached = sum(voice.weight for voice in said) / 2, 0.0
    for voice in sorted(said):
        reached += voice.weight
        if reached >= half or math.isclose(reached, half):
            return voice.value
    return None


def _quantile(said: Sequence[Voice], share: float) -> float:
    """Return the first value up to which at least this share of the weight lies. Between two values it is their mean,
    where the share falls just there."""
    ordered = sorted(said)
    wanted = share * sum(voice.weight for voice in ordered)
    reached = 0.0
    for voice, following in zip(ordered, [*ordered[1:], ordered[-1]], strict=True):
        reached += voice.weight
        if math.isclose(reached, wanted):
            return (voice.value + following.value) / 2
        if reached > wanted:
            return voice.value
    return ordered[-1].value
