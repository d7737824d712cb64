"""The course of a swarm is read correctly from the journals of its peers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from peer.lab.compare.curve import Mark, Row, course_of, loss_at, mean_of, reached
from peer.observe.events import Evaluated, Event, Outcome, RoundEnded, RoundMissed, SatOut, Skipped, TrainingBegan


def ended(round_: int, upto: int, sent: int, outcome: Outcome = "exchanged") -> RoundEnded:
    return RoundEnded(
        round=round_,
        fragment=round_ % 2,
        outcome=outcome,
        partner="",
        reason="",
        applied=1,
        dropped=0,
        upto=upto,
        steps=1,
        bytes_sent=sent,
        bytes_received=0,
        seconds=0.0,
    )


def evaluated(round_: int, loss: float) -> Evaluated:
    return Evaluated(round=round_, loss=loss, bits_per_byte=loss)


def journal(began: float, *rest: tuple[float, Event]) -> list[tuple[float, Event]]:
    return [(began, TrainingBegan(round=0)), *rest]


ONE = journal(
    100.0,
    (100.0, evaluated(0, 5.0)),
    (110.0, ended(0, 40, 7)),
    (120.0, ended(1, 80, 9)),
    (121.0, evaluated(2, 3.0)),
)
OTHER = journal(
    102.0,
    (102.0, evaluated(0, 6.0)),
    (111.0, ended(0, 50, 1)),
    (122.0, ended(1, 90, 3)),
    (123.0, evaluated(2, 4.0)),
)


def test_tokens_add_up_and_the_rest_are_means() -> None:
    start, end = course_of([ONE, OTHER]).curve
    assert start == Mark(0, tokens=0, bytes=0.0, seconds=1.0, loss=5.5, evaluated=2)
    assert end == Mark(2, tokens=170, bytes=10.0, seconds=22.0, loss=3.5, evaluated=2)


def test_bytes_may_stand_for_more() -> None:
    assert course_of([ONE, OTHER], 2.5).curve[1].bytes == 25.0


def test_a_peer_without_an_evaluation_counts_with_what_it_did_by_then() -> None:
    killed = journal(101.0, (112.0, ended(0, 30, 4)), (140.0, ended(1, 1000, 1000)))
    end = course_of([ONE, killed]).curve[1]
    assert (end.tokens, end.bytes, end.loss) == (80 + 30, 10.0, 3.0)


def test_a_loss_that_is_no_number_is_no_evaluation() -> None:
    assert course_of([journal(0.0, (1.0, evaluated(0, math.nan)))]).curve == ()
    assert course_of([]).curve == ()


def marks(*losses: float) -> tuple[Mark, ...]:
    return tuple(Mark(at, 100.0 * at, 10.0 * at, 1.0 * at, loss) for at, loss in enumerate(losses))


def test_the_mean_of_seeds_has_the_rounds_of_all() -> None:
    assert mean_of([marks(6.0, 4.0, 3.0), marks(5.0, 3.0)]) == marks(5.5, 3.5)


def test_between_two_evaluations_the_loss_lies_on_their_line() -> None:
    curve = marks(6.0, 4.0, 3.0)
    assert [loss_at(curve, at) for at in (-5, 0, 50, 100, 150, 200, 900)] == [6.0, 6.0, 5.0, 4.0, 3.5, 3.0, 3.0]


@pytest.mark.parametrize(("target", "round_"), [(9.0, 0), (4.0, 1), (3.5, 2), (2.9, None)])
def test_a_target_is_reached_at_an_evaluation(target: float, round_: int | None) -> None:
    mark = reached(marks(6.0, 4.0, 3.0, 3.2), target)
    assert (None if mark is None else mark.round) == round_


def test_journals_may_be_read_once_only() -> None:
    def once() -> Iterator[tuple[float, Event]]:
        yield from ONE

    assert course_of(one for one in [once()]) == course_of([ONE])


def test_a_row_is_what_the_journal_says_of_a_peer_and_a_round() -> None:
    rows = course_of([ONE, OTHER], 2.0).rows
    assert rows == (
        Row(0, 1, "", 5.0, tokens=0, bytes=0.0, seconds=0.0),
        Row(0, 2, "", 6.0, tokens=0, bytes=0.0, seconds=2.0),
        Row(1, 1, "exchanged", None, tokens=40, bytes=14.0, seconds=10.0),
        Row(1, 2, "exchanged", None, tokens=50, bytes=2.0, seconds=11.0),
        Row(2, 1, "exchanged", 3.0, tokens=80, bytes=32.0, seconds=20.0),
        Row(2, 2, "exchanged", 4.0, tokens=90, bytes=8.0, seconds=22.0),
    )


def test_rounds_without_an_exchange_have_rows() -> None:
    sat_out = SatOut(round=1, fragment=0, reason="")
    rows = course_of(
        [
            journal(
                100.0,
                (110.0, ended(0, 40, 7, "solo")),
                (120.0, sat_out),
                (120.0, RoundMissed(round=1, fragment=0, reason="")),
                (130.0, RoundMissed(round=2, fragment=0, reason="")),
                (140.0, Skipped(from_round=3, to_round=5, reason="")),
                (150.0, ended(5, 90, 7, "refused")),
            )
        ]
    ).rows
    assert [(row.round, row.outcome, row.tokens) for row in rows] == [
        (1, "solo", 40),
        (2, "sat_out", 40),
        (3, "missed", 40),
        (4, "skipped", 40),
        (5, "skipped", 40),
        (6, "refused", 90),
    ]
