"""Spreads the operator's signed statements. A daemon keeps them in its run folder, fetches new ones from other peers,
and gives its own to every peer that asks. They reach all peers within a few hops even if only some can reach the
operator's node, and remain available when that node is gone.

There are two requests on the wire: one for the amendments after ours, sent often, and one for the papers that we lack,
which is longer and sent rarely because papers seldom change."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer.codes import Code
from peer.errors import BadPayload, ExchangeError, HomeUnusable, JoinRefused, ManifestError
from peer.observe import events
from peer.observe.status.value import PapersStatus
from peer.ports.clock import Clock
from peer.ports.transport import SwarmCalls
from peer.protocol.messages import NODES, WIRE_VERSION, PeerId, PeerRecord
from peer.protocol.policy.amendments import Amendment, RunPolicy, describe, superseded
from peer.run.statements.files import discard_former_start, load, write_statements
from peer.run.statements.kinds import (
    AMENDMENT,
    FAMILIES,
    MAX_PAPERS,
    PAPER,
    AmendmentDocument,
    Document,
    Family,
    PaperDocument,
)
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import Statement

ASK_EVERY_S = 5.0
ASK_TIMEOUT_S = 5.0
SOON_S = 1.0
"""Seconds between two requests for papers while the run's signed start is missing."""
SELDOM = 12.0
"""Otherwise papers are requested this many times less often than amendments."""
MAX_HANDED_ON = 64
"""Most amendments in one answer; a peer that lacks more asks again."""
TRIES = 8
"""Most random draws to find a callable peer. If none of the drawn peers is callable, no request is made until the next
one is due."""
MAX_NAMED = 1024
"""Most pairs of peer and code whose refusals are journaled."""
REFUSED = {AMENDMENT: events.AmendmentRefused, PAPER: events.PaperRefused}

Peers = Callable[[], Awaitable[Mapping[PeerId, PeerRecord]]]
Answered = Callable[[PeerId, float], None]


def ignore_answer(peer: PeerId, took_s: float) -> None:
    """Do nothing: the default `Answered`."""


