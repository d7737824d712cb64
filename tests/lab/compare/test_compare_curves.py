"""A swarm's course, read off the journals of its peers."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from peer.lab.compare.curve import Mark, curve_of, loss_at, mean_of, reached
from peer.observe.events import Evaluated, Event, RoundEnded, TrainingBegan


def ended(round_: int, upto: int, sent: int) -> RoundEnded:
    return RoundEnded(
        round=round_,
        fragment=round_ % 2,
        outcome="exchanged",
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
    start, end = curve_of([ONE, OTHER])
    assert start == Mark(0, tokens=0, bytes=0.0, seconds=1.0, loss=5.5, evaluated=2)
    assert end == Mark(2, tokens=170, bytes=10.0, seconds=22.0, loss=3.5, evaluated=2)


def test_bytes_may_stand_for_more() -> None:
    assert curve_of([ONE, OTHER], 2.5)[1].bytes == 25.0


def test_a_peer_without_an_evaluation_counts_with_what_it_did_by_then() -> None:
    killed = journal(101.0, (112.0, ended(0, 30, 4)), (140.0, ended(1, 1000, 1000)))
    end = curve_of([ONE, killed])[1]
    assert (end.tokens, end.bytes, end.loss) == (80 + 30, 10.0, 3.0)


def test_a_loss_that_is_no_number_is_no_evaluation() -> None:
    assert curve_of([journal(0.0, (1.0, evaluated(0, math.nan)))]) == ()
    assert curve_of([]) == ()


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

    assert curve_of(one for one in [once()]) == curve_of([ONE])
