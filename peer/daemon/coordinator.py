"""A peer's rounds, from the first state to the last: train, find a partner, exchange, outer step, apply. Runs unchanged
on the real network and on a virtual clock; knows only the four interfaces of `peer.daemon.interfaces`.

What happens on failure: a partner lost or refusing costs this round its exchange, never its work (the next candidate
while the window is open, at last a solo outer step); a trainer that dies is started again from `outer_params` and the
work since the last outer step is dropped, by name; a round that nothing was worked for is sat out."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from peer.codec.plain import CODECS
from peer.daemon.care import Care
from peer.daemon.conduct import Conduct
from peer.daemon.exchange import Exchange, Offload
from peer.daemon.interfaces import Clock, Trainer, Transport, Work, WorkRequest
from peer.daemon.leaving import Leaving
from peer.daemon.matchmaker import Matchmaker
from peer.daemon.orders import FetchFounded, Orders, nowhere
from peer.daemon.plan import Exchanged, Live, Plan
from peer.daemon.view import View
from peer.errors import (
    BadPayload,
    ExchangeError,
    PartnerLost,
    PartnerRefused,
    PartnerSilent,
    TrainerDied,
)
from peer.observe import events
from peer.outer.state import OuterState
from peer.protocol.ledger import Cut, cut_work
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, Status, SwapReport
from peer.protocol.patience import Patience
from peer.protocol.roundclock import RoundClock, pairing_window
from peer.protocol.ruling import Ruling

T = TypeVar("T")

STALE_AFTER = 1.5
"""Work older than this many sync_every counts as piled up over skipped rounds and is scaled."""
LINGER_S = 30.0
"""A peer that did all its rounds answers others no longer than this."""
GATE_S = 120.0
"""How long the first round waits for `min_peers`."""
TOGETHER_S = 1.0
"""Who is ready so soon after the run's start has begun with it, and takes part in round 0."""
HELD_S = 3.0
"""A partner that crashed is noticed within this: by its connection, or by the heartbeat of a second and its timeout."""
NAMED_MISSES = 1000
"""Rounds missed in one gap that are journaled one by one."""


