"""Tests of the plausibility of a shard's result, by its length and direction compared with what is usual."""

from __future__ import annotations

import itertools

import pytest

from peer.protocol.group.plausibility import KEPT, MeasuredResult, ResultHistory

MEMBERS = 8


def result(
    rms: float = 1.0, cosine: float = 0.35, own: float = 2.0, named: int = 8, us: bool = True, elements: int = 10_000
) -> MeasuredResult:
    """Return a measured result; by default an honest one, the mean of eight contributions that have little in
    common."""
    return MeasuredResult(rms, own, cosine, elements, named, us)


def doubts(one: MeasuredResult, others: list[MeasuredResult], history: ResultHistory | None = None) -> str:
    """Return why shard 0 is doubted, and assert that no other shard is."""
    found = (history or ResultHistory()).doubts(dict(enumerate([one, *others])), MEMBERS)
    assert found.keys() <= {0}
    return found.get(0, "")


def test_an_honest_round_raises_no_doubt() -> None:
    assert doubts(result(1.1, 0.3), [result(0.9), result(1.0), result(1.2, 0.4)]) == ""


@pytest.mark.parametrize(("rms", "cosine", "why"), [(10, -0.35, "as long"), (1, -0.35, "against"), (5.1, 0.35, "long")])
def test_a_lie_is_doubted_in_the_first_round_already(rms: float, cosine: float, why: str) -> None:
    assert why in doubts(result(rms, cosine), [result()] * 3)


def test_two_liars_of_eight_do_not_make_the_usual_theirs() -> None:
    lies, honest = [result(10, -0.35)] * 2, [result()] * 6
    assert ResultHistory().doubts(dict(enumerate([*lies, *honest])), MEMBERS).keys() == {0, 1}


@pytest.mark.parametrize("cosines", [(0.1, 0.1, 0.1), (-0.1, 0.0, 0.2), (-0.3, -0.3, -0.3)])
def test_a_part_that_does_not_lie_along_the_mean_tells_no_direction(cosines: tuple[float, ...]) -> None:
    """Such a contribution comes from a slow machine, or from one with data that no other member has."""
    assert doubts(result(1, -0.3), [result(1, cosine) for cosine in cosines]) == ""


def test_only_a_clear_direction_counts() -> None:
    assert doubts(result(1, -0.17), [result(1, 0.35)] * 3) == ""
    assert doubts(result(1, -0.18), [result(1, 0.35)] * 3) != ""


def test_a_short_shard_may_point_anywhere_by_chance() -> None:
    others = [result()] * 3
    assert doubts(result(1, -0.3, elements=100), others) == ""
    assert "against" in doubts(result(1, -0.3, elements=200), others)


def test_the_slow_take_results_many_times_longer_than_their_part() -> None:
    slow = [result(1.0, 0.05, own=0.05)] * 3
    assert doubts(result(2.4, 0.05, own=0.05), slow) == ""
    assert doubts(result(2.6, 0.05, own=0.05), slow) != ""


def test_the_fast_take_results_as_long_as_their_part() -> None:
    fast = [result(0.2, own=1.0)] * 3
    assert doubts(result(2.4, own=1.0), fast) == ""
    assert doubts(result(2.6, own=1.0), fast) != ""


def test_what_was_applied_tells_where_there_are_few_shards() -> None:
    history = ResultHistory()
    assert doubts(result(10, -0.35, own=0.1), [], history) == "", "nothing is known"
    for _ in range(3):
        history.applied([result(own=0.1)])
    assert "as long" in doubts(result(10, 0.35, own=0.1), [], history)
    assert "against" in doubts(result(1, -0.35, own=0.1), [], history)
    assert doubts(result(1, 0.35, own=0.1), [], history) == ""


def test_what_is_usual_follows_a_run_whose_steps_grow() -> None:
    history = ResultHistory()
    for round_ in range(3 * KEPT):
        rms = 1.3**round_
        assert doubts(result(rms, own=0.0), [result(rms, own=0.0)] * 7, history) == "", round_
        history.applied([result(rms, own=0.0)] * 8)
    assert history.last_rms == pytest.approx(rms)


@pytest.mark.parametrize(("named", "us"), list(itertools.product((5, 8), (False, True))))
def test_a_result_without_our_part_may_not_be_long_either(named: int, us: bool) -> None:
    assert doubts(result(10, named=named, us=us), [result()] * 3) != ""
    assert (doubts(result(1, -0.35, named=named, us=us), [result()] * 3) != "") == us


@pytest.mark.parametrize("named", [0, 1, 3, 4])
def test_an_owner_that_names_too_few_to_be_checked_is_refused(named: int) -> None:
    assert "too few" in doubts(result(named=named, us=False), [result()] * 3)


def test_among_three_nobody_is_doubted() -> None:
    rows = [result(10, -0.35, named=3), result(1, named=3), result(1, named=3)]
    assert ResultHistory().doubts(dict(enumerate(rows)), 3) == {}
