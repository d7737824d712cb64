"""Audits the results of other shard owners by recomputing them: all that look doubtful and, with probability `CHANCE`
in each round, one that is drawn at random.

While its trainer works on the next round, the member fetches an owner's evidence (`peer.exchange.group.evidence`) and
recomputes the mean, for at most `MOST` results a round. The random draw is derived from a signature of the member, so
that no owner can predict it.

On failure: evidence that cannot be fetched, or is not signed by all contributors, proves nothing and does not lower the
owner's reputation."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from blake3 import blake3

from peer.codes import Code
from peer.errors import ExchangeError
from peer.exchange.deadlines import transfer_s
from peer.exchange.group.context import GroupContext
from peer.exchange.group.evidence import EvidenceForm, copy, name_of
from peer.exchange.group.outcome import ShardOutcome
from peer.exchange.group.proof import Finding, ShardProof, examine
from peer.exchange.group.sparse_result import SparseResult
from peer.protocol.group.receipts import draw_statement
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import Shard
from peer.protocol.messages import PIECE_BYTES, PeerRecord
from peer.state.unnamed import unnamed

CHANCE = 0.02
"""Probability that in a round a member audits one result that does not look doubtful."""
MOST = 3
"""Most results that are audited in a round."""
KEPT_PROOFS = 4
"""Number of proofs that are kept."""


class Auditor:
    """Recomputes results that other shard owners signed, and lowers the reputation of an owner whose result is false.

    `folder`: where fetched evidence is stored; None: in memory."""

    def __init__(self, context: GroupContext, folder: Path | None = None) -> None:
        self._context = context
        self._folder = folder
        self._due: list[tuple[Roster, Shard, ShardOutcome]] = []
        self._news = asyncio.Event()
        self._one = asyncio.Lock()
        self.proofs: list[ShardProof] = []
        """The latest proofs of false results, which can be passed on."""

    def select_results(
        self, roster: Roster, shards: list[Shard], outcomes: list[ShardOutcome], doubted: Collection[int]
    ) -> None:
        """Select the results of a round to audit, given its checked outcomes. Replaces the former selection, since
        owners do not show evidence of former rounds. `doubted`: indices of shards whose results are implausible."""
        self._due = []
        if isinstance(self._context.terms.mean.result_codec, SparseResult):
            return
        both = [
            (roster, shard, outcome)
            for shard, outcome in zip(shards, outcomes, strict=True)
            if outcome.measured is not None and shard.owner != self._context.terms.me
        ]
        drawn = self._drawn(roster, len(both))
        chosen = [one for number, one in enumerate(both) if one[1].index in doubted or number == drawn]
        self._due = chosen[:MOST]
        if self._due:
            self._news.set()

    def _drawn(self, roster: Roster, count: int) -> int | None:
        """Draw one of `count` results at random and return its index; None: no result is drawn in this round."""
        said = blake3(self._context.signer.sign(draw_statement(roster.name()))).digest()
        if not count or int.from_bytes(said[:8], "big") >= CHANCE * 2**64:
            return None
        return int.from_bytes(said[8:16], "big") % count

    async def run(self) -> None:
        """Audit the selected results until cancelled. Cancelling it leaves nothing running. If several calls run at
        once, only one of them audits at a time. Never raises for the failure of another peer."""
        while True:
            await self._news.wait()
            async with self._one:
                while self._due:
                    await self._audit_first()
            self._news.clear()

    async def _audit_first(self) -> None:
        job = self._due[0]
        roster, shard, outcome = job
        if (owner := self._context.peer_table.peers.get(shard.owner)) is not None:
            with suppress(ExchangeError, OSError):  # without evidence nothing is proved
                await self._audit(owner, roster, shard, outcome)
        if self._due and self._due[0] is job:  # otherwise `select_results` has replaced the list for a new round
            self._due.pop(0)

    async def _audit(self, owner: PeerRecord, roster: Roster, shard: Shard, outcome: ShardOutcome) -> None:
        context = self._context
        shown = await self._fetch(owner, roster, shard, len(outcome.contributors))
        proof = ShardProof(
            roster, shard.index, outcome.contributors, outcome.result_digest, outcome.signature, shown.toreadonly()
        )
        found = await context.offload(partial(self._examined, proof))
        if found.guilty:
            context.reputation.penalize(shard.owner, Code.FALSE_MEAN, found.why)
            self.proofs = [*self.proofs, proof][-KEPT_PROOFS:]

    def _examined(self, proof: ShardProof) -> Finding:
        terms = self._context.terms
        return examine(proof, terms.run_id, terms.mean, terms.elements, self._context.signer.verify)

    async def _fetch(self, owner: PeerRecord, roster: Roster, shard: Shard, parts: int) -> memoryview:
        """Fetch the owner's evidence piece by piece. Raises ExchangeError, or OSError if the disk is full."""
        context, name = self._context, name_of(roster.name(), shard.index)
        nbytes = EvidenceForm(context.terms.mean, shard.elements, parts).nbytes
        shown = unnamed(self._folder, nbytes)
        for piece, start in enumerate(range(0, nbytes, PIECE_BYTES)):
            size = min(PIECE_BYTES, nbytes - start)
            data = await context.transport.fetch_part(owner, name, piece, size, transfer_s(size))
            await context.offload(partial(copy, shown[start : start + size], data))
        return shown
