"""A peer's rounds, from the first state to the last: train, find a partner, exchange, outer step, apply. Runs unchanged
on the real network and in virtual time, because it reaches the clock, the trainer and the exchange only through
interfaces: `Clock` and `Trainer` of `peer.ports`, and `peer.exchange.strategy.ExchangeStrategy`. All other parts, such
as `PeerTable`, `RoundSchedule` and `RoundCommitter`, are concrete classes and the same in both.

On failure: if a partner is lost or refuses, the round has no exchange with it (see `peer.exchange.pair.strategy`). If
the trainer dies, it is started again from `outer_params`, and the work since the last outer step is journaled as
dropped. A round without any work is skipped."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from peer.aio.events import Shutdown
from peer.aio.tasks import background_task
from peer.errors import TrainerDied
from peer.exchange.strategy import ExchangeStrategy
from peer.membership.peer_table import PeerTable, waiting_pause
from peer.membership.slow_peers import SlowPeerMonitor
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.clock import Clock
from peer.ports.trainer import Merge, Trainer, WorkRequest, WorkSnapshot
from peer.protocol.ledger import WorkShare, cut_work
from peer.protocol.messages import RoundKey, Status
from peer.protocol.schedule import RoundClock
from peer.rounds.commit import RoundCommitter, Snapshot
from peer.rounds.directives import Directives
from peer.rounds.evaluation import Evaluations
from peer.rounds.inflight import InFlightRound, InFlightRounds
from peer.rounds.schedule import RoundSchedule
from peer.rounds.status import RoundStatus
from peer.rounds.trainer_supervisor import TrainerSupervisor
from peer.run.plan import RunPlan

STALE_AFTER = 1.5
"""Work that is older than this many periods of its fragment has piled up over skipped rounds, and is scaled down."""
LINGER_S = 30.0
"""Most seconds for which a peer that has finished all rounds keeps answering others."""
LAST_STATE_RATE = 5e5
"""Assumed rate, in bytes per second, at which a node of the operator fetches the last state: that of a slow home line
with other traffic. A finished peer stays long enough for a fetch at this rate."""
FAREWELL_S = 3.0
"""Seconds for which members of a group stay after all have finished."""
GATE_S = 120.0
"""Most seconds for which the first round waits for `min_peers`."""
GATE_LOOK_S, LAST_LOOK_S = 0.2, 0.5
"""Least seconds between two looks at the peers: before the first round and after the last one."""


OnBoundary = Callable[[int], Awaitable[None]]


async def no_boundary(round_: int) -> None:
    """Do nothing: the default `OnBoundary`."""


class RoundLoop:
    """Plays a peer's rounds. `run` returns when the run is over or after `leave`."""

    def __init__(
        self,
        *,
        plan: RunPlan,
        clock: Clock,
        peer_table: PeerTable,
        outer: OuterState,
        schedule: RoundSchedule,
        directives: Directives,
        trainer: Trainer,
        supervisor: TrainerSupervisor,
        strategy: ExchangeStrategy,
        committer: RoundCommitter,
        slow_peers: SlowPeerMonitor,
        round_status: RoundStatus,
        shutdown: Shutdown,
        emit: Callable[[events.Event], None],
        settled: Callable[[], Awaitable[None]],
        on_boundary: OnBoundary = no_boundary,
        on_pause: OnBoundary = no_boundary,
    ) -> None:
        """`settled`: awaited before an exchange, so that no exchange begins with a stale clock after the machine slept.
        `on_boundary`: called between two rounds with the number of the next one. `on_pause`: called when a pause has
        begun and all exchanges have ended."""
        self._plan = plan
        self._clock = clock
        self._peer_table = peer_table
        self._outer = outer
        self._schedule = schedule
        self._directives = directives
        self._trainer = trainer
        self._supervisor = supervisor
        self._strategy = strategy
        self._committer = committer
        self._slow_peers = slow_peers
        self._round_status = round_status
        self._shutdown = shutdown
        self._emit = emit
        self._settled = settled
        self._on_boundary = on_boundary
        self._on_pause = on_pause
        self._flights = InFlightRounds(strategy, committer)
        self.evaluations = Evaluations(trainer, outer, clock, committer.stepping, round_status, shutdown, emit)
        self._streaming = not plan.method.waits
        self._step_s = 0.0
        """Seconds of an inner step in the last round; 0 before it."""

    @property
    def round_status(self) -> RoundStatus:
        """The present state of the rounds."""
        return self._round_status

    @property
    def rounds(self) -> RoundClock:
        """The run's round clock, as this peer follows it."""
        return self._schedule.rounds

    # -- the whole run -----------------------------------------------------------------------------------------------

    async def run(self, first_round: int) -> None:
        """Play rounds from `first_round` on (clock in steps), or from the first round that leaves time for a whole
        `sync_every` (clock in seconds). The trainer must be started and held.

        Raises TrainerFailed if the trainer keeps dying."""
        self._round_status.enter(first_round)
        if self._directives.local_pause.active.is_set():
            first_round = await self._begin_paused(first_round)
        self._set(Status.TRAINING, "waiting for the others")
        await self._wait_for_start()
        await self._follow_the_group(first_round)
        self._restart_work_clock()
        round_ = self._schedule.first(first_round)
        self._strategy.start_at(round_)
        self._emit(events.TrainingBegan(round=round_))
        await self._supervised(lambda: self.evaluations.evaluate(round_))
        try:
            while not self._shutdown and not self._finished(round_):
                self._round_status.enter(round_)
                try:
                    standing = self._directives.blocks(round_)
                    round_ = await (self._apply_directives(round_) if standing else self._round(round_))
                except TrainerDied as death:
                    await self._revive(death, round_)
            self._round_status.enter(round_)  # the first round that was not played
            if self._shutdown:
                self._trainer.hold()
            await self._supervised(self._flights.finish)
        finally:
            await self._flights.drop("the daemon stopped")
        if not self._shutdown:
            await self._finish(round_)

    async def _follow_the_group(self, round_: int) -> None:
        """Take over the group's state with its momentum, as a newcomer's state from a donor or a checkpoint may be
        older."""
        reason = "the group has another state than a donor or a checkpoint gave us"
        if await self._committer.catch_up(round_, reason):
            await self._supervised(lambda: self._start_anew(round_, "the group has a later state"))

    async def _start_anew(self, round_: int, reason: str) -> None:
        """Restart the trainer from `outer_params`, and journal its open work as dropped."""
        self._supervisor.drop_outstanding(reason)
        await self._trainer.start(self._outer.params, round_, None)

    def leave(self) -> None:
        """Drain: finish the exchange under way and begin no new round. `run` returns soon."""
        self._shutdown.set()

    @property
    def leaving(self) -> bool:
        return bool(self._shutdown)

    @property
    def exchanging(self) -> bool:
        """Whether the work of a round is between its snapshot and its merge."""
        return self._flights.under_way

    def _finished(self, round_: int) -> bool:
        return round_ >= self._plan.total_rounds

    async def _wait_for_start(self) -> None:
        """Wait until `min_peers` peers train, this one included, but at most `GATE_S` seconds. Then, with a clock in
        seconds, wait until round 0 begins."""
        deadline, look_s = self._clock.now() + GATE_S, waiting_pause(GATE_LOOK_S, self._plan.min_peers)
        while self._peer_table.others_training() + 1 < self._plan.min_peers and self._clock.now() < deadline:
            if await self._shutdown.wait_for(look_s):
                return
            await self._peer_table.look()
        while not self._schedule.in_steps and (wait := self._schedule.until_start()) > 0:
            if await self._shutdown.wait_for(min(look_s, wait)):
                return
            await self._peer_table.look()

    async def _finish(self, round_: int) -> None:
        await self._follow_to_the_end(round_)
        self._set(Status.FINISHED, "finished; answering until the others are done")
        await self._supervised(lambda: self.evaluations.evaluate(round_, own_too=True))
        over = self._clock.now() + LINGER_S
        kept_by = over + 4 * self._outer.layout.elements / LAST_STATE_RATE
        while self._clock.now() < (kept_by if self._unkept() else over if self._peer_table.others_training() else 0.0):
            if await self._shutdown.wait_for(waiting_pause(LAST_LOOK_S, self._peer_table.others_training())):
                return
            await self._peer_table.look()
        if await self._follow_to_the_end(round_, at_last=not self._peer_table.others_training()):
            await self._supervised(lambda: self.evaluations.evaluate(round_, own_too=True))

    def _unkept(self) -> bool:
        """Return whether a node of the operator may still fetch the last state: it has not announced yet that the run
        is over."""
        records = (self._peer_table.peers.get(node) for node in self._plan.nodes)
        return any(record is not None and record.status is Status.SERVING for record in records)

    async def _follow_to_the_end(self, round_: int, at_last: bool = False) -> bool:
        """Fetch what this peer missed of the last round, so that all members end with the same state. Return whether
        our state has changed."""
        if not self._strategy.shares_state:
            return False
        reason = "after the last round the group has another state than ours"
        changed = await self._committer.catch_up(round_, reason, at_last)
        if self._round_status.status is Status.FINISHED and not self._shutdown:
            await self._shutdown.wait_for(FAREWELL_S)  # stay for members that still need our state
        return changed

    async def _apply_directives(self, round_: int) -> int:
        """Obey the pauses and the new state that hold before this round. Return the round to continue with."""
        self._trainer.hold()
        if paused := self._directives.paused(round_):
            self._set(Status.PAUSED, "pausing: finishing the exchange under way")
        await self._flights.finish()
        if paused:
            await self._checkpoint_pause(round_)
        ours, began = self._directives.local_pause.active.is_set(), self._clock.now()
        round_, params = await self._directives.apply(round_, self._shutdown, self._round_now, self._set, self._emit)
        if params is not None:
            await self._committer.refound(params)
            self._strategy.reset()
            await self._start_anew(round_, "the operator refounded the run")
        elif ours and not self._shutdown:
            round_ = await self._wake(round_, self._clock.now() - began)
        self._restart_work_clock()
        self._set(Status.TRAINING, "training")
        return round_

    async def _begin_paused(self, round_: int) -> int:
        try:
            return await self._apply_directives(round_)
        except TrainerDied as death:
            await self._revive(death, round_)
        return round_

    async def _checkpoint_pause(self, round_: int) -> None:
        """Save a checkpoint. Nothing moves during a pause, so it loses no work if the process ends before the pause
        does."""
        async with self._committer.stepping:
            await self._on_pause(round_)

    async def _wake(self, round_: int, rested_s: float) -> int:
        """Continue after the volunteer's pause; return the round. Work from before the pause counts unless it is stale:
        the others have moved on, and it would pull them back."""
        if self._schedule.in_steps:
            reached = self._schedule.jump(round_, "paused by the volunteer")
            stale = reached - round_ > STALE_AFTER
        else:
            reached, stale = round_, rested_s > STALE_AFTER * self._schedule.rounds.worked(round_)
        if stale:
            await self._start_anew(reached, f"stale after a pause of {rested_s:.0f} s")
        return reached

    def _round_now(self, round_: int) -> int:
        return self._round_status.enter(self._schedule.now(round_))

    # -- one round ---------------------------------------------------------------------------------------------------

    async def _round(self, round_: int) -> int:
        """Play one round; in streaming schedules, until its work is in flight. Return the next round."""
        started = self._clock.now()
        if not self._trainer.counters().has_work:
            round_ = self._round_status.enter(self._schedule.sit_out(round_, self._step_s))
            if self._finished(round_):
                return round_
        key = RoundKey(round_, self._schedule.rounds.fragment_due(round_))
        await self._flights.await_slot(key.fragment, patient=self._schedule.in_steps)
        due = self._schedule.due(round_)
        self._round_status.train_until(due)
        self._schedule.expect_trainer(due, self._step_s)
        flight = self._flights.begin(key, *self._schedule.window(round_, started, due))
        hold = self._hold_after(round_)
        began = self._clock.now()
        work = await self._work(flight, key, due, hold)
        self._schedule.trainer_stopped()
        self._slow_peers.ready(key, began if due is None else max(began, due), 0 if work is None else work.tokens)
        if work is None:
            await self._flights.give_up(key.fragment, "leaving" if self._shutdown else "paused")
            return round_
        self._step_s = work.seconds / work.steps if work.steps else self._step_s
        await self._settled()
        self._launch(flight, work, due, hold)
        if hold:
            await self._flights.finish()
        self._schedule.record_duration(round_, self._clock.now() - started)
        await self._between(round_ + 1)
        return self._schedule.next(round_)

    def _hold_after(self, round_: int) -> bool:
        """Return whether the trainer stops after this round's snapshot: to wait for the result (`full` schedules),
        because no round follows, or because a directive has to be applied first."""
        return not self._streaming or self._finished(round_ + 1) or self._directives.blocks(round_ + 1)

    def _launch(self, flight: InFlightRound, work: WorkSnapshot, due: float | None, hold: bool) -> None:
        """Hand the snapshot of a due round to its flight."""
        key, closes = work.key, self._schedule.closes(due)
        self._emit(events.RoundDue(round=key.round, fragment=key.fragment, deadline=closes))
        flight.ready.set_result(
            Snapshot(work, self._work_share(work), closes, self._merge(due, hold), self._clock.now())
        )

    def _merge(self, due: float | None, hold: bool) -> Merge:
        method = self._plan.method
        alpha = method.fragment_update_alpha
        if hold:
            return Merge(alpha)
        if due is None:
            return Merge(alpha, after_steps=int(method.fragment_sync_delay))
        return Merge(alpha, after=self._clock.raw(due + method.fragment_sync_delay))

    async def _work(self, flight: InFlightRound, key: RoundKey, due: float | None, hold: bool) -> WorkSnapshot | None:
        """Train until the round is due. None: this peer leaves or pauses, and the work stays for a later round."""
        steps = self._schedule.rounds.steps_of(key.round) if due is None else None
        until = None if due is None else self._clock.raw(due)
        scale = self._directives.lr_scale(key.round)
        round_s = None if due is None else self._schedule.rounds.round_length
        request = WorkRequest(key, steps, until, hold, scale, self._pause_after(hold), round_s)
        told = self._shutdown.future, self._directives.local_pause.active.future
        async with background_task(flight.must_stop(told, due, self._clock)) as stop:
            return await self._flights.run_beside(self._trainer.work(request), stop)

    def _pause_after(self, hold: bool) -> int | None:
        """Return the inner steps after which the trainer waits for the result; None: it does not wait. With a clock in
        steps all trainers merge after the same step, as in the paper, so that equal machines do not drift apart. With a
        clock in seconds no trainer waits."""
        if hold or not self._schedule.in_steps:
            return None
        return int(self._plan.method.fragment_sync_delay)

    def _work_share(self, work: WorkSnapshot) -> WorkShare:
        elements = self._outer.layout.fragment_elements(work.key.fragment)
        nominal: float = work.steps
        whole = self._schedule.rounds.worked(work.key.round)
        if self._schedule.in_steps:
            nominal = whole
        else:
            age = self._clock.now() - self._committer.based_at[work.key.fragment]
            if age > STALE_AFTER * whole:
                nominal = max(1.0, work.steps * whole / age)
        return cut_work(work.tokens, elements, work.steps, nominal)

    async def _between(self, done: int) -> None:
        """Run between two rounds: evaluate if that is due, and call `on_boundary`, in which the daemon saves
        checkpoints. Does nothing if this peer leaves, since its last checkpoint is saved at the very end. `done`:
        number of rounds done."""
        if self._shutdown:
            return
        if (
            done % self._plan.eval_every == 0
            and not self._finished(done)
            and not self._directives.local_pause.active.is_set()
        ):
            await self.evaluations.evaluate(done)
        async with self._committer.stepping:
            await self._on_boundary(done)

    # -- the trainer -------------------------------------------------------------------------------------------------

    async def _supervised(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except TrainerDied as death:
            await self._revive(death, self._round_status.round)

    async def _revive(self, death: TrainerDied, round_: int) -> None:
        self._round_status.set_phase("restarting the trainer")
        await self._flights.drop(f"the trainer died: {death.cause}")
        await self._supervisor.revive(death, round_)
        self._restart_work_clock()

    # -- small things ------------------------------------------------------------------------------------------------

    def _set(self, status: Status, phase: str) -> None:
        self._round_status.become(status, phase)
        self._peer_table.touch()

    def _restart_work_clock(self) -> None:
        """Set the start of all fragments' work to now, so that the trainer's next work does not count as stale."""
        fragments = range(len(self._outer.layout.fragments))
        self._committer.based_at.update(dict.fromkeys(fragments, self._clock.now()))
