from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.outer.groupmean import FAR, PIECE, factors, lower_median, norm, weighted_mean


def test_the_mean_is_weighted_by_tokens() -> None:
    values = [torch.randn(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    tokens = [100, 250, 30, 400, 120]
    exact = sum(v.double() * t for v, t in zip(values, tokens, strict=True)) / sum(tokens)
    mean = weighted_mean([v.clone() for v in values], tokens)
    assert mean.dtype == torch.float32
    assert float((mean.double() - exact).abs().max()) < 5e-7


def test_nobody_weighs_more_than_ten_times_the_median() -> None:
    values = [torch.zeros(3), torch.zeros(3), torch.ones(3)]
    assert torch.allclose(weighted_mean(values, [100, 100, 10**12]), torch.full((3,), 10 / 12))


ALIKE = [100] * 4


def test_what_is_longer_than_ten_times_the_median_is_made_that_long() -> None:
    assert factors([1.0, 1.2, 9.9, 10.1], ALIKE) == [1.0, 1.0, 1.0, 1.0], "the median is the lower of two, 1.2"
    assert factors([1.0, 1.0, 9.9, 40.0], ALIKE) == [1.0, 1.0, 1.0, 0.25]
    assert factors([1.0, 20.0], [100, 100]) == [1.0, 0.5]
    assert factors([0.0, 0.0, 5.0], ALIKE[:3]) == [1.0, 1.0, 1.0]
    assert factors([3.0], [100]) == [1.0]


def test_what_no_work_explains_is_refused() -> None:
    assert factors([1.0, 1.0, 1.0, 101.0], ALIKE) == [1.0, 1.0, 1.0, 0.0]
    assert factors([1.0, 1.0, 1.0, 101.0], [100, 100, 100, 2000])[3] == 10.0 / 101.0
    assert factors([1.0, 1.0, 1.0, 2001.0], [100, 100, 100, 2000])[3] == 0.0
    assert factors([1.0, 1.0, 1.0, 101.0], [100, 100, 100, 1])[3] == 0.0, "who did less has no more room for it"


@given(st.lists(st.tuples(st.floats(0, 1e30), st.integers(1, 2**40)), min_size=1, max_size=9))
def test_nothing_counts_for_more_than_ten_times_the_median(parts: list[tuple[float, int]]) -> None:
    norms, tokens = [norm for norm, _ in parts], [count for _, count in parts]
    most = FAR * lower_median(norms) or max(norms)
    shrunk = [norm * factor for norm, factor in zip(norms, factors(norms, tokens), strict=True)]
    assert max(shrunk) <= most * (1 + 1e-12)


def test_the_norm_does_not_overflow() -> None:
    assert math.isclose(norm(torch.full((4,), 1e30)), 2e30, rel_tol=1e-6)


def test_the_norm_of_many_pieces_is_that_of_the_whole() -> None:
    values = torch.randn(3 * PIECE + 5, generator=torch.Generator().manual_seed(0))
    assert math.isclose(norm(values), float(torch.linalg.vector_norm(values.double())), rel_tol=1e-12)
    values[2 * PIECE] = math.nan
    assert math.isnan(norm(values))
    values[2 * PIECE] = math.inf
    assert norm(values) == math.inf
