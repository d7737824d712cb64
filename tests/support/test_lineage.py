from __future__ import annotations

from peer.trainer.batch_log import Trained
from tests.support.batch_lineage import Life, Place, Resumed, line_of

STEPS = 4
TOKENS = 128


def trained(tokens: int, *places: Place) -> list[Trained]:
    return [Trained(1, tokens + n * TOKENS, round_, step, "") for n, (round_, step) in enumerate(places)]


def first_life() -> Life:
    """Two rounds and a half."""
    places = [(round_, step) for round_ in range(3) for step in range(STEPS)][:10]
    return Life(0, None, trained(0, *places))


def after_two_rounds(place: Place = (2, 0)) -> Resumed:
    return Resumed("checkpoint-1", 8 * TOKENS, 2, place)


def test_a_killed_peer_does_the_lost_batches_again_and_no_others() -> None:
    second = Life(10 * TOKENS, after_two_rounds(), trained(10 * TOKENS, (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)))
    line, wrong = line_of([first_life(), second], STEPS)
    assert wrong == []
    assert [(step.round, step.step) for step in line] == [(r, s) for r in range(4) for s in range(STEPS)][:13]


def test_after_a_clean_leave_it_goes_on_in_the_middle_of_the_round() -> None:
    left = Resumed("checkpoint-2", 10 * TOKENS, 2, (2, 2))
    line, wrong = line_of([first_life(), Life(10 * TOKENS, left, trained(10 * TOKENS, (2, 2), (2, 3)))], STEPS)
    assert wrong == []
    assert len(line) == 12


def test_a_checkpoint_after_the_last_step_of_a_round_goes_on_with_the_next() -> None:
    first = Life(0, None, trained(0, *((0, step) for step in range(STEPS))))
    left = Resumed("checkpoint-2", STEPS * TOKENS, 0, (0, STEPS))
    second = Life(STEPS * TOKENS, left, trained(STEPS * TOKENS, (1, 0), (1, 1)))
    assert line_of([first, second], STEPS)[1] == []
    second.trained = trained(STEPS * TOKENS, (1, 1))
    assert "leaves out batches: begins at (1, 1) and not at (1, 0)" in line_of([first, second], STEPS)[1][0]


def told(second: Life) -> str:
    return "\n".join(line_of([first_life(), second], STEPS)[1])


def test_a_repeated_a_left_out_and_a_jumped_batch_are_seen() -> None:
    left = Resumed("checkpoint-2", 10 * TOKENS, 2, (2, 2))
    assert "repeats batches: begins at (2, 1) and not at (2, 2)" in told(
        Life(10 * TOKENS, left, trained(10 * TOKENS, (2, 1)))
    )
    assert "leaves out batches: begins at (2, 3)" in told(Life(10 * TOKENS, left, trained(10 * TOKENS, (2, 3))))
    assert "after (2, 0) comes (2, 2) and not (2, 1)" in told(
        Life(10 * TOKENS, after_two_rounds(), trained(10 * TOKENS, (2, 0), (2, 2)))
    )


def test_a_checkpoint_that_names_another_place_than_what_was_trained_is_seen() -> None:
    later = Resumed("checkpoint-3", 8 * TOKENS, 3, (3, 0))  # a round too many
    assert "says that it goes on at (3, 0)" in told(Life(10 * TOKENS, later, trained(10 * TOKENS, (3, 0))))


def test_a_falling_token_counter_is_seen() -> None:
    fallen = [Trained(1, 10 * TOKENS, 2, 0, ""), Trained(1, 9 * TOKENS, 2, 1, "")]
    assert "stands still or falls" in told(Life(10 * TOKENS, after_two_rounds(), fallen))
