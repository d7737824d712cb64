from __future__ import annotations

import math

import torch

from peer.outer.groupmean import PIECE, norm, too_far, weighted_mean


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


def test_far_is_ten_times_the_median_norm() -> None:
    assert too_far({"a": 1.0, "b": 1.2, "c": 9.9, "d": 10.1}) == []
    assert too_far({"a": 1.0, "b": 1.0, "c": 9.9, "d": 10.1}) == ["d"]
    assert too_far({"a": 1.0, "b": 10.1}) == ["b"]
    assert too_far({"a": 0.0, "b": 0.0, "c": 5.0}) == []
    assert too_far({"a": 3.0}) == []


def test_the_norm_does_not_overflow() -> None:
    assert math.isclose(norm(torch.full((4,), 1e30)), 2e30, rel_tol=1e-6)


def test_the_norm_of_many_pieces_is_that_of_the_whole() -> None:
    values = torch.randn(3 * PIECE + 5, generator=torch.Generator().manual_seed(0))
    assert math.isclose(norm(values), float(torch.linalg.vector_norm(values.double())), rel_tol=1e-12)
    values[2 * PIECE] = math.nan
    assert math.isnan(norm(values))
    values[2 * PIECE] = math.inf
    assert norm(values) == math.inf
