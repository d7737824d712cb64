"""With whom a round's work is exchanged, and the outer step it gives: nobody (`solo`), a random partner (`pair`)."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor

from peer.codec.stream import Flat
from peer.daemon.buffers import Buffers
from peer.daemon.conduct import Conduct
from peer.daemon.diagnosis import Diagnosing
from peer.daemon.exchange import Exchange, Offload
from peer.daemon.interfaces import Clock, Work
from peer.daemon.match import Match
from peer.daemon.matchmaker import Matchmaker
from peer.daemon.owned import owned
from peer.daemon.sent import Joined, work_of
from peer.daemon.view import View
from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerRefused, PartnerSilent
from peer.observe import events
from peer.outer.state import OuterState
from peer.protocol.ledger import Cut
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport
from peer.run.presets import Method

HELD_S = 3.0
"""A partner that crashed is noticed within this: by its connection, or by the heartbeat of a second and its timeout."""


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What a round's exchange gave."""

    outcome: Literal["exchanged", "solo", "refused", "carried"]
    """`carried`: no outer step; the work stays and is part of the fragment's next round."""
    reason: str
    step: Callable[[OuterState], None] = lambda outer: None
    """The outer step, for a worker thread."""
    applied: int = 0
    """Of the work, in tokens x elements."""
    dropped: int = 0
    members: tuple[PeerId, ...] = ()
    """Who exchanged, ourselves included."""
    report: SwapReport | None = None
    replaces: bool = False
    """Our state was replaced by another: the trainer keeps nothing of its own."""
    digest: Callable[[], bytes] = bytes
    """In groups, after the step: of the fragment's state."""