class Coordinator:
    """Owns the round loop. `run` returns when the run or `max_rounds` is over, or after `leave`."""

    def __init__(
        self,
        plan: Plan,
        clock: Clock,
        transport: Transport,
        trainer: Trainer,
        view: View,
        outer: OuterState,
        emit: Callable[[events.Event], None],
        offload: Offload,
        rounds: RoundClock,
        on_boundary: Callable[[int], Awaitable[None]] | None = None,
        upto: dict[int, int] | None = None,
        ruling: Callable[[int], Ruling] = lambda round_: Ruling(),
        founded: bytes = b"",
        fetch_founded: FetchFounded = nowhere,
        conduct: Conduct | None = None,
    ) -> None:
        """`upto`: per fragment, the trainer's token count that earlier events of the journal already cover.
        `on_boundary` is called between rounds, with the number of the next one. `founded`: digest of the state that
        `outer` goes back to, if the operator had refounded the run; `fetch_founded` looks for such a state."""
        self._plan = plan
        self._clock = clock
        self._trainer = trainer
        self._view = view
        self._outer = outer
        self._emit = emit
        self._offload = offload
        self._rounds = rounds
        self._on_boundary = on_boundary
        self._orders = Orders(ruling, founded, fetch_founded)
        codec = CODECS[plan.method.codec]
        self._exchange = Exchange(transport, clock, codec, offload, plan.max_upload)
        self.conduct = conduct or Conduct(clock.now, emit)
        self.conduct.patience = Patience(rounds.round_length if rounds.kind == "seconds" else None)
        self.matchmaker = Matchmaker(plan.run_id, plan.me, transport, clock, view, self.conduct)
        self.live = Live()
        self._leaving = Leaving()
        self._round_seconds = 0.0
        self._based_at = 0.0
        self._care = Care(trainer, outer, emit, self._leaving, upto or {})

    # -- the whole run -----------------------------------------------------------------------------------------------

    async def run(self, first_round: int) -> None:
        """Play rounds from `first_round` on (clock in steps) or from the first one due after a worked `sync_every`.
        The trainer is started and held.

        Raises TrainerFailed when the trainer keeps dying."""
        self.live.round = first_round
        self._set(Status.TRAINING, "waiting for the others")
        await self._gate()
        self._based_at = self._clock.now()
        round_ = self._first_round(first_round)
        self._emit(events.TrainingBegan(round=round_))
        await self._supervised(lambda: self._evaluate(round_))
        while not self._leaving and not self._finished(round_):
            self.live.round = round_
            try:
                standing = self._orders.stand_still(round_)
                round_ = await (self._obey(round_) if standing else self._round(round_))
            except TrainerDied as death:
                await self._revive(death, round_)
        if not self._leaving:
            await self._finish(round_)

    @property
    def elements(self) -> tuple[int, ...]:
        """Elements of each fragment."""
        layout = self._outer.layout
        return tuple(layout.fragment_elements(f) for f in range(len(layout.fragments)))

    def leave(self) -> None:
        """Drain: an exchange under way is finished, no new round begins; `run` returns soon."""
        self._leaving.set()

    @property
    def leaving(self) -> bool:
        return bool(self._leaving)

    @property
    def founded(self) -> bytes:
        """Digest of the state the operator last refounded the run on, as far as our own goes back to it."""
        return self._orders.founded

    def _first_round(self, first: int) -> int:
        if self._rounds.kind == "steps":
            return max(first, self._view.swarm_round(first))
        now = self._clock.now()
        began_with_the_run = now - self._rounds.start < TOGETHER_S
        return max(0, self._rounds.first_round_for(self._rounds.start if began_with_the_run else now))

    def _finished(self, round_: int) -> bool:
        return round_ >= self._plan.total_rounds

    async def _gate(self) -> None:
        """Peers of a local swarm begin together; and a clock in seconds has to have begun."""
        deadline = self._clock.now() + GATE_S
        while self._view.others_training() + 1 < self._plan.min_peers and self._clock.now() < deadline:
            if await self._leaving.within(0.2):
                return
            await self._view.look()
        while self._rounds.kind == "seconds" and (wait := self._until_start()) > 0:
            if await self._leaving.within(min(0.2, wait)):
                return
            await self._view.look()

    def _until_start(self) -> float:
        """Seconds until round 0 begins; while nobody knows, a second. Once somebody says, we announce it too."""
        if not self._rounds.start and (start := self._view.run_start()):
            self._rounds = replace(self._rounds, start=start)
        return self._rounds.start - self._clock.now() if self._rounds.start else 1.0

    @property
    def run_start(self) -> float:
        """When round 0 began, seconds since the epoch; 0: not known yet."""
        return self._rounds.start

    async def _finish(self, round_: int) -> None:
        self._set(Status.FINISHED, "finished; answering until the others are done")
        await self._supervised(lambda: self._evaluate(round_))
        deadline = self._clock.now() + LINGER_S
        while self._clock.now() < deadline and self._view.others_training():
            if await self._leaving.within(0.5):
                return
            await self._view.look()

    async def _obey(self, round_: int) -> int:
        """Do as the operator says before this round; the round to go on with."""
        round_, params = await self._orders.obey(round_, self._leaving, self._round_now, self._set, self._emit)
        if params is not None:
            self.drop_outstanding("the operator refounded the run")
            self._outer.params.copy_(params)
            self._outer.momentum.zero_()
            await self._trainer.start(self._outer.params, round_, None)
        self._based_at = self._clock.now()
        self._set(Status.TRAINING, "training")
        return round_

    def _round_now(self, round_: int) -> int:
        if self._rounds.kind == "seconds":
            self.live.round = max(round_, self._rounds.round_at(self._clock.now()))
        return self.live.round

    # -- one round ---------------------------------------------------------------------------------------------------

    async def _round(self, round_: int) -> int:
        """Play one round; the next one."""
        started = self._clock.now()
        key = RoundKey(round_, self._rounds.fragment_due(round_))
        due = self._rounds.due_at(round_) if self._rounds.kind == "seconds" else None
        opens, closes = self._window(started, due)
        self.matchmaker.open(key, opens, closes)
        self.live.due_at, self.live.phase = due, "training"
        seeking = asyncio.create_task(self._seek())
        try:
            work = await self._work(key, due)
            if work is None:
                return round_
            self._emit(events.RoundDue(round=round_, fragment=key.fragment, deadline=self._closes(work, due)))
            await self._conclude(key, work, due)
        finally:
            self.matchmaker.close()
            seeking.cancel()
            await asyncio.wait({seeking})
        if not seeking.cancelled():
            seeking.result()
        if self._rounds.kind == "steps":
            took = self._clock.now() - started
            self._round_seconds = took if not self._round_seconds else 0.5 * (self._round_seconds + took)
        await self._between(round_ + 1)
        return self._next(round_)

    async def _conclude(self, key: RoundKey, work: Work, due: float | None) -> None:
        if work.steps == 0:
            reason = "no inner step was finished in it"
            self._emit(events.SatOut(round=key.round, fragment=key.fragment, reason=reason))
            self._emit(events.RoundMissed(round=key.round, fragment=key.fragment, reason=reason))
            return
        cut = self._cut(work)
        got = await self._exchange_round(key, work, self._closes(work, due))
        await _whole(self._step_and_journal(key, work, cut, got))
        outer = self._outer.fragment(key.fragment)
        self.live.phase = "applying"
        await self._trainer.apply(key, outer, work.processed, key.round + 1)
        self._based_at = self._clock.now()
        self._care.well()

    async def _work(self, key: RoundKey, due: float | None) -> Work | None:
        """Train until the round is due; None when we are leaving."""
        steps = int(self._rounds.sync_every) if due is None else None
        until = None if due is None else self._clock.raw(due)
        scale = self._orders.lr_scale(key.round)
        return await self._leaving.unless(self._trainer.work(WorkRequest(key, steps, until, hold=True, lr_scale=scale)))

    async def _seek(self) -> None:
        if self._plan.method.topology == "pair":
            await self.matchmaker.run()

    async def _exchange_round(self, key: RoundKey, work: Work, closes: float) -> Exchanged:
        """Find a partner and swap, trying the next candidate while the window is open."""
        if self._plan.method.topology == "solo":
            return Exchanged("solo", "the method never exchanges")
        refusal = ""
        while (partner := await self._partner(closes)) is not None:
            self.live.phase = f"exchanging with {partner}"
            began = self._clock.now()
            try:
                params, report = await self._swap(partner, key, work.params, closes)
            except ExchangeError as error:
                held_s = self._clock.now() - began
                code = _code_of(error, held_s)
                self.conduct.held_up(partner, held_s)
                if not isinstance(error, PartnerLost):
                    refusal = f"{partner}: {error}"
                if not isinstance(error, PartnerRefused):  # a refusal is the partner's right
                    self.conduct.offence(partner, code, str(error))
                self._emit(events.PartnerFailed(peer=partner, round=key.round, code=code, reason=str(error)))
                self.matchmaker.lost(partner, "lost" if isinstance(error, PartnerLost) else "refused")
                continue
            self._view.acquaintance.met(partner, key.round)
            self.conduct.patience.well(partner)
            return Exchanged("exchanged", "", partner, params, report)
        if refusal:
            return Exchanged("refused", refusal)
        return Exchanged("solo", self.matchmaker.why_alone())

    async def _partner(self, closes: float) -> PeerId | None:
        self.live.phase = "looking for a partner"
        return None if self._leaving else await self.matchmaker.partner(closes)

    async def _swap(self, partner: PeerId, key: RoundKey, own: Tensor, closes: float) -> tuple[Tensor, SwapReport]:
        record = self._view.peers.get(partner) or self._unknown(partner)
        wait_s = max(0.0, closes - self._clock.now())
        patience_s = self.conduct.patience.of(partner, self._clock.now())
        alive = functools.partial(self.matchmaker.alive, partner, key)
        return await self._exchange.swap(record, key, own, wait_s, self.matchmaker.we_dial, alive, patience_s)

    async def _step_and_journal(self, key: RoundKey, work: Work, cut: Cut, got: Exchanged) -> None:
        """Belong together: a step that is not in the journal would be counted as lost work."""
        await self._outer_step(key, work, cut, got)
        self._journal(key, work, cut, got)

    async def _outer_step(self, key: RoundKey, work: Work, cut: Cut, got: Exchanged) -> None:
        method = self._plan.method
        own = work.params.clone()
        self._outer.busy = True
        try:
            await self._offload(
                lambda: self._outer.step(
                    key.fragment,
                    own,
                    got.params,
                    rule=method.rule,
                    outer_lr=method.outer_lr,
                    outer_momentum=method.outer_momentum,
                    share=cut.share,
                )
            )
        finally:
            self._outer.busy = False

    def _journal(self, key: RoundKey, work: Work, cut: Cut, got: Exchanged) -> None:
        self._care.journaled(key.fragment, work.processed)
        self.live.last_outcome, self.live.last_partner = got.outcome, got.partner or ""
        self.live.last_seconds = got.report.seconds if got.report else 0.0
        self._emit(
            events.RoundEnded(
                round=key.round,
                fragment=key.fragment,
                outcome=got.outcome,
                partner=got.partner or "",
                reason=got.reason,
                applied=cut.applied,
                dropped=cut.dropped,
                upto=work.processed,
                steps=work.steps,
                bytes_sent=got.report.bytes_sent if got.report else 0,
                bytes_received=got.report.bytes_received if got.report else 0,
                seconds=got.report.seconds if got.report else 0.0,
            )
        )

    def _cut(self, work: Work) -> Cut:
        elements = self._outer.layout.fragment_elements(work.key.fragment)
        nominal: float = work.steps
        if self._rounds.kind == "steps":
            nominal = self._rounds.sync_every
        else:
            age = self._clock.now() - self._based_at
            if age > STALE_AFTER * self._rounds.sync_every:
                nominal = max(1.0, work.steps * self._rounds.sync_every / age)
        return cut_work(work.tokens, elements, work.steps, nominal)

    # -- when --------------------------------------------------------------------------------------------------------

    def _window(self, started: float, due: float | None) -> tuple[float, float]:
        """When offers open, and the latest that a candidate may be ready."""
        if due is not None:
            window = pairing_window(self._rounds.round_length)
            return due - window, due + window
        window = pairing_window(self._round_seconds)
        expected = started + self._round_seconds
        return max(started, expected - window), expected + 2 * window

    def _closes(self, work: Work, due: float | None) -> float:
        """Until when a peer without a partner goes on looking."""
        if due is not None:
            return due + pairing_window(self._rounds.round_length)
        return self._clock.now() + pairing_window(self._round_seconds)

    def _next(self, round_: int) -> int:
        """The round to play after this one; those that went by meanwhile were missed."""
        following = round_ + 1
        if self._rounds.kind == "steps":
            swarm = self._view.swarm_round(following)
            if swarm > following:
                reason = "behind the lower median of the swarm"
                self._emit(events.Skipped(from_round=following, to_round=swarm, reason=reason))
            return max(following, swarm)
        reachable = max(following, self._rounds.round_at(self._clock.now()))
        for missed in range(following, min(reachable, following + NAMED_MISSES)):
            fragment = self._rounds.fragment_due(missed)
            self._emit(events.RoundDue(round=missed, fragment=fragment, deadline=self._rounds.due_at(missed)))
            self._emit(events.RoundMissed(round=missed, fragment=fragment, reason="the round before took too long"))
        if reachable > following + NAMED_MISSES:
            reason = "asleep or stopped"
            self._emit(events.Skipped(from_round=following + NAMED_MISSES, to_round=reachable, reason=reason))
        return reachable

    async def _between(self, done: int) -> None:
        """At a round's boundary: evaluate, and let the owner write a checkpoint."""
        if done % self._plan.eval_every == 0 and not self._finished(done):
            await self._evaluate(done)
        if self._on_boundary is not None:
            await self._on_boundary(done)

    # -- the trainer -------------------------------------------------------------------------------------------------

    async def _evaluate(self, round_: int) -> None:
        self.live.phase = "evaluating"
        result = await self._trainer.evaluate(self._outer.params)
        self._emit(events.Evaluated(round=round_, loss=result.loss, bits_per_byte=result.bits_per_byte))

    async def _supervised(self, call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except TrainerDied as death:
            await self._revive(death, self.live.round)

    async def _revive(self, death: TrainerDied, round_: int) -> None:
        self.live.phase = "restarting the trainer"
        await self._care.revive(death, round_)
        self._based_at = self._clock.now()

    def drop_outstanding(self, reason: str) -> None:
        """Journal the work that no outer step will see; the trainer's next start moves its base counters."""
        self._care.drop_outstanding(reason)

    # -- small things ------------------------------------------------------------------------------------------------

    def _set(self, status: Status, phase: str) -> None:
        self.live.status, self.live.phase = status, phase
        self._view.touch()

    def _unknown(self, peer: PeerId) -> PeerRecord:
        """A locked partner that called us and is not in the directory yet: it has to dial."""
        now = self._clock.now()
        return PeerRecord(peer, self._plan.run_id, (), False, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)


def _code_of(error: ExchangeError, held_s: float) -> str:
    """Stable name of a failure. `held_s`: how long the partner kept us; one that leaves just before it would be called
    late has cost the same."""
    if isinstance(error, PartnerRefused | BadPayload | PartnerSilent):
        return error.code
    return "late" if held_s > HELD_S else "lost"


async def _whole(call: Awaitable[None]) -> None:
    """Run to the end even when cancelled meanwhile; the cancellation comes after."""
    running = asyncio.ensure_future(call)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait({running})
        raise
