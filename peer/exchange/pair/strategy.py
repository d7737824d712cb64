"""The strategy `pair`: a random partner for each round, whose params are mixed with ours in the outer step."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from torch import Tensor

from peer.aio.tasks import background_task
from peer.aio.threads import Offload
from peer.codec.stream import Flat
from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerRefused, PartnerSilent
from peer.exchange.buffers import Buffers
from peer.exchange.pair.matchmaker import Matchmaker
from peer.exchange.pair.search import PartnerSearch
from peer.exchange.pair.swap import PairSwap
from peer.exchange.payloads import Concatenated, work_of
from peer.exchange.solo import SoloSession, late_alone, solo_result
from peer.exchange.strategy import ExchangeResult, ExchangeSession
from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.observe import events
from peer.outer.state import OuterState
from peer.outer.values import OwnWork, PartnerParams
from peer.ports.clock import Clock
from peer.ports.trainer import WorkSnapshot
from peer.protocol.ledger import WorkShare
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport
from peer.run.presets import Method

HELD_S = 3.0
"""A partner that crashed is noticed within this: by its connection, or by the heartbeat of a second and its timeout."""


# -- a random partner --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairs:
    """NoLoCo's topology. What happens on failure: a partner lost or refusing costs this round its exchange, never its
    work: the next candidate while the window is open, at last a solo outer step.

    The trainer's snapshot is read where it lies: the trainer writes there only when the fragment's next work is asked
    for, which is after the end of its flight (`peer.rounds.inflight`). The partner's params lie in a buffer that the
    context of `PairRound.exchange` lends, hence until the outer step that reads it is done."""

    method: Method
    run_id: RunId
    me: PeerId
    outer: OuterState
    matchmaker: Matchmaker
    swaps: PairSwap
    buffers: Buffers
    diagnosis: SlowPeerMonitor
    offload: Offload
    clock: Clock
    view: PeerTable
    conduct: Reputation
    emit: Callable[[events.Event], None]
    wanted: Callable[[], bool]
    """Whether a partner is still looked for: not when we are leaving."""
    why_not: Callable[[], str]
    """Why nothing is to be sent now, for a person; empty: it may be."""
    tell: Callable[[str], None]
    """Told what is going on, for `peer status`."""

    @asynccontextmanager
    async def open_round(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[ExchangeSession]:
        if why := self.why_not():
            yield SoloSession(why)
            return
        match = self.matchmaker.open(key, opens_at, closes_at)
        try:
            async with background_task(match.run()):
                yield PairRound(self, match)
        finally:
            self.matchmaker.end(match)

    async def find_later_state(self, fragment: int, reason: str, at_last: bool = False) -> None:
        return None

    def note_state(self, fragment: int, digest: bytes) -> None:
        """Partners do not compare their states."""

    def record_of(self, peer: PeerId) -> PeerRecord:
        """A locked partner that called us may not be in the directory yet: it has to dial."""
        if (known := self.view.peers.get(peer)) is not None:
            return known
        now = self.clock.now()
        return PeerRecord(peer, self.run_id, (), False, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)


class PairRound:
    """One round's search and swap."""

    def __init__(self, pairs: Pairs, match: PartnerSearch) -> None:
        self._pairs = pairs
        self._match = match

    def fetch_missed_state(self) -> None:
        return None

    @asynccontextmanager
    async def exchange(self, work: WorkSnapshot, cut: WorkShare, closes_at: float) -> AsyncIterator[ExchangeResult]:
        with self._pairs.buffers.acquire() as buffer:
            yield await self._exchange(work, cut, closes_at, buffer)

    async def _exchange(self, work: WorkSnapshot, cut: WorkShare, closes_at: float, buffer: Tensor) -> ExchangeResult:
        pairs, refusal = self._pairs, ""
        sent = self._sent(work, cut)
        into = buffer[: sent.numel()]
        while (partner := await self._partner(closes_at)) is not None:
            patience_s = self._match.patience_s
            if patience_s == 0.0:
                self._match.lost(partner, "strange, and ready too late")
                continue
            pairs.tell(f"exchanging with {partner}")
            began = pairs.clock.now()
            try:
                theirs, report = await self._swap(partner, work.key, sent, into, closes_at, patience_s)
            except ExchangeError as error:
                refusal = self._failed(partner, error, pairs.clock.now() - began) or refusal
                continue
            pairs.view.acquaintance.met(partner, work.key.round)
            pairs.view.watch.heard(partner, "it exchanged with us")
            pairs.conduct.patience.mark_known(partner)
            pairs.diagnosis.exchanged(partner, report)
            values = PartnerParams(OwnWork(work.params, cut.share), theirs)
            return ExchangeResult("exchanged", "", values, cut.applied, cut.dropped, (pairs.me, partner), report)
        if refusal:
            return solo_result(work, cut, "refused", refusal)
        return solo_result(work, cut, "solo", pairs.why_not() or self._match.why_alone())

    def _sent(self, work: WorkSnapshot, cut: WorkShare) -> Flat:
        """With consensus = outer_lr the means of pseudo-gradient and outer_params fold into the mean of the params, and
        only those travel."""
        method, outer = self._pairs.method, self._pairs.outer.fragment(work.key.fragment)
        own = work_of(work.params, outer, cut.share)
        return own if method.consensus == method.outer_lr else Concatenated(own, outer)

    def late(self, work: WorkSnapshot, cut: WorkShare) -> ExchangeResult:
        return late_alone(work, cut)

    async def _partner(self, closes_at: float) -> PeerId | None:
        self._pairs.tell("looking for a partner")
        promised = self._match.locked is not None
        sought = self._pairs.wanted() and (promised or not self._pairs.why_not())
        return await self._match.partner(closes_at) if sought else None

    async def _swap(
        self,
        partner: PeerId,
        key: RoundKey,
        own: Flat,
        into: Tensor,
        closes_at: float,
        patience_s: float | None,
    ) -> tuple[Tensor, SwapReport]:
        pairs = self._pairs
        now = pairs.clock.now()
        return await pairs.swaps.swap(
            pairs.record_of(partner),
            key,
            own,
            pairs.outer.fragment(key.fragment),
            into,
            max(0.0, closes_at - now),
            self._match.we_dial,
            functools.partial(self._match.alive, partner),
            patience_s,
        )

    def _failed(self, partner: PeerId, error: ExchangeError, held_s: float) -> str:
        """Remember what the partner did; what to call this round should nobody else be found, if it is the partner's
        fault."""
        pairs, lost = self._pairs, isinstance(error, PartnerLost)
        code = _code_of(error, held_s)
        pairs.conduct.held_up(partner, held_s)
        pairs.diagnosis.failed(partner, error)
        if not isinstance(error, PartnerRefused):  # a refusal is the partner's right
            pairs.conduct.penalize(partner, code, str(error))
        pairs.emit(events.PartnerFailed(peer=partner, round=self._match.key.round, code=code, reason=str(error)))
        self._match.lost(partner, "lost" if lost else "refused")
        return "" if lost else f"{partner}: {error}"


def _code_of(error: ExchangeError, held_s: float) -> str:
    """Stable name of a failure. `held_s`: how long the partner kept us; one that leaves just before it would be called
    late has cost the same."""
    if isinstance(error, PartnerRefused | BadPayload | PartnerSilent):
        return error.code
    return "late" if held_s > HELD_S else "lost"
