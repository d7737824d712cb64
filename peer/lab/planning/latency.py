"""The cost of waiting when messages take a random time: an all-reduce over a tree against the mean of a pair.

Message times are independent and log-normal. In the tree (n leaves, every inner node over two halves) a parent waits
for the slower of its two children, and so on up to the root; the result goes down the same tree until the last leaf has
it. Averaging in a pair takes twice the slower of two messages. The model is that of NoLoCo (arXiv 2506.10911, section
5.3): with equal times the ratio is log2(n); with scattered times it is larger, because only the tree waits for the
slowest of all paths. Computed on a grid, without random numbers."""

from __future__ import annotations

import math
from functools import cache
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from peer.lab.planning.checks import between

Grid: TypeAlias = NDArray[np.float64]

MOST_PEERS = 1_000_000
MOST_STD = 5.0
POINTS = 2**16
BEYOND = 6.0
"""The grid extends beyond the expected largest of all message times by half of this many standard deviations of their
logarithm."""


def ratio(peers: int, std: float) -> float:
    """Return the expected time of the tree divided by that of the pair, for `peers` peers and message times of mean 1
    and standard deviation `std`. Raises UsageError outside 2..MOST_PEERS peers and 0..MOST_STD."""
    between("--peers", peers, 2, MOST_PEERS)
    between("--std", std, 0.0, MOST_STD)
    return tree_time(peers, std) / pair_time(std)


def pair_time(std: float) -> float:
    """Return the expected time of a mean of two, in mean message times: twice that of the slower of two messages, in
    closed form."""
    return 2 * (1 + math.erf(_sigma(std) / 2))


def tree_time(peers: int, std: float) -> float:
    """Return the expected time of an all-reduce over a tree of `peers` leaves, up and down, in mean message times."""
    depth = (peers - 1).bit_length()
    if std == 0:
        return 2.0 * depth
    step = _reach(peers, depth, std) / POINTS
    message = np.fft.rfft(_message(std, step), 2 * POINTS)

    @cache
    def within(leaves: int) -> Grid:
        """Return the probability, at each time of the grid, that a subtree of this many leaves has reported."""
        if leaves == 1:
            return np.ones(POINTS)
        larger, smaller = (_after(message, within(half)) for half in (leaves - leaves // 2, leaves // 2))
        return larger * smaller

    # By symmetry the way down has the same distribution as the way up, so double it.
    return 2.0 * step * float(np.sum(1.0 - within(peers)))


def _after(message: NDArray[np.complex128], within: Grid) -> Grid:
    """Return the distribution function of a time plus a message's time. `message`: transform of the message's masses.
    `within`: distribution function of the time."""
    later: Grid = np.fft.irfft(message * np.fft.rfft(within, 2 * POINTS), 2 * POINTS)[:POINTS]
    return np.clip(later, 0.0, 1.0)


def _message(std: float, step: float) -> Grid:
    """Return the probability masses of a message's time on the grid. Each time is divided between its two neighbours so
    that the mean is exact."""
    edges = step * np.arange(POINTS + 1)
    area = np.array([_area(float(edge), std) for edge in edges])
    masses: Grid = np.diff(area, n=2, prepend=0.0) / step
    return masses


def _area(time: float, std: float) -> float:
    """Return the integral of the log-normal distribution function of mean 1 from 0 to `time`."""
    if time == 0:
        return 0.0
    sigma = _sigma(std)
    deviation = math.log(time) / sigma + sigma / 2
    return time * _normal(deviation) - _normal(deviation - sigma)


def _normal(deviation: float) -> float:
    return 0.5 * math.erfc(-deviation / math.sqrt(2))


def _reach(peers: int, depth: int, std: float) -> float:
    """Return a time that the tree exceeds with negligible probability, where the grid ends."""
    sigma = _sigma(std)
    slowest = math.sqrt(2 * math.log(2 * peers)) + BEYOND / 2
    return 2 * depth + 2 * math.exp(sigma * slowest - sigma**2 / 2)


def _sigma(std: float) -> float:
    """Return the standard deviation of the logarithm of a log-normal time of mean 1. Its mean is -sigma^2 / 2."""
    return math.sqrt(math.log1p(std**2))
