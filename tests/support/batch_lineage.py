"""Finds the batches from which a peer's state descends, over all its lives, and whether one was repeated or skipped
relative to the checkpoint that a life resumed from. Uses the log of batches really trained on
(`peer.trainer.batch_log`) and the files on disk before each start; it sends no request to the daemon. For round clocks
in inner steps.

A batch is identified by its cursor, a step by its round. Both have to continue where the checkpoint ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from peer.protocol.sampling import START, Cursor
from peer.trainer.batch_log import LoggedStep
from peer.trainer.data.account import DataPosition

Place = tuple[int, int]
"""(round, step in the round)."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The checkpoint that a life has to resume from, read before its start."""

    name: str
    tokens: int
    """Token counter at the time of writing."""
    round: int
    """Round of its outer state, which includes all rounds before."""
    place: Place
    """Position of its inner loop."""
    data: DataPosition | None
    """Its position in the data. None: the checkpoint was written by an older program."""


@dataclass(slots=True)
class Life:
    """One process of the daemon, from start to kill."""

    tokens: int
    """Token counter at the start of the process."""
    resumed: Resumed | None
    """The checkpoint that this life resumed from. None: it began with a donor's state."""
    trained: list[LoggedStep] = field(default_factory=list)
    kept: Cursor = START
    """Where its data continues if it begins with a donor's state: at the last snapshot taken on this peer."""

    @property
    def exact(self) -> bool:
        """True if no step was taken after the checkpoint, so that the life continues in the middle of the round."""
        return self.resumed is not None and self.resumed.tokens == self.tokens

    def begins_at(self) -> Place:
        """Return the required position of its first step."""
        if self.resumed is None:
            return (0, 0)
        return self.resumed.place if self.exact else (self.resumed.round, 0)

    def draws_from(self) -> Cursor:
        """Return the required cursor of its first batch."""
        if self.resumed is None:
            return self.kept
        if self.resumed.data is None:
            return START
        data = self.resumed.data
        return Cursor(*data.cursor) if self.exact else data.base


def line_of(lives: Sequence[Life], steps_per_round: int) -> tuple[list[LoggedStep], list[str]]:
    """Return the batches from which the last life's state descends, in order, and the errors of all lives as
    sentences."""
    line: list[LoggedStep] = []
    wrong: list[str] = []
    for number, life in enumerate(lives):
        line = _inherited(line, life)
        wrong += [f"life {number}: {what}" for what in _seam(line, life, steps_per_round)]
        wrong += [f"life {number}: {what}" for what in _gaps(life.trained, steps_per_round)]
        line = line + life.trained
    return line, wrong


def _inherited(line: list[LoggedStep], life: Life) -> list[LoggedStep]:
    """Return the batches of former lives that are in the checkpoint: whole rounds for the outer state, all steps for
    the inner loop."""
    if life.resumed is None:
        return []
    before = [step for step in line if step.tokens < life.resumed.tokens]
    return before if life.exact else [step for step in before if step.round < life.resumed.round]


def _seam(line: list[LoggedStep], life: Life, steps_per_round: int) -> Iterator[str]:
    begins = life.begins_at()
    if begins[1] == steps_per_round:  # written after a round's last step, before its exchange
        begins = (begins[0] + 1, 0)
    name = "a donor" if life.resumed is None else life.resumed.name
    expected = _after((line[-1].round, line[-1].step), steps_per_round) if line else (0, 0)
    if begins != expected:
        yield f"{name} says that it goes on at {begins}, but what was trained up to it ends before {expected}"
    if life.trained and (first := (life.trained[0].round, life.trained[0].step)) != begins:
        what = "repeats" if first < begins else "leaves out"
        yield f"resumed from {name} it {what} steps: begins at {first} and not at {begins}"
    drawn = line[-1].end if line else START
    if life.resumed is not None and line and life.draws_from() != drawn:
        yield f"{name} says that the data goes on at {life.draws_from()}, but what was trained up to it ends at {drawn}"
    if life.trained and (cursor := life.trained[0].begin) != life.draws_from():
        what = "repeats" if cursor < life.draws_from() else "leaves out"
        yield f"resumed from {name} it {what} batches: begins at {cursor} and not at {life.draws_from()}"


def _gaps(trained: Sequence[LoggedStep], steps_per_round: int) -> Iterator[str]:
    for one, other in pairwise(trained):
        expected = _after((one.round, one.step), steps_per_round)
        if (other.round, other.step) != expected:
            yield f"after {(one.round, one.step)} comes {(other.round, other.step)} and not {expected}"
        if other.begin != one.end:
            what = "repeats" if other.begin < one.end else "leaves out"
            yield f"after the batch up to {one.end} it {what} some: the next one begins at {other.begin}"
        if other.tokens <= one.tokens:
            yield f"the token counter stands still or falls: {one.tokens}, then {other.tokens}"


def _after(place: Place, steps_per_round: int) -> Place:
    round_, step = place
    return (round_ + 1, 0) if step + 1 == steps_per_round else (round_, step + 1)
