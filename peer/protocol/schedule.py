"""The round clock: when rounds are due.

A clock in seconds is computed from the swarm's common clock, so that unequal machines meet without waiting. With a
clock in inner steps every peer counts its own steps, and a peer that fell behind jumps to the swarm's round."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median_low
from typing import Literal

from peer.protocol.policy.fitness import GRACE
from peer.protocol.round_lengths import Growth, round_of, slots_before

MIN_WINDOW_S = 2.0
"""Minimum seconds of the pairing window before and after a due moment."""
TOGETHER_S = 1.0
"""A peer that is ready within this many seconds after the start of the run takes part in round 0."""


def pairing_window(round_seconds: float) -> float:
    """Return for how many seconds before a round is due offers are accepted: the larger of 2 s and a quarter of the
    round. A peer without a partner keeps searching for as long after the due moment."""
    return max(MIN_WINDOW_S, round_seconds / 4)


def lower_median(rounds: Iterable[int]) -> int | None:
    """Return the lower median of the rounds: the swarm's round for a clock in steps. None: no rounds are given."""
    known = list(rounds)
    return median_low(known) if known else None


@dataclass(frozen=True, slots=True)
class RoundClock:
    """Computes when rounds are due. `sync_every` (seconds or inner steps) passes between two exchanges of the same
    fragment. With P fragments the shortest round, a slot, lasts sync_every / P. Fragment p is due in the rounds with
    round mod P = p.

    Clock in steps: slot s ends after step (s + 1) * sync_every // P. So slots differ by at most one step, and any P
    consecutive slots last exactly `sync_every`. `growth` makes rounds last several slots."""

    kind: Literal["steps", "seconds"]
    sync_every: float
    fragments: int = 1
    start: float = 0.0
    """Clock in seconds: start of round 0 in seconds since the epoch."""
    growth: Growth = ()

    @property
    def round_length(self) -> float:
        """Seconds or steps of a slot, the shortest round. Clock in steps: of the mean slot."""
        return self.sync_every / self.fragments

    def fragment_due(self, round_: int) -> int:
        return round_ % self.fragments

    def steps_of(self, round_: int) -> int:
        """Return the number of inner steps of a round. Clock in steps only."""
        return self._steps_before(round_ + 1) - self._steps_before(round_)

    def worked(self, round_: int) -> float:
        """Return the seconds or steps from the previous exchange of the round's fragment to this one."""
        before = round_ + 1 - self.fragments
        if self.kind == "steps":
            return self._steps_before(round_ + 1) - self._steps_before(before)
        return (self._slots_before(round_ + 1) - self._slots_before(before)) * self.sync_every / self.fragments

    def round_at(self, now: float) -> int:
        """Return the current round, negative before the start. Clock in seconds only."""
        assert self.kind == "seconds"
        return round_of(self.growth, math.floor((now - self.start) / self.round_length))

    def due_at(self, round_: int) -> float:
        """Return when a round is due (its end), in seconds since the epoch. Clock in seconds only."""
        assert self.kind == "seconds"
        return self.start + self._slots_before(round_ + 1) * self.round_length

    def first_round_for(self, joined_at: float) -> int:
        """Return the first round that is due after one complete `sync_every` of work from `joined_at`. Clock in seconds
        only."""
        earliest = joined_at + self.sync_every
        round_ = self.round_at(earliest)
        return round_ if self.due_at(round_ - 1) < earliest else round_ - 1

    def _slots_before(self, round_: int) -> int:
        return slots_before(self.growth, round_)

    def _steps_before(self, round_: int) -> int:
        assert self.kind == "steps"
        return self._slots_before(round_) * int(self.sync_every) // self.fragments


def margin(step_s: float, round_s: float | None, worked: bool) -> float:
    """Return how many seconds before the due moment the last inner step may begin, so that a step of `step_s` seconds
    ends near the due moment and hardly after it.

    `round_s` None: the length of a round is not known. `worked`: there is work to exchange. A peer without work also
    begins a step that is longer than a round, and sits out the rounds that are due meanwhile."""
    if round_s is None:
        return step_s / 2
    if step_s > round_s and not worked:
        return 0.0
    return max(step_s / 2, step_s - GRACE * round_s)


def late_by(step_s: float, round_s: float) -> float:
    """Return how many seconds after the due moment a running step may end. `step_s` 0: not known; returns the
    maximum."""
    return step_s - margin(step_s, round_s, worked=True) if step_s else GRACE * round_s
