from __future__ import annotations

import pytest

from peer.protocol.sampling import Cursor
from peer.trainer.batch_log import LoggedStep
from peer.trainer.data.account import DataPosition
from tests.support.batch_lineage import Life, Place, Resumed, line_of

STEPS = 4
TOKENS = 128


def at(batch: int) -> Cursor:
    """Return the cursor of a batch, if each batch takes one window of one shard."""
    return Cursor(0, 0, batch)


def trained(tokens: int, *places: Place, batch: int | None = None) -> list[LoggedStep]:
    """Return steps that begin at this token count. `batch`: number of the first batch; None: the number that follows
    from the first step's round and place."""
    first = places[0][0] * STEPS + places[0][1] if batch is None else batch
    return [
        LoggedStep(1, tokens + n * TOKENS, round_, step, "", at(first + n), at(first + n + 1))
        for n, (round_, step) in enumerate(places)
    ]


def data(cursor: int, base: int) -> DataPosition:
    return DataPosition("", (0, 0, cursor), [(0, 0, base)], [])


def first_life() -> Life:
    """Return a life of two and a half rounds."""
    places = [(round_, step) for round_ in range(3) for step in range(STEPS)][:10]
    return Life(0, None, trained(0, *places))


def after_two_rounds(place: Place = (2, 0)) -> Resumed:
    return Resumed("checkpoint-1", 8 * TOKENS, 2, place, data(8, 8))


LEFT = Resumed("checkpoint-2", 10 * TOKENS, 2, (2, 2), data(10, 8))
"""A checkpoint written in the middle of round 2."""


def test_a_killed_peer_does_the_lost_batches_again_and_no_others() -> None:
    second = Life(10 * TOKENS, after_two_rounds(), trained(10 * TOKENS, (2, 0), (2, 1), (2, 2), (2, 3), (3, 0)))
    line, wrong = line_of([first_life(), second], STEPS)
    assert wrong == []
    assert [(step.round, step.step) for step in line] == [(r, s) for r in range(4) for s in range(STEPS)][:13]


def test_after_a_clean_leave_it_goes_on_in_the_middle_of_the_round() -> None:
    line, wrong = line_of([first_life(), Life(10 * TOKENS, LEFT, trained(10 * TOKENS, (2, 2), (2, 3)))], STEPS)
    assert wrong == []
    assert len(line) == 12


def test_a_checkpoint_after_the_last_step_of_a_round_goes_on_with_the_next() -> None:
    first = Life(0, None, trained(0, *((0, step) for step in range(STEPS))))
    left = Resumed("checkpoint-2", STEPS * TOKENS, 0, (0, STEPS), data(STEPS, 0))
    second = Life(STEPS * TOKENS, left, trained(STEPS * TOKENS, (1, 0), (1, 1)))
    assert line_of([first, second], STEPS)[1] == []
    second.trained = trained(STEPS * TOKENS, (1, 1))
    assert "leaves out steps: begins at (1, 1) and not at (1, 0)" in line_of([first, second], STEPS)[1][0]


def told(second: Life) -> str:
    return "\n".join(line_of([first_life(), second], STEPS)[1])


def test_a_repeated_a_left_out_and_a_jumped_step_are_seen() -> None:
    early, late = trained(10 * TOKENS, (2, 1), batch=10), trained(10 * TOKENS, (2, 3), batch=10)
    assert "repeats steps: begins at (2, 1) and not at (2, 2)" in told(Life(10 * TOKENS, LEFT, early))
    assert "leaves out steps: begins at (2, 3)" in told(Life(10 * TOKENS, LEFT, late))
    assert "after (2, 0) comes (2, 2) and not (2, 1)" in told(
        Life(10 * TOKENS, after_two_rounds(), trained(10 * TOKENS, (2, 0), (2, 2)))
    )


@pytest.mark.parametrize(("first", "what"), [(9, "repeats batches"), (11, "leaves out batches")])
def test_a_repeated_and_a_left_out_batch_are_seen_in_the_right_round(first: int, what: str) -> None:
    assert told(Life(10 * TOKENS, LEFT, trained(10 * TOKENS, (2, 2), batch=first))).count(what) == 1


def test_a_lost_life_s_batches_are_drawn_again_from_its_base() -> None:
    torn = Life(12 * TOKENS, LEFT, trained(12 * TOKENS, (2, 0), (2, 1)))
    assert told(torn) == "", "the two steps of the checkpoint's round were lost with the rest"
    goes_on = Life(12 * TOKENS, LEFT, trained(12 * TOKENS, (2, 0), (2, 1), batch=10))
    assert "leaves out batches" in told(goes_on)


def test_a_donor_s_state_does_not_take_the_place_in_the_data_along() -> None:
    kept = Life(10 * TOKENS, None, trained(10 * TOKENS, (0, 0), batch=8), at(8))
    assert told(kept) == ""
    assert "repeats batches" in told(Life(10 * TOKENS, None, trained(10 * TOKENS, (0, 0)), at(8)))


def test_a_gap_in_the_data_within_a_life_is_seen() -> None:
    jumped = [*trained(10 * TOKENS, (2, 2)), *trained(11 * TOKENS, (2, 3), batch=12)]
    assert "leaves out some" in told(Life(10 * TOKENS, LEFT, jumped))


def test_a_skipped_round_leaves_out_no_data() -> None:
    second = Life(10 * TOKENS, after_two_rounds(), trained(10 * TOKENS, (2, 0), (2, 1), (5, 0), (5, 1)))
    assert "batches" not in told(second)


def test_a_checkpoint_that_names_another_place_than_what_was_trained_is_seen() -> None:
    later = Resumed("checkpoint-3", 8 * TOKENS, 3, (3, 0), data(8, 8))  # a round too many
    assert "says that it goes on at (3, 0)" in told(Life(10 * TOKENS, later, trained(10 * TOKENS, (3, 0))))


def test_a_falling_token_counter_is_seen() -> None:
    fallen = [*trained(10 * TOKENS, (2, 0)), *trained(9 * TOKENS, (2, 1))]
    assert "stands still or falls" in told(Life(10 * TOKENS, after_two_rounds(), fallen))
