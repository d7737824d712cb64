"""The round clock as one peer follows it: when its rounds open, are due and close, and which round comes next. Rounds
that were missed meanwhile are journaled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from peer.membership.peer_table import PeerTable
from peer.observe import events
from peer.ports.clock import Clock
from peer.protocol.messages import PeerId
from peer.protocol.policy.fitness import GRACE
from peer.protocol.round_lengths import slots_of
from peer.protocol.schedule import TOGETHER_S, RoundClock, late_by, pairing_window
from peer.protocol.swarm.claimed_round import claimed_round, furthest_round
from peer.protocol.swarm.suspend_detection import Slept
from peer.rounds.status import RoundStatus

STEPS_WAIT_S = 10.0
"""Clock in steps: least seconds to wait for a peer that is behind. Even an equal machine may be delayed by other
programs."""
NAMED_MISSES = 1000
"""Of the rounds missed in one gap, this many are journaled one by one; the rest is one entry."""
BEHIND = "behind the lower median of the swarm"


class RoundSchedule:
    """Decides which round this peer plays next, when it is due, and how long to wait for partners.

    `rounds`: the run's round clock; its start is filled in when the signed start is known. `round_status`: updated with
    what this peer waits for."""

    def __init__(
        self,
        rounds: RoundClock,
        clock: Clock,
        peer_table: PeerTable,
        emit: Callable[[events.Event], None],
        round_status: RoundStatus,
        proven: Iterable[PeerId] = (),
        signed_start: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`peer_table`: gives the rounds that other peers claim to be in. `proven`: peers whose claims outweigh those
        of others. `signed_start`: returns when round 0 begins, from a signed statement; 0: not known yet."""
        self.rounds = rounds
        self._round_status = round_status
        self._signed_start = signed_start
        self._clock = clock
        self._peer_table = peer_table
        self._emit = emit
        self._proven = proven
        self._slot_s = 0.0
        """Clock in steps: seconds that a slot of a round takes here; 0 before the first round."""
        self._ready_by, self._all_ready_by = 0.0, 0.0
        """Run times at which our trainer, and every trainer that follows the rules, has stopped for the present round;
        0: not known."""
        self._slept: Slept | None = None
        """The suspension noticed in the present round, which explains missed rounds; None: there was none."""

    def note_sleep(self, slept: Slept) -> None:
        """Record that the machine slept: the rounds that passed are journaled as skipped, not as missed."""
        self._slept = slept

    @property
    def in_steps(self) -> bool:
        return self.rounds.kind == "steps"

    def until_start(self) -> float:
        """Return the seconds until round 0 begins; 1 while its signed start is not known."""
        if start := self._signed_start():
            self.rounds = replace(self.rounds, start=start)
        if not self.rounds.start:
            self._round_status.set_phase("waiting for the run's signed start: nobody has shown it yet")
            return 1.0
        self._round_status.set_phase("waiting for round 0")
        return self.rounds.start - self._clock.now()

    def first(self, first: int) -> int:
        """Return the round to begin with, given that our state is of round `first`."""
        if self.in_steps:
            return max(first, self._swarm_round(first))
        now = self._clock.now()
        began_with_the_run = now - self.rounds.start < TOGETHER_S
        return max(0, self.rounds.first_round_for(self.rounds.start if began_with_the_run else now))

    def due(self, round_: int) -> float | None:
        """Return the run time at which the round is due; None: it is due when its inner steps are done."""
        return None if self.in_steps else self.rounds.due_at(round_)

    def window(self, round_: int, started: float, due: float | None) -> tuple[float, float]:
        """Return when offers for this round open, and when a candidate must be ready at the latest (run times).
        `started`: run time at which the round began here."""
        if due is not None:
            window = pairing_window(self.rounds.round_length)
            return due - window, due + window
        expected = started + self._slot_s * slots_of(self.rounds.growth, round_)
        return started, expected + 2 * self._wait_in_steps()

    def closes(self, due: float | None) -> float:
        """Return the run time until which a peer without a partner searches for one."""
        if due is not None:
            return due + pairing_window(self.rounds.round_length)
        return self._clock.now() + self._wait_in_steps()

    def expect_trainer(self, due: float | None, step_s: float) -> None:
        """Estimate when our trainer, and every other one, will have stopped for a round. Does nothing with a clock in
        steps (`due` None). `step_s`: seconds of an inner step, which the trainer finishes first; 0: not known."""
        if due is not None:
            self._ready_by = due + late_by(step_s, self.rounds.round_length)
            self._all_ready_by = due + late_by(0.0, self.rounds.round_length)

    def trainer_stopped(self) -> None:
        """Record that the trainer has stopped for the round."""
        self._ready_by = 0.0

    def trainer_eta(self) -> float:
        """Return the seconds until our trainer has stopped, at the latest."""
        return max(0.0, self._ready_by - self._clock.now())

    def all_ready_in(self) -> float:
        """Return the seconds until every trainer that follows the rules has stopped."""
        return max(0.0, self._all_ready_by - self._clock.now())

    def sit_out(self, round_: int, step_s: float) -> int:
        """Skip the rounds in which an inner step of `step_s` seconds, begun now, would end too late, and return the
        first round after them: `round_` or a later one. The skipped rounds are journaled as sat out. In such a round a
        partner would wait for this peer in vain."""
        rounds = self.rounds
        if self.in_steps or rounds.fragments > 1 or step_s <= rounds.round_length:
            return round_
        played = max(round_, rounds.round_at(self._clock.now() + step_s - GRACE * rounds.round_length))
        reason = f"one inner step takes {step_s:.3g} s here, a round is {rounds.round_length:g} s"
        for missed in range(round_, min(played, round_ + NAMED_MISSES)):
            fragment = rounds.fragment_due(missed)
            self._emit(events.RoundDue(round=missed, fragment=fragment, deadline=rounds.due_at(missed)))
            self._emit(events.SatOut(round=missed, fragment=fragment, reason=reason))
            self._emit(events.RoundMissed(round=missed, fragment=fragment, reason=reason))
        return played

    def record_duration(self, round_: int, seconds: float) -> None:
        """Update the moving average of a slot's duration with this round's `seconds`. Does nothing with a clock in
        seconds."""
        if self.in_steps:
            slot_s = seconds / slots_of(self.rounds.growth, round_)
            self._slot_s = slot_s if not self._slot_s else 0.5 * (self._slot_s + slot_s)

    def now(self, round_: int) -> int:
        """Return the round that is under way while this peer plays none, as in a pause. `round_`: the last known
        round."""
        return round_ if self.in_steps else max(round_, self.rounds.round_at(self._clock.now()))

    def jump(self, round_: int, reason: str = BEHIND) -> int:
        """Clock in steps: return the round to play instead of `round_`, later if the swarm is ahead. Journals skipped
        rounds."""
        swarm = self._swarm_round(round_)
        if swarm > round_:
            self._emit(events.Skipped(from_round=round_, to_round=swarm, reason=reason))
        return max(round_, swarm)

    def next(self, round_: int) -> int:
        """Return the round to play after this one. Journals the rounds that passed meanwhile as missed."""
        return self.jump(round_ + 1) if self.in_steps else self._reachable(round_ + 1)

    def _reachable(self, following: int) -> int:
        reached = max(following, self.rounds.round_at(self._clock.now()))
        slept, self._slept = self._slept, None
        if slept is not None and reached > following:
            self._emit(events.Skipped(from_round=following, to_round=reached, reason=f"was {slept}"))
            return reached
        for missed in range(following, min(reached, following + NAMED_MISSES)):
            fragment = self.rounds.fragment_due(missed)
            self._emit(events.RoundDue(round=missed, fragment=fragment, deadline=self.rounds.due_at(missed)))
            self._emit(events.RoundMissed(round=missed, fragment=fragment, reason="the round before took too long"))
        if reached > following + NAMED_MISSES:
            first = following + NAMED_MISSES
            self._emit(events.Skipped(from_round=first, to_round=reached, reason="asleep or stopped"))
        return reached

    def _swarm_round(self, own: int) -> int:
        """Return the lower median of the rounds that the training peers claim and of `own`, our round
        (`peer.protocol.swarm.claimed_round`), but at most the latest round that a run of this age can have reached."""
        most = furthest_round(self.rounds, self._clock.now())
        return claimed_round(self._peer_table.claimed_rounds(), self._proven, own=own, most=most) or 0

    def _wait_in_steps(self) -> float:
        """Clock in steps: return the seconds for which a peer that is ahead waits for the others. A peer that is a
        whole round behind jumps instead."""
        return max(STEPS_WAIT_S, self._slot_s)