class Topology(Protocol):
    """One of the five choices of a method."""

    def opened(self, key: RoundKey, opens_at: float, closes_at: float) -> AbstractAsyncContextManager[Session]:
        """A round begins: its search for others goes on until the owner leaves the context."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """The others hold another state of a fragment than we, and it is here."""

    step: Callable[[OuterState], None]
    """Puts it in place; for a worker thread."""
    event: Callable[[], events.Event]
    """For the journal, afterwards."""


class Session(Protocol):
    """An open round."""

    def behind(self) -> Awaitable[Ahead | None] | None:
        """Beside the training, until the round is due: wait for a state that we should have and lack. None, awaited or
        at once: there is none to be had. Never raises for what others do; a cancelled one leaves nothing running."""

    async def exchange(self, work: Work, cut: Cut, closes_at: float) -> Exchanged:
        """What the others gave for this work. Never raises for what others do; a cancelled one leaves nothing
        running."""

    def late(self, work: Work, cut: Cut) -> Exchanged:
        """The exchange was given up because the fragment is due again."""


# -- nobody ------------------------------------------------------------------------------------------------------------


class Alone:
    """Every outer step is a step with oneself: the method `none`, and what is left when there is nobody."""

    def __init__(self, method: Method, outer: OuterState, why: str = "the method never exchanges") -> None:
        self._method = method
        self._outer = outer
        self._why = why

    @asynccontextmanager
    async def opened(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[Alone]:
        yield self

    def behind(self) -> None:
        return None

    async def exchange(self, work: Work, cut: Cut, closes_at: float) -> Exchanged:
        return self.stepped(work, cut, "solo", self._why)

    def late(self, work: Work, cut: Cut) -> Exchanged:
        return self.stepped(work, cut, "solo", "the fragment was due again")

    def stepped(self, work: Work, cut: Cut, outcome: Literal["solo", "refused"], reason: str) -> Exchanged:
        """A solo outer step with this work."""

        def step(outer: OuterState) -> None:
            pair_step(self._method, outer, work.key.fragment, work.params, None, cut.share)

        return Exchanged(outcome, reason, step, cut.applied, cut.dropped)


def pair_step(
    method: Method, outer: OuterState, fragment: int, own: Tensor, partner: Tensor | None = None, share: float = 1.0
) -> None:
    """The outer step of a pair, or alone. `own` and `partner` are only read; of a method with a consensus of its own
    `partner` holds params and, after them, outer_params. `share`: of the own work, what counts."""
    theirs = (None, None) if partner is None else (partner[: own.numel()], partner[own.numel() :])
    outer.step(
        fragment,
        own,
        theirs[0],
        rule=method.rule,
        outer_lr=method.outer_lr,
        outer_momentum=method.outer_momentum,
        share=share,
        consensus=method.consensus if method.rule == "noloco" else None,
        partner_outer=theirs[1],
    )


# -- a random partner --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairs:
    """NoLoCo's topology. What happens on failure: a partner lost or refusing costs this round its exchange, never its
    work: the next candidate while the window is open, at last a solo outer step.

    The trainer's snapshot is read where it lies: the trainer writes there only when the fragment's next work is asked
    for, which is after the end of its flight (`peer.daemon.flights`). A buffer is lent as long as the round is open,
    hence until the outer step that reads it is done."""

    method: Method
    run_id: RunId
    me: PeerId
    outer: OuterState
    matchmaker: Matchmaker
    swaps: Exchange
    buffers: Buffers
    diagnosis: Diagnosing
    offload: Offload
    clock: Clock
    view: View
    conduct: Conduct
    emit: Callable[[events.Event], None]
    wanted: Callable[[], bool]
    """Whether a partner is still looked for: not when we are leaving."""
    why_not: Callable[[], str]
    """Why nothing is to be sent now, for a person; empty: it may be."""
    tell: Callable[[str], None]
    """Told what is going on, for `peer status`."""

    @asynccontextmanager
    async def opened(self, key: RoundKey, opens_at: float, closes_at: float) -> AsyncIterator[Session]:
        if why := self.why_not():
            yield Alone(self.method, self.outer, why)
            return
        match = self.matchmaker.open(key, opens_at, closes_at)
        try:
            with ExitStack() as lent:
                async with owned(match.run()):
                    yield PairRound(self, match, lent)
        finally:
            self.matchmaker.end(match)

    def record_of(self, peer: PeerId) -> PeerRecord:
        """A locked partner that called us may not be in the directory yet: it has to dial."""
        if (known := self.view.peers.get(peer)) is not None:
            return known
        now = self.clock.now()
        return PeerRecord(peer, self.run_id, (), False, 1, 1, 0, 0.0, Status.TRAINING, now, now + 60)


class PairRound:
    """One round's search and swap. `lent`: what it gives back at its end."""

    def __init__(self, pairs: Pairs, match: Match, lent: ExitStack) -> None:
        self._pairs = pairs
        self._match = match
        self._lent = lent
        self._alone = Alone(pairs.method, pairs.outer)

    def behind(self) -> None:
        return None

    async def exchange(self, work: Work, cut: Cut, closes_at: float) -> Exchanged:
        pairs, fragment, refusal = self._pairs, work.key.fragment, ""
        sent = self._sent(work, cut)
        into = self._lent.enter_context(pairs.buffers.lent())[: sent.numel()]
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
            pairs.conduct.patience.well(partner)
            pairs.diagnosis.exchanged(partner, report)

            def step(outer: OuterState, theirs: Tensor = theirs) -> None:
                pair_step(pairs.method, outer, fragment, work.params, theirs, cut.share)

            return Exchanged("exchanged", "", step, cut.applied, cut.dropped, (pairs.me, partner), report)
        if refusal:
            return self._alone.stepped(work, cut, "refused", refusal)
        return self._alone.stepped(work, cut, "solo", pairs.why_not() or self._match.why_alone())

    def _sent(self, work: Work, cut: Cut) -> Flat:
        """With consensus = outer_lr the means of pseudo-gradient and outer_params fold into the mean of the params, and
        only those travel."""
        method, outer = self._pairs.method, self._pairs.outer.fragment(work.key.fragment)
        own = work_of(work.params, outer, cut.share)
        return own if method.consensus == method.outer_lr else Joined(own, outer)

    def late(self, work: Work, cut: Cut) -> Exchanged:
        return self._alone.late(work, cut)

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
            pairs.conduct.offence(partner, code, str(error))
        pairs.emit(events.PartnerFailed(peer=partner, round=self._match.key.round, code=code, reason=str(error)))
        self._match.lost(partner, "lost" if lost else "refused")
        return "" if lost else f"{partner}: {error}"


def _code_of(error: ExchangeError, held_s: float) -> str:
    """Stable name of a failure. `held_s`: how long the partner kept us; one that leaves just before it would be called
    late has cost the same."""
    if isinstance(error, PartnerRefused | BadPayload | PartnerSilent):
        return error.code
    return "late" if held_s > HELD_S else "lost"
