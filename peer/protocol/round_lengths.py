"""Lengths of rounds, counted in slots.

A slot is the shortest round. A round lasts one slot, or as many as the signed manifest states. All numbers are
integers, so that every machine computes the same rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

Growth = tuple[tuple[int, int], ...]
"""Ascending (round, slots): from this round on each round lasts that many slots. Before the first entry it is one."""
MOST_CHANGES = 4096
MOST_SLOTS = 10**6
"""Slots of the longest run whose rounds may grow."""


def slots_before(growth: Growth, round_: int) -> int:
    """Return the number of slots before a round. Rounds with negative numbers have one slot each."""
    slots, since, length = 0, 0, 1
    for first, following in growth:
        if first >= round_:
            break
        slots += (first - since) * length
        since, length = first, following
    return slots + (round_ - since) * length


def slots_of(growth: Growth, round_: int) -> int:
    """Return the number of slots of a round."""
    return slots_before(growth, round_ + 1) - slots_before(growth, round_)


def round_of(growth: Growth, slot: int) -> int:
    """Return the round that contains a slot."""
    begun, since, length = 0, 0, 1
    for first, following in growth:
        changed = begun + (first - since) * length
        if slot < changed:
            break
        begun, since, length = changed, first, following
    return since + (slot - begun) // length


def growth_problem(growth: Growth, total: int) -> str:
    """Return why a run of `total` slots cannot be divided into such rounds, as a sentence. Empty: it can."""
    if any(first < 0 or slots < 1 for first, slots in growth):
        return "a change is [round, length], with a round from 0 on and a length of at least 1"
    if any(later <= first for (first, _), (later, _) in pairwise(growth)):
        return "the rounds of the changes must ascend"
    rounds = round_of(growth, total)
    if (begun := slots_before(growth, rounds)) != total:
        return f"round {rounds} would end after the run: {total - begun} of its {slots_of(growth, rounds)} lengths fit"
    return ""


def quadratic_growth(growth_lr: float, lr_at: Callable[[float], float], total: int) -> Growth:
    """Return the growth of rounds while the learning rate decreases, for a run of `total` slots: the quadratic
    synchronization rule (arXiv 2310.14423, Eq. 2). With lr the learning rate at the start of a round,

        slots = max(1, floor((growth_lr / lr)^2))

    The paper's H is slots * sync_every, and its alpha is growth_lr * sqrt(sync_every). `lr_at` maps progress in [0, 1]
    to a learning rate. In the warm-up it has to return the peak, as in the paper. The last round ends with the run.

    The caller writes the result into the manifest. Other machines must not compute it again, because their cosines may
    differ."""
    assert 0 < total <= MOST_SLOTS, total
    assert growth_lr > 0, growth_lr
    growth, begun, round_, length = list[tuple[int, int]](), 0, 0, 1
    while begun < total:
        lr, left = lr_at(begun / total), total - begun
        ratio = growth_lr / lr if lr > 0 else math.inf
        slots = max(1, math.floor(min(ratio * ratio, left)))
        if slots != length:
            growth.append((round_, slots))
        begun, round_, length = begun + slots, round_ + 1, slots
    return tuple(growth)
