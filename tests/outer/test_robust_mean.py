from __future__ import annotations

import math
from statistics import median_low

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from peer.outer.robust_mean import FEW, LONG, PIECE, WEIGHTS, WIDE, factors, norm, square, weighted_mean


def test_the_mean_is_weighted_by_tokens() -> None:
    values = [torch.randn(1000, generator=torch.Generator().manual_seed(seed)) for seed in range(5)]
    tokens = [100, 210, 30, 240, 120]
    exact = sum(v.double() * t for v, t in zip(values, tokens, strict=True)) / sum(tokens)
    mean = weighted_mean([v.clone() for v in values], tokens)
    assert mean.dtype == torch.float32
    assert float((mean.double() - exact).abs().max()) < 5e-7


@pytest.mark.parametrize(("members", "most"), [(2, 10.0), (3, 10.0), (4, 2.0), (8, 2.0)])
def test_nobody_weighs_more_than_so_many_times_the_median(members: int, most: float) -> None:
    values = [*(torch.zeros(3) for _ in range(members - 1)), torch.ones(3)]
    mean = weighted_mean(values, [100] * (members - 1) + [10**12])
    assert torch.allclose(mean, torch.full((3,), most / (members - 1 + most)))


@pytest.mark.parametrize("members", [2, 5])
def test_with_equal_weights_tokens_count_for_nothing(members: int) -> None:
    values = [torch.full((3,), 10.0 + number) for number in range(members)]
    mean = weighted_mean([one.clone() for one in values], [1, *range(100, 99 + members)], WEIGHTS["equal"])
    assert torch.allclose(mean, torch.stack(values).mean(0))


ALIKE = [100] * 4


def test_what_is_longer_than_the_others_is_made_shorter() -> None:
    assert factors([1.0, 1.2, 1.7, 1.9], ALIKE) == pytest.approx([1.0, 1.0, 1.0, 1.8 / 1.9]), (
        "the median is the lower one, 1.2"
    )
    assert factors([1.0, 1.0, 1.0, 6.0], ALIKE) == [1.0, 1.0, 1.0, 0.25]
    assert factors([0.0, 0.0, 0.0, 5.0], ALIKE) == [1.0] * 4
    assert factors([3.0], [100]) == [1.0]


def test_among_few_a_fast_machine_counts() -> None:
    assert factors([1.0, 20.0], [100, 2000]) == [1.0, 0.5]
    assert factors([1.0, 9.0, 1.0], [100, 2000, 100]) == [1.0] * 3


def test_what_no_work_explains_is_refused() -> None:
    assert factors([1.0, 1.0, 1.0, 101.0], ALIKE) == [1.0, 1.0, 1.0, 0.0]
    assert factors([1.0, 1.0, 1.0, 101.0], [100, 100, 100, 2000])[3] == 1.5 / 101.0
    assert factors([1.0, 1.0, 1.0, 2001.0], [100, 100, 100, 2000])[3] == 0.0
    assert factors([1.0, 1.0, 1.0, 101.0], [100, 100, 100, 1])[3] == 0.0, "who did less has no more room for it"
    assert factors([1.0, 1.0, 1.0, 1999.0], [100, 100, 100, 10**12])[3] == 1.5 / 1999.0
    assert factors([1.0, 1.0, 1.0, 2001.0], [100, 100, 100, 10**12])[3] == 0.0, "what it claims excuses no more"


@given(st.lists(st.tuples(st.floats(0, 1e30), st.integers(1, 2**40)), min_size=1, max_size=9))
def test_nothing_counts_for_more_than_that(parts: list[tuple[float, int]]) -> None:
    norms, tokens = [norm for norm, _ in parts], [count for _, count in parts]
    most = (LONG if len(parts) > FEW else WIDE) * median_low(norms) or max(norms)
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


def test_the_norm_is_added_up_in_an_order_of_its_own() -> None:
    """Fault: members recompute the mean on other machines, and would blame an honest owner if the order of the sum
    changed a bit."""
    values = torch.randn(PIECE + 1001, generator=torch.Generator().manual_seed(3)) * 10
    before, total = values.clone(), 0.0
    for piece in (values[:PIECE], values[PIECE:]):
        terms = [float(value) ** 2 for value in piece]
        while (count := len(terms)) > 1:
            half = count // 2
            terms = [terms[n] + terms[count - half + n] if n < half else terms[n] for n in range(count - half)]
        total += terms[0]
    assert square(values) == total
    assert square(values.double()) == total
    assert torch.equal(values, before)
    assert square(values[:0]) == 0.0
