"""How well a swarm mixes if proven peers have priority: the spectral gap of the expected mixing matrix.

The matchings here are computed as the protocol's result: the best free edge is locked first. test_matching.py runs the
protocol itself."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from peer.protocol.messages import PeerId, RoundKey, RunId
from peer.protocol.pair.acquaintance import Acquaintance
from peer.protocol.pair.proven import BLOCK_ROUNDS, MIXING_GAP, ProvenPeers, unbiased
from peer.protocol.pair.scores import score

RUN = RunId(b"m" * 32)
ROUNDS = 300
Edge = tuple[int, int]
Holds = Callable[[int, int], bool]
"""Returns whether a property holds for a pair, given as (smaller number, larger number)."""


def ids(count: int) -> list[PeerId]:
    return [PeerId(f"peer-{number:03d}") for number in range(count)]


def matched(count: int, round_: int, proven: Holds, free: Holds = lambda i, j: True) -> list[Edge]:
    """Return the pairs of a round by a greedy model of the matching: the best edge first, each peer once.

    `proven`: whether the two have exchanged before, which comes first in biased rounds. `free`: whether they may meet
    at all."""
    scores, biased, pairs, left = random.Random(round_), not unbiased(RUN, round_), [], set(range(count))
    edges = [edge for edge in itertools.combinations(range(count), 2) if free(*edge)]
    for i, j in sorted(edges, key=lambda edge: (biased and proven(*edge), scores.random()), reverse=True):
        if i in left and j in left:
            left -= {i, j}
            pairs.append((i, j))
    return pairs


def mixing_of(count: int, rounds: list[list[Edge]]) -> np.ndarray:
    """Return the mean of the mixing matrices."""
    mean = np.zeros((count, count))
    for pairs in rounds:
        mixing = np.eye(count)
        for i, j in pairs:
            mixing[[i, i, j, j], [i, j, i, j]] = 0.5
        mean += mixing / len(rounds)
    return mean


def uniform(count: int) -> np.ndarray:
    """Return the expected mixing matrix of unbiased rounds, in which all pairs are equally likely."""
    together = 1 / (count - 1 + count % 2)
    return np.eye(count) * (1 - together * count / 2) + together / 2


def gap_of(mixing: np.ndarray) -> float:
    """Return one minus the second largest eigenvalue."""
    return float(1 - np.linalg.eigvalsh(mixing)[-2])


def expected(count: int, proven: Holds) -> np.ndarray:
    """Return the expected mixing matrix if some pairs have priority. The biased rounds are drawn at random."""
    biased = [matched(count, r, proven) for r in range(ROUNDS) if not unbiased(RUN, r)]
    return uniform(count) / BLOCK_ROUNDS + mixing_of(count, biased) * (1 - 1 / BLOCK_ROUNDS)


@pytest.mark.parametrize("count", [8, 9, 32])
def test_in_unbiased_rounds_all_pairs_are_equally_likely_and_the_gap_is_a_half(count: int) -> None:
    rounds = [matched(count, r, lambda i, j: i < 4) for r in range(4 * ROUNDS) if unbiased(RUN, r)]
    assert np.abs(mixing_of(count, rounds) - uniform(count)).max() < 0.05
    assert gap_of(uniform(count)) >= 0.5 - 1e-9


def test_all_scores_of_a_round_are_equally_likely() -> None:
    """The other tests draw random scores. The protocol's scores must rank the pairs just as evenly."""
    who, firsts = ids(8), Counter[Edge]()
    for round_ in range(1400):
        key = RoundKey(round_, 0)
        firsts[max(itertools.combinations(range(8), 2), key=lambda e: score(RUN, key, who[e[0]], who[e[1]]))] += 1
    assert len(firsts) == 28
    assert max(abs(count - 50) for count in firsts.values()) < 4 * 50**0.5


@pytest.mark.parametrize("count", [8, 32])
@pytest.mark.parametrize("strangers", [0.5, 0.25, 0.125])
def test_a_swarm_with_newcomers_mixes(count: int, strangers: float) -> None:
    old = round(count * (1 - strangers))
    assert gap_of(expected(count, lambda i, j: j < old)) > MIXING_GAP


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_a_swarm_in_which_trust_is_random_mixes(share: float) -> None:
    rng = random.Random(3)
    trust = {edge for edge in itertools.combinations(range(16), 2) if rng.random() < share}
    assert gap_of(expected(16, lambda i, j: (i, j) in trust)) > MIXING_GAP


def test_even_where_each_has_one_favourite_the_gap_is_bounded() -> None:
    def favourites(i: int, j: int) -> bool:
        return i // 2 == j // 2

    assert gap_of(expected(32, favourites)) > MIXING_GAP
    biased = [matched(32, r, favourites) for r in range(ROUNDS) if not unbiased(RUN, r)]
    assert gap_of(mixing_of(32, biased)) == pytest.approx(0.0, abs=1e-9), "those rounds alone would not mix at all"


def grown(count: int, rounds: int, liars: int = 0) -> tuple[list[float], float]:
    """Play rounds in which peers become proven to each other from nothing; `liars` more peers join after half of the
    rounds. Return the swarm's spread in each quarter of the rounds, and the fraction of the honest peers' meetings that
    are with liars, after the liars joined.

    Each peer makes an independent random step in every round."""
    rng, everybody = np.random.default_rng(1), ids(count + liars)
    proven, met = [ProvenPeers() for _ in everybody], [Acquaintance() for _ in everybody]
    values, spread, hostile, meetings = np.zeros((count, 64)), list[float](), 0, 0
    for round_ in range(rounds):
        here = range(count + liars if round_ >= rounds // 2 else count)
        present = [everybody[i] for i in here]
        first = [proven[i].going_first([p for p in present if p != everybody[i]]) for i in here]
        among = [proven[i].among(present) for i in here]
        tired = [met[i].all_met_too_often(round_, len(present), among[i]) for i in here]
        pairs = matched(
            len(present),
            round_,
            lambda i, j, first=first: everybody[j] in first[i] and everybody[i] in first[j],
            lambda i, j, tired=tired: everybody[j] not in tired[i] and everybody[i] not in tired[j],
        )
        values += rng.normal(size=values.shape)
        for i, j in pairs:
            for one, other in ((i, j), (j, i)):
                met[one].met(everybody[other], round_)
                if other < count:  # exchanges with liars are refused
                    proven[one].accepted(everybody[other])
            if j < count:
                values[[i, j]] = (values[i] + values[j]) / 2
        spread.append(float(np.sqrt(((values - values.mean(0)) ** 2).mean())))
        if round_ >= rounds // 2:
            meetings += sum((i < count) + (j < count) for i, j in pairs)
            hostile += sum((i < count) != (j < count) for i, j in pairs)
    return [float(np.mean(part)) for part in np.array_split(spread, 4)], hostile / meetings


@pytest.mark.parametrize(("count", "rounds"), [(8, 160), (32, 320)])
def test_a_young_swarm_in_which_few_are_proven_stays_together(count: int, rounds: int) -> None:
    spread, _ = grown(count, rounds)
    fixed = {8: 0.80, 32: 0.955}[count]  # spread with unbiased matchings
    assert max(spread) < 1.08 * fixed, spread


def test_a_flood_of_fresh_keys_gets_a_quarter_of_the_meetings_at_most() -> None:
    _, share = grown(8, 160, liars=40)
    assert share < 0.25
    everything = 40 / 47
    assert share < 0.3 * everything
