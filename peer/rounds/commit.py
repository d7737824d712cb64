"""Completes a round after its snapshot: exchange, outer step, journal, merge. No other module moves `outer_params`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from peer.aio.events import Latch
from peer.aio.tasks import race, uninterrupted
from peer.aio.threads import Offload
from peer.exchange.strategy import ExchangeResult, ExchangeSession, ExchangeStrategy, MissedState
from peer.observe import events
from peer.outer.look_ahead import LookAhead
from peer.outer.state import OuterState
from peer.outer.values import GroupState, MeanGradient, OuterValues
from peer.ports.trainer import Merge, Trainer, WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import RoundKey
from peer.rounds.status import RoundStatus
from peer.rounds.trainer_supervisor import TrainerSupervisor
from peer.run.plan import RunPlan


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The trainer's snapshot for a round, with the terms on which the round ends."""

    work: WorkSnapshot
    work_share: WorkShare
    closes_at: float
    """Run time until which a peer without a partner searches for one."""
    merge: Merge
    """How the result is merged into the trainer's params."""
    taken_at: float
    """Run time at which the snapshot was taken."""


class RoundCommitter:
    """Completes rounds, and applies states that were fetched from the group. The only class that moves
    `outer_params`."""

    def __init__(
        self,
        trainer: Trainer,
        outer: OuterState,
        emit: Callable[[events.Event], None],
        offload: Offload,
        supervisor: TrainerSupervisor,
        round_status: RoundStatus,
        plan: RunPlan,
        strategy: ExchangeStrategy,
    ) -> None:
        self._plan = plan
        self._strategy = strategy
        self._trainer = trainer
        self._outer = outer
        self._emit = emit
        self._offload = offload
        self._supervisor = supervisor
        self._round_status = round_status
        self.stepping = asyncio.Lock()
        """Held while `outer_params` move, so that no copy is made of a state that is half updated."""
        self.based_at: dict[int, float] = {}
        """Per fragment: run time of the snapshot that its last outer step used."""

    async def follow(self, session: ExchangeSession, key: RoundKey, ready: asyncio.Future[Snapshot]) -> bool:
        """Fetch and apply group states that this peer has missed, until the round's snapshot is `ready`.

        The trainer's unmerged work is kept and moved onto the new base. Return whether a state was being applied while
        the snapshot was taken: the snapshot's params and `outer_params` may then belong to different bases. Raises
        TrainerDied."""
        while not ready.done():
            waiting = session.fetch_missed_state()
            if waiting is None or (missed := await race(ready, waiting)) is None:
                break
            await uninterrupted(self._take_over(key, missed))
            if ready.done():
                return True
        return False

    async def _take_over(self, key: RoundKey, missed: MissedState) -> None:
        """Apply a missed state to `outer_params` and to the trainer, under one lock: a checkpoint in between would mix
        two bases."""
        async with self.stepping:
            await self._put_in_place(key, missed)
            if (own := self._outer.ahead.get(key.fragment)) is not None:
                await self._offload(lambda: own.shift(missed.state.params))
            await self._trainer.apply(key, missed.state.params, 0, 0, Merge(shift=True))

    async def catch_up(self, round_: int, reason: str, at_last: bool = False) -> bool:
        """Apply the group's state of each fragment, outside the rounds. Return whether our state has changed."""
        changed = False
        for fragment in range(len(self._outer.layout.fragments)):
            found = [await self._strategy.find_later_state(fragment, reason, at_last)]
            if found[0] is None:
                continue
            async with self.stepping:
                await uninterrupted(self._put_in_place(RoundKey(round_, fragment), found[0]))
            changed = True
            await self._offload(found.clear)  # in a thread, as freeing a large state takes long
        return changed

    async def refound(self, params: Tensor) -> None:
        """Replace our state by the one that the operator has named."""
        async with self.stepping:
            with self._outer.stepping():
                await uninterrupted(self._offload(lambda: self._outer.refound(params)))

    async def _put_in_place(self, key: RoundKey, missed: MissedState) -> None:
        """Replace the fragment's state, and journal it. The caller holds `stepping`."""
        digest = await self._step(key.fragment, missed.state)
        self._emit(self._caught_up(key, missed, digest))

    def _caught_up(self, key: RoundKey, missed: MissedState, digest: bytes) -> events.Event:
        return events.CaughtUp(
            round=key.round,
            fragment=key.fragment,
            bytes=8 * self._outer.layout.fragment_elements(key.fragment),
            peer=missed.donor,
            digest=digest.hex(),
            reason=missed.reason,
        )

    async def exchange_and_step(self, session: ExchangeSession, ready: Snapshot, due_again: Latch) -> Merge | None:
        """Exchange, and take the outer step. Return how to merge the result; None: there is nothing to merge.

        `due_again`: set when the fragment's next round is due, which ends the exchange."""
        work, work_share = ready.work, ready.work_share
        if work.steps == 0:
            self.sit_out(work.key, "no inner step was finished in it")
            return None
        if ready.taken_at > ready.closes_at:
            self.sit_out(work.key, "the inner step under way ended after it was over")
            return None
        async with AsyncExitStack() as borrowed:  # holds the buffers that contain the result's values
            if self._plan.method.eager:
                await borrowed.enter_async_context(self._eager(work, work_share))
            entering = borrowed.enter_async_context(session.exchange(work, work_share, ready.closes_at))
            got = await race(due_again.future, entering) or session.late_result(work, work_share)
            if got.outcome == "carried":
                self.sit_out(work.key, got.reason)
                return None
            await uninterrupted(self._step_and_journal(work, got))
        self.based_at[work.key.fragment] = ready.taken_at
        if isinstance(got.values, GroupState):  # a group's state replaces the trainer's params too
            self._outer.ahead.pop(work.key.fragment, None)
            return replace(ready.merge, alpha=0.0)
        if (own := self._outer.ahead.get(work.key.fragment)) is not None:
            spans = got.values.spans if isinstance(got.values, MeanGradient) else ()
            await uninterrupted(self._offload(lambda: own.settle(spans, self._plan.method.outer_momentum)))
            return Merge(alpha=1.0)  # the trainer has applied its own part already, when the round was due
        return ready.merge

    @asynccontextmanager
    async def _eager(self, work: WorkSnapshot, work_share: WorkShare) -> AsyncIterator[None]:
        """Apply this peer's own part of an eager update, and send it to the trainer while the exchange runs. Raises
        TrainerDied."""
        method, outer = self._plan.method, self._outer.fragment(work.key.fragment)
        own = self._outer.ahead.get(work.key.fragment) or LookAhead.at(outer)
        self._outer.ahead[work.key.fragment] = own
        weight, rates = work_share.share / self._strategy.members, (method.outer_lr, method.outer_momentum)
        shift = await uninterrupted(self._offload(lambda: own.advance(work.params, outer, weight, *rates)))
        bringing = asyncio.create_task(self._bring(work.key, shift))
        try:
            yield
        finally:
            await asyncio.wait({bringing})
        bringing.result()

    async def _bring(self, key: RoundKey, shift: Tensor) -> None:
        await self._trainer.apply(key, shift, 0, 0, Merge(shift=True))
        self._trainer.release(key)

    async def merge(self, work: WorkSnapshot, how: Merge) -> None:
        """Merge the fragment into the trainer's params, as `how` says. Raises TrainerDied."""
        key = work.key
        await self._trainer.apply(key, self._outer.fragment(key.fragment), work.processed, key.round + 1, how)
        self._supervisor.round_finished()

    def release(self, key: RoundKey) -> None:
        """Inform the trainer that this round has no result to merge."""
        self._trainer.release(key)

    def sit_out(self, key: RoundKey, reason: str) -> None:
        """Journal that no outer step is taken in this round. Its work stays outstanding for the next one."""
        self._emit(events.SatOut(round=key.round, fragment=key.fragment, reason=reason))
        self._emit(events.RoundMissed(round=key.round, fragment=key.fragment, reason=reason))

    def journal_missed(self, key: RoundKey, reason: str, *, was_due: bool) -> None:
        """Journal a round without an outcome, if it was due."""
        if was_due:
            self._emit(events.RoundMissed(round=key.round, fragment=key.fragment, reason=reason))

    async def _step_and_journal(self, work: WorkSnapshot, got: ExchangeResult) -> None:
        """Take the outer step and journal it under one lock, since a step that is not in the journal would count as
        lost work."""
        async with self.stepping:
            digest = await self._step(work.key.fragment, got.values)
            self._journal(work, got, digest)

    async def _step(self, fragment: int, values: OuterValues) -> bytes:
        """Move the fragment's `outer_params`, in a worker thread. Return the digest of `step_with`. The caller holds
        `stepping`."""
        with self._outer.stepping():
            digest = await self._offload(lambda: self._outer.step_with(fragment, values, self._plan.method))
        self._strategy.note_state(fragment, digest)
        return digest

    def _journal(self, work: WorkSnapshot, got: ExchangeResult, digest: bytes) -> None:
        key, report = work.key, got.report
        self._supervisor.mark_journaled(key.fragment, work.processed)
        partners = [member for member in got.members if member != self._plan.me]
        self._round_status.round_ended(got.outcome, partners, report.seconds if report else 0.0)
        assert got.outcome != "carried"
        self._emit(
            events.RoundEnded(
                round=key.round,
                fragment=key.fragment,
                outcome=got.outcome,
                partner=" ".join(partners),
                reason=got.reason,
                applied=got.applied,
                dropped=got.dropped,
                upto=work.processed,
                steps=work.steps,
                digest=digest.hex(),
                bytes_sent=report.bytes_sent if report else 0,
                bytes_received=report.bytes_received if report else 0,
                seconds=report.seconds if report else 0.0,
                ready_at=report.own_timings.ready if report and report.own_timings else 0.0,
                partner_ready_at=report.partner_timings.ready if report and report.partner_timings else 0.0,
                first_byte_at=report.transfer_timings.first_byte_at if report else 0.0,
                done_at=report.transfer_timings.done_at if report else 0.0,
                rate_sent=report.transfer_timings.rate_out if report else 0.0,
                rate_received=report.transfer_timings.rate_in if report else 0.0,
                data_from=work.details.data_from,
                data_to=work.details.data_to,
                data_skipped=work.details.data_skipped,
                path=report.way.path.value if report else "",
                path_via=report.way.via if report else "",
                path_why=report.way.why if report else "",
            )
        )
