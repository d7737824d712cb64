"""The topology `pair`: each round has one random partner, whose params are mixed with ours in the outer step.

On failure: if a partner is lost or refuses, the search continues with the next candidate while the window is open. If
no candidate is left, the peer takes a solo outer step, so no work is lost."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from torch import Tensor

from peer.aio.tasks import background_task
from peer.codec.stream import Flat
from peer.errors import ExchangeError, PartnerLost, RelayBusy
from peer.exchange.buffers import Buffers
from peer.exchange.pair.acceptance import PartnerAcceptance, PartnerJudgement
from peer.exchange.pair.matchmaker import Matchmaker
from peer.exchange.pair.offer import PartnerOffer
from peer.exchange.pair.partners import PartnerMemory
from peer.exchange.pair.search import PartnerSearch
from peer.exchange.pair.swap import PartnerTerms, Swaps
from peer.exchange.payloads import Concatenated, work_of
from peer.exchange.solo import SoloSession, late_alone, solo_result
from peer.exchange.strategy import ExchangeControls, ExchangeResult, ExchangeSession
from peer.exchange.throughput import TransferMeter
from peer.outer.state import OuterState
from peer.outer.values import OwnWork, PartnerParams
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, RoundKey, SwapReport
from peer.protocol.pair.receipt import SwapOpinion
from peer.run.plan import RunPlan

RESTS_SOON = "quiet hours begin before an exchange is sure to be over"


@dataclass(frozen=True, slots=True)
class PairStrategy:
    """The exchange of NoLoCo and GASLoC.

    The trainer's snapshot is read in place. The trainer overwrites it only after the fragment's next work is requested,
    which is after the end of this round (`peer.rounds.inflight`). The partner's params lie in a buffer that
    `PairSession.exchange` borrows until its context is left, that is until the outer step has read it."""

    plan: RunPlan
    outer: OuterState
    matchmaker: Matchmaker
    swaps: Swaps
    buffers: Buffers
    partners: PartnerMemory
    acceptance: PartnerAcceptance
    controls: ExchangeControls

    @property
    def transfers(self) -> TransferMeter:
        return self.controls.transfers

    @property
    def members(self) -> int:
        return 2

    @property
    def shares_state(self) -> bool:
        return False

    def start_at(self, round_: int) -> None:
        """Do nothing: the search for partners does not depend on the first round."""

    def reset(self) -> None:
        """Do nothing: this strategy stores no knowledge of other peers' states."""

    @asynccontextmanager
    async def open_round(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[ExchangeSession]:
        if why := self.controls.no_exchange_reason():
            yield SoloSession(why)
            return
        search = self.matchmaker.open(key, opens_at, closes_at)
        try:
            if not self.controls.exchange_fits(closes_at):
                search.close()  # so that offers are refused at once
                yield SoloSession(RESTS_SOON)
                return
            async with background_task(search.run()):
                yield PairSession(self, search)
        finally:
            self.matchmaker.end(search)
            if search.locked is not None and not search.begun:
                await self._release(search, search.locked)

    async def _release(self, search: PartnerSearch, partner: PeerId) -> None:
        """Release a partner whose round ends here before it is due, so that it can find another one."""
        self.partners.released(partner, search.key, heard=await search.withdraw())

    async def find_later_state(self, fragment: int, reason: str, at_last: bool = False) -> None:
        return None

    def note_state(self, fragment: int, digest: bytes) -> None:
        """Do nothing: partners do not compare the digests of their states."""


class PairSession:
    """One round of one fragment: searches for a partner and swaps with it."""

    def __init__(self, pairs: PairStrategy, search: PartnerSearch) -> None:
        self._pairs = pairs
        self._search = search

    def fetch_missed_state(self) -> None:
        return None

    @asynccontextmanager
    async def exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float
    ) -> AsyncIterator[ExchangeResult]:
        with self._pairs.buffers.acquire() as buffer:
            yield await self._exchange(work, work_share, closes_at, buffer)

    def must_finish(self, due_in_s: float) -> bool:
        return self._search.has_no_time_for_another(due_in_s)

    def late_result(self, work: WorkSnapshot, work_share: WorkShare) -> ExchangeResult:
        return late_alone(work, work_share)

    async def _exchange(
        self, work: WorkSnapshot, work_share: WorkShare, closes_at: float, buffer: Tensor
    ) -> ExchangeResult:
        """Swap with one partner after another until a swap succeeds, no candidate is left, or the window is over."""
        pairs, refusal = self._pairs, ""
        sent = self._sent(work, work_share)
        into = buffer[: sent.numel()]
        while (partner := await self._partner(closes_at)) is not None:
            patience_s = self._search.patience_s
            if patience_s == 0.0:
                self._search.lost(partner, "strange, and ready too late")
                continue
            pairs.controls.set_activity(f"exchanging with {partner}")
            began = pairs.partners.clock.now()
            try:
                report = await self._swap(partner, work.key, sent, into, closes_at, patience_s)
            except ExchangeError as error:
                refusal = self._failed(partner, error, pairs.partners.clock.now() - began) or refusal
                continue
            pairs.partners.exchanged(partner, work.key, report)
            judged = await self._judge(work, work_share, partner, into, report)
            opinion = SwapOpinion(work.tokens, judged.accepted, judged.gain)
            pairs.partners.judged(partner, work.key, report, opinion, dialled=self._search.we_dial)
            if not judged.accepted:
                return replace(solo_result(work, work_share, "refused", f"{partner}: {judged.refused}"), report=report)
            values, members = PartnerParams(OwnWork(work.params, work_share.share), into), (pairs.plan.me, partner)
            return ExchangeResult("exchanged", "", values, work_share.applied, work_share.dropped, members, report)
        if refusal:
            return solo_result(work, work_share, "refused", refusal)
        return solo_result(work, work_share, "solo", pairs.controls.no_exchange_reason() or self._search.solo_reason())

    def _sent(self, work: WorkSnapshot, work_share: WorkShare) -> Flat:
        """Return the values to send: our params, followed by our outer_params if the method needs them."""
        method, outer = self._pairs.plan.method, self._pairs.outer.fragment(work.key.fragment)
        own = work_of(work.params, outer, work_share.share * method.sent_lr)
        return Concatenated(own, outer) if method.sends_outer else own

    async def _judge(
        self, work: WorkSnapshot, work_share: WorkShare, partner: PeerId, into: Tensor, report: SwapReport
    ) -> PartnerJudgement:
        """Judge the partner's params, and clip them in place."""
        pairs = self._pairs
        share, tokens = (
            work_share.share * pairs.plan.method.sent_lr,
            report.partner_timings.tokens if report.partner_timings else 0,
        )
        outer = pairs.outer.fragment(work.key.fragment)
        return await pairs.acceptance.judge(PartnerOffer(partner, work, share, outer, into, tokens))

    async def _partner(self, closes_at: float) -> PeerId | None:
        controls = self._pairs.controls
        controls.set_activity("looking for a partner")
        promised = self._search.locked is not None
        sought = promised or (controls.wants_partners() and not controls.no_exchange_reason())
        return await self._search.partner(closes_at) if sought else None

    async def _swap(
        self, partner: PeerId, key: RoundKey, own: Flat, into: Tensor, closes_at: float, patience_s: float | None
    ) -> SwapReport:
        """Swap with this partner; its params are decoded into `into`."""
        pairs = self._pairs
        terms = PartnerTerms(
            partner=pairs.partners.record_of(partner),
            key=key,
            wait_s=max(0.0, closes_at - pairs.partners.clock.now()),
            dial=self._search.we_dial,
            alive=functools.partial(self._search.alive, partner),
            patience_s=patience_s,
            relayed=self._search.relayed,
        )
        return await pairs.swaps.swap(terms, own, pairs.outer.fragment(key.fragment), into)

    def _failed(self, partner: PeerId, error: ExchangeError, held_s: float) -> str:
        """Record the failure, and resume the search. Return the reason for a `refused` outcome if no other partner is
        found; empty if the partner is not to blame."""
        self._pairs.partners.failed(partner, self._search.key, error, held_s)
        if isinstance(error, RelayBusy):
            self._search.lost_for_room(partner)
            return ""
        lost = isinstance(error, PartnerLost)
        self._search.lost(partner, "lost" if lost else "refused")
        return "" if lost else f"{partner}: {error}"
