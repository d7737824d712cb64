"""Tests of which contributors an owner leaves out, by the agreement of their contributions."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from statistics import median_low

import pytest

from peer.protocol.group.contributor_judge import ENOUGH, FEWEST, REMEMBERED, ContributorJudge, PartsComparison
from peer.protocol.messages import PeerId


def names(count: int) -> tuple[PeerId, ...]:
    return tuple(PeerId(f"peer {number}") for number in range(count))


def compared(parts: list[list[float]]) -> PartsComparison:
    lengths = [math.hypot(*part) for part in parts]
    cosines = [
        [sum(x * y for x, y in zip(a, b, strict=True)) / (m * n) for b, n in zip(parts, lengths, strict=True)]
        for a, m in zip(parts, lengths, strict=True)
    ]
    deviation = 1 / math.sqrt(len(parts[0]))
    usual = median_low(lengths)
    return PartsComparison(
        names(len(parts)), cosines, [[deviation] * len(parts)] * len(parts), [length / usual for length in lengths]
    )


def drawn(seed: int, signs: list[float], common: float = 0.5) -> PartsComparison:
    """Return contributions: noise with a standard deviation of one, plus `common` times a common direction, times a
    sign."""
    dice = random.Random(f"parts {seed}")
    direction = [dice.gauss(0, 1) for _ in range(400)]
    return compared([[sign * (common * way + dice.gauss(0, 1)) for way in direction] for sign in signs])


def left_out(signs: list[float], rounds: int = 1, common: float = 0.5) -> list[set[PeerId]]:
    judge = ContributorJudge()
    return [set(judge.judge(drawn(number, signs, common))) for number in range(rounds)]


@pytest.mark.parametrize("liars", [1, 2, 3])
def test_a_turned_sign_is_left_out_in_the_first_round(liars: int) -> None:
    signs = [-1.0] * liars + [1.0] * (8 - liars)
    assert left_out(signs) == [set(names(liars))]


def test_colluders_who_send_the_opposite_of_the_common_direction_turn_nobody_else() -> None:
    """The sum of their contributions is longer than that of the six honest ones, so a mean would point their way."""
    dice = random.Random("colluders")
    direction = [dice.gauss(0, 1) for _ in range(400)]
    honest = [[0.35 * way + dice.gauss(0, 1) for way in direction] for _ in range(6)]
    colluding = [[-9.0 * way for way in direction] for _ in range(2)]
    assert set(ContributorJudge().judge(compared([*colluding, *honest]))) == set(names(2))


def test_what_a_single_round_does_not_show_several_do() -> None:
    rounds = left_out([-1.0] + [1.0] * 7, rounds=12, common=0.3)
    assert rounds[0] == set()
    assert rounds[-1] == set(names(1))


def test_the_sentence_names_both_cosines() -> None:
    (why,) = ContributorJudge().judge(drawn(1, [-1.0] + [1.0] * 7)).values()
    assert "(cosine -0." in why
    assert "as a rule 0." in why


@pytest.mark.parametrize("common", [0.0, 0.1, 0.3, 0.5, 2.0])
def test_honest_members_stay_in_however_much_they_have_in_common(common: float) -> None:
    assert left_out([1.0] * 8, rounds=30, common=common) == [set()] * 30


def test_members_whose_data_point_against_each_other_are_not_judged() -> None:
    judge = ContributorJudge()
    cosines = [[1.0 if row == column else -1 / 7 for column in range(8)] for row in range(8)]
    for _ in range(20):
        assert not judge.judge(PartsComparison(names(8), cosines, [[0.01] * 8] * 8, [9.0] * 8))


def test_noise_alone_is_tolerated() -> None:
    """A useless contribution does little harm, and a contribution from other data may look the same."""
    judge, dice = ContributorJudge(), random.Random("noise")
    for _ in range(10):
        direction = [dice.gauss(0, 1) for _ in range(400)]
        parts = [[0.3 * bool(peer) * way + dice.gauss(0, 1) for way in direction] for peer in range(8)]
        assert not judge.judge(compared(parts))


@pytest.mark.parametrize(("along", "length", "out"), [(0.0, 5.0, 1), (0.0, 3.0, 0), (1.0, 50.0, 0)])
def test_a_part_far_too_long_is_left_out_unless_it_points_along(along: float, length: float, out: int) -> None:
    dice = random.Random("long")
    direction = [dice.gauss(0, 1) for _ in range(400)]
    honest = [[0.4 * way + dice.gauss(0, 1) for way in direction] for _ in range(7)]
    long = [length * (0.4 * along * way + dice.gauss(0, 1)) for way in direction]
    found = ContributorJudge().judge(compared([long, *honest]))
    assert list(found) == list(names(out))
    assert all("as long as its tokens explain" in why for why in found.values())


def test_good_rounds_bring_a_contributor_back() -> None:
    judge = ContributorJudge()
    for number in range(10):
        assert judge.judge(drawn(number, [-1.0] + [1.0] * 7))
    assert [bool(judge.judge(drawn(number, [1.0] * 8))) for number in range(10, 14)] == [True, False, False, False]


def test_fewer_than_half_are_left_out_whatever_happened_before() -> None:
    judge = ContributorJudge()
    for turned in ((0, 1, 2), (3, 4, 5)):
        for number in range(3):
            found = judge.judge(drawn(number, [-1.0 if peer in turned else 1.0 for peer in range(8)]))
            assert len(found) <= 3


@pytest.mark.parametrize("count", range(1, FEWEST))
def test_among_few_nobody_is_judged(count: int) -> None:
    judge = ContributorJudge()
    for _ in range(5):
        assert not judge.judge(drawn(1, [-1.0, 1.0, 1.0][:count]))


def test_the_memory_is_bounded() -> None:
    judge, found = ContributorJudge(), drawn(1, [-1.0] * 3 + [1.0] * 5)
    for batch in range(REMEMBERED // 2):
        judge.judge(replace(found, peers=tuple(PeerId(f"{batch} {number}") for number in range(8))))
    assert len(judge._evidence) == REMEMBERED
    assert all(0 < evidence <= 2 * ENOUGH for evidence in judge._evidence.values())
