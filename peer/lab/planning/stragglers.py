"""The cost of waiting when inner steps take a random time: a group that waits for all members against pairs.

Inner steps take independent log-normal times, and messages take no time. A group begins its next round when its slowest
member has done `steps` inner steps. In a pair, each peer waits only for its partner; but a delay spreads from pair to
pair over the rounds, so the mean round of pairs is longer than the slower of two peers. The model is that of NoLoCo
(arXiv 2506.10911, section 5.3 and Figure 5B), simulated with random numbers of a fixed seed."""

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
"""Number of simulated rounds, as in the paper's figure."""
DRAWS = 60_000_000
"""Most simulated inner steps. If `ROUNDS` rounds have more, fewer rounds are simulated, but at least ten."""
PAPER_STD = math.sqrt(math.exp(0.5) - 1)
"""Standard deviation divided by mean of an inner step in the paper's figure: the logarithm has variance 0.5."""


@dataclass(frozen=True, slots=True)
class RoundTimes:
    """Mean time of a round, as a multiple of the time of its inner steps without waiting."""

    group: float
    pair: float

    @property
    def overhead(self) -> float:
        """Time of a group's round divided by that of a pair's."""
        return self.group / self.pair


@cache
def round_times(peers: int, steps: int, std: float, seed: int = 0) -> RoundTimes:
    """Simulate rounds of `steps` inner steps, each of mean 1 and standard deviation `std`. Raises UsageError outside
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
