"""The cost of waiting when inner steps take a random time: a group that waits for all against pairs.

Inner steps take independent log-normal times, and messages take none. After `steps` inner steps a group begins its next
round when the slowest member is there. Of two partners each waits for the other alone. A delay therefore spreads from
pair to pair, and the mean round of pairs is longer than the slower of two. The model is that of NoLoCo (arXiv
2506.10911, section 5.3 and Figure 5B). It is played with random numbers of a fixed seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from peer.lab.planning.checks import between

MOST_PEERS = 4096
MOST_STEPS = 1000
MOST_STD = 2.0
ROUNDS = 500
"""Rounds that are played, as in the paper's figure."""
DRAWS = 60_000_000
"""Inner steps that are played at most, however many rounds that makes."""
PAPER_STD = math.sqrt(math.exp(0.5) - 1)
"""Standard deviation over mean of the figure's inner step, whose logarithm has variance .5."""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Mean time of a round, in times of its inner steps when nobody waits."""

    group: float
    pair: float

    @property
    def overhead(self) -> float:
        """Time of a group over that of pairs."""
        return self.group / self.pair


@cache
def round_times(peers: int, steps: int, std: float, seed: int = 0) -> RoundTimes:
    """Play rounds of `steps` inner steps, each of mean 1 and standard deviation `std`. Raises UsageError outside
    2..MOST_PEERS peers, 1..MOST_STEPS steps and 0..MOST_STD."""
    between("--peers", peers, 2, MOST_PEERS)
    between("--steps", steps, 1, MOST_STEPS)
    between("--std", std, 0.0, MOST_STD)
    rng = np.random.default_rng(seed)
    sigma = np.float32(math.sqrt(math.log1p(std**2)))
    rounds = max(10, min(ROUNDS, DRAWS // (peers * steps)))
    group, clocks = 0.0, np.zeros(peers)
    for _ in range(rounds):
        times = rng.standard_normal((peers, steps), dtype=np.float32) * sigma - sigma**2 / 2
        worked = np.exp(times).sum(axis=1, dtype=np.float64)
        group += float(worked.max())
        clocks += worked
        order = rng.permutation(peers)
        here, there = order[: peers // 2], order[peers // 2 : 2 * (peers // 2)]
        clocks[here] = clocks[there] = np.maximum(clocks[here], clocks[there])
    return RoundTimes(group / (rounds * steps), float(clocks.mean()) / (rounds * steps))