class StatementSync:
    """One daemon's statements: its log and files, the requests to others, and the answers to theirs."""

    def __init__(
        self,
        log: StatementLog,
        emit: Callable[[events.Event], None],
        folder: Path | None = None,
        round_now: Callable[[], int] = lambda: 0,
    ) -> None:
        """Read the statements that `folder`, the run's folder, keeps. None: nothing is kept, as in simulations. Of a
        damaged file, the valid beginning counts, and the rest is fetched from others again.

        `round_now`: returns the present round; 0: not known. An amendment that arrives takes effect in that round at
        the earliest."""
        self.log = log
        self.refused = Counter[Family]()
        """Number of invalid statements from others."""
        self.start_taken_back = False
        """Whether a run start that counted here became invalid when the operator revoked its signer."""
        self._emit = emit
        self._folder = folder
        self._round_now = round_now
        self._came_in: dict[int, int] = {}
        """For each amendment by its number: the round in which it arrived. Amendments kept by an earlier process are
        not included."""
        self._journaled: set[tuple[PeerId, Code]] = set()
        if folder is not None:
            self._read_kept(folder)
        log.new.clear()
        self._journaled_count = log.new_count

    def _read_kept(self, folder: Path) -> None:
        for family in FAMILIES:
            try:
                load(folder / family.kept, self.log)
            except ManifestError as damaged:
                self._emit(REFUSED[family](peer="", code=Code.KEPT, reason=damaged.found))

    # -- statements held ---------------------------------------------------------------------------------------------

    def newest(self, count: int) -> list[Amendment]:
        """Return the last amendments, each with the round in which it took effect here. Superseded ones are left
        out."""
        never = superseded(self.log.amendments)
        return [self._as_held(one) for one in self.log.amendments if one.number not in never][-count:]

    def latest(self, count: int) -> list[str]:
        """Return descriptions of the last amendments, for a person."""
        never = superseded(self.log.amendments)
        return [describe(self._as_held(one), never.get(one.number)) for one in self.log.amendments[-count:]]

    def _as_held(self, amendment: Amendment) -> Amendment:
        return replace(amendment, round=max(amendment.round, self._came_in.get(amendment.number, 0)))

    def report(self, now: float) -> PapersStatus:
        """Return the state of the papers for `peer status`. `now`: seconds since the epoch."""
        return PapersStatus(
            held=len(self.log.papers),
            refused=self.refused[PAPER],
            start=self.log.start_time,
            delegated_to=tuple(sorted(self.log.nodes(now))),
        )

    # -- adding statements -------------------------------------------------------------------------------------------

    def add_own(self, statements: Sequence[Statement[Document]]) -> None:
        """Add statements that were signed on this machine; they are not checked again."""
        for statement in statements:
            self._add(PeerId(""), statement)
        self._journal_new()

    def read(self, operators_file: Path) -> None:
        """Add the statements that the operator has put into a file beside the manifest. Raises ManifestError."""
        try:
            load(operators_file, self.log)
        finally:
            self._journal_new()

    def _add(self, giver: PeerId, statement: Statement[Document]) -> None:
        if why := self.log.disputes(statement):
            self._refuse(giver, PAPER, Code.SECOND_START, why)
        self.log.add(statement)

    def _refuse(self, peer: PeerId, family: Family, code: Code, reason: str) -> None:
        self.refused[family] += 1
        if (peer, code) not in self._journaled and len(self._journaled) < MAX_NAMED:
            self._journaled.add((peer, code))
            self._emit(REFUSED[family](peer=peer, code=code, reason=reason))

    def _journal_new(self) -> None:
        """Journal and save new statements."""
        if self.log.new_count == self._journaled_count:
            return
        self._journaled_count = self.log.new_count
        for new in self.log.new:
            match new.document:
                case AmendmentDocument(number=number) as document:
                    self._came_in[number] = self._round_now()
                    held = self._as_held(document.amendment())
                    self._emit(events.Amended(number=number, round=held.round, change=describe(held)))
                case PaperDocument() as document:
                    says = document.sentence()
                    self._emit(events.PaperHeld(paper=document.kind, by=document.by, says=says))
        self.log.new.clear()
        for paper in self.log.dropped:
            self.start_taken_back |= paper.document.kind == "start"
            why = f"{paper.document.by} may not sign this any more, by the operator's latest word"
            reason = f"{why}: {paper.document.sentence()}"
            self._emit(events.PaperRefused(peer="", code=Code.TAKEN_BACK, reason=reason))
        self.log.dropped.clear()
        if self._folder is not None:
            self._save(self._folder)

    def _save(self, folder: Path) -> None:
        for family, statements in ((AMENDMENT, self.log.chain), (PAPER, self.log.papers)):
            try:
                write_statements(folder / family.kept, statements)
            except HomeUnusable as error:  # they count until a restart; then other peers send them again
                self._emit(REFUSED[family](peer="", code=Code.NOT_KEPT, reason=error.found))
        if self.log.start is not None:
            discard_former_start(folder)

    # -- asking others -----------------------------------------------------------------------------------------------

    async def fetch_from(self, transport: SwarmCalls, record: PeerRecord, families: Sequence[Family] = FAMILIES) -> int:
        """Fetch all statements of these families that we lack from one peer.

        Return the number of answers that took; 0: no answer came, or an amendment was invalid. Never raises: invalid
        statements are journaled, once for each peer and code."""
        fetch = {AMENDMENT: self._fetch_amendments, PAPER: self._fetch_papers}
        answers, good = 0, True
        for family in families:
            try:
                answers += await fetch[family](transport, record)
            except BadPayload as bad:
                self._refuse(record.peer_id, family, bad.code, bad.reason)
                good = False
            except ExchangeError:
                return 0
            finally:
                self._journal_new()
        return answers if good else 0

    async def _fetch_amendments(self, transport: SwarmCalls, record: PeerRecord) -> int:
        """Ask until the peer has no more. Return the number of answers. Raises ExchangeError or BadPayload."""
        answers, count = 0, -1
        while count < len(self.log.chain):
            count = len(self.log.chain)
            given = await transport.fetch_amendments(record, count, self.log.head, ASK_TIMEOUT_S)
            for raw, signature in given[:MAX_HANDED_ON]:
                self.log.add(self.log.open_amendment(raw, signature))
            answers += 1
        return answers

    async def _fetch_papers(self, transport: SwarmCalls, record: PeerRecord) -> int:
        """Request the papers that we lack once, since one answer holds all that a peer has. Raises ExchangeError."""
        given = await transport.fetch_papers(record, self.log.paper_digests(), ASK_TIMEOUT_S)
        for line in given[:MAX_PAPERS]:
            try:
                self._add(record.peer_id, self.log.open(line[: PAPER.max_line + 1]))
            except BadPayload as bad:  # continue: a newer program may send kinds unknown here
                self._refuse(record.peer_id, PAPER, bad.code, bad.reason)
        return 1

    def duties(
        self,
        transport: SwarmCalls,
        clock: Clock,
        rng: random.Random,
        peers: Peers,
        every_s: float = ASK_EVERY_S,
        answered: Answered = ignore_answer,
    ) -> list[Coroutine[Any, Any, None]]:
        """Return coroutines that request statements until cancelled, alternately from the operator's node and from any
        peer.

        `every_s`: seconds between two requests for amendments. `answered`: called with the peer and the seconds until
        its answer. For a peer that makes no exchange calls itself, because all partners call it, these are the only
        measurements of its round trips."""

        async def request_forever(family: Family, pace: Callable[[], float], answered: Answered) -> None:
            while True:
                if (record := _next_peer(list((await peers()).values()), rng)) is not None:
                    began = clock.now()
                    # only a single answer measures a round trip
                    if await self.fetch_from(transport, record, [family]) == 1:
                        answered(record.peer_id, clock.now() - began)
                await clock.sleep(pace() * rng.uniform(0.8, 1.2))

        def pace_of_papers() -> float:
            return SOON_S if self.log.awaits_start else SELDOM * every_s

        return [
            request_forever(AMENDMENT, lambda: every_s, answered),
            request_forever(PAPER, pace_of_papers, ignore_answer),
        ]

    # -- incoming calls ----------------------------------------------------------------------------------------------

    def on_amendments(self, held: int, head: bytes) -> list[tuple[bytes, bytes]]:
        """See `peer.ports.handler.Handler.on_amendments`."""
        return [(one.raw, one.signature) for one in self.log.amendments_after(held, head)[:MAX_HANDED_ON]]

    def on_papers(self, held: Sequence[bytes]) -> list[bytes]:
        """See `peer.ports.handler.Handler.on_papers`."""
        return self.log.papers_beyond(frozenset(held[:MAX_PAPERS]))


def _next_peer(records: list[PeerRecord], rng: random.Random) -> PeerRecord | None:
    """Return the peer to ask: every other time a node of the operator, if there is one, otherwise any callable peer.
    None: no callable peer was drawn."""
    if rng.random() < 0.5:
        records = [record for record in records if record.status in NODES] or records
    drawn = (rng.choice(records) for _ in range(TRIES if records else 0))
    return next((record for record in drawn if record.reach), None)


def ensure_admitted(now: RunPolicy, me: PeerId) -> None:
    """Raise JoinRefused if the operator has banned this peer, revoked its invitation, or requires another wire
    version."""
    if me in now.banned:
        why = now.banned[me]
        raise JoinRefused(f"the operator of this run has banned this peer: {why}", "Ask the operator of the run.")
    if me in now.revoked:
        why = now.revoked[me]
        raise JoinRefused(f"the operator of this run revoked your invitation: {why}", "Ask the operator of the run.")
    if now.wire is not None and not now.wire[0] <= WIRE_VERSION <= now.wire[1]:
        low, high = now.wire
        raise JoinRefused(
            f"the operator has moved this run to wire versions {low} to {high}; this program speaks {WIRE_VERSION}",
            "Update this program: peer help install update",
        )
