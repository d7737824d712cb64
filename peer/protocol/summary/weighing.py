"""Means and quantiles over numbers from peers, in which each address block has one vote.

A key costs nothing, an address does. So, as with `peer.protocol.swarm.block_votes`, all peers of a block together weigh
as much as a peer that is alone in its block. If all peers are in one block, each has one vote."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple


class Voice(NamedTuple):
    """A number from one peer, and its weight."""

    value: float
    weight: float


class Quartiles(NamedTuple):
    """Median and quartiles of some numbers."""

    low: float
    median: float
    high: float


def voices(said: Sequence[tuple[str, float | None]]) -> list[Voice]:
    """Return the weighted numbers of (address block, number) pairs. Numbers that are missing or not finite are
    dropped."""
    usable = [(block, value) for block, value in said if value is not None and math.isfinite(value)]
    sizes = Counter(block for block, _ in usable)
    if len(sizes) < 2:
        return [Voice(value, 1.0) for _, value in usable]
    return [Voice(value, 1.0 / sizes[block]) for block, value in usable]


def quartiles(said: Sequence[Voice]) -> Quartiles | None:
    """Return the weighted quartiles; None: no numbers."""
    if not said:
        return None
    return Quartiles(_quantile(said, 0.25), _quantile(said, 0.5), _quantile(said, 0.75))


def mean(said: Sequence[Voice]) -> float | None:
    """Return the weighted mean; None: no numbers."""
    total = sum(voice.weight for voice in said)
    return sum(voice.value * voice.weight for voice in said) / total if total else None


def lower_median(said: Sequence[Voice]) -> float | None:
    """Return the smallest of the numbers up to which half of the weight lies; None: no numbers."""
    half, reached = sum(voice.weight for voice in said) / 2, 0.0
    for voice in sorted(said):
        reached += voice.weight
        if reached >= half or math.isclose(reached, half):
            return voice.value
    return None


def _quantile(said: Sequence[Voice], share: float) -> float:
    """Return the smallest number up to which at least the fraction `share` of the weight lies. If the share is reached
    exactly at a number, return the mean of it and the next one."""
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
