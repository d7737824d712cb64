"""The owner's side of one shard in one round: it receives the members' contributions, averages them once, and gives the
same encoded result to all members, itself included.

Contributions are kept encoded, at most one for each member. Together they are as large as one member's whole
contribution. A copy of them is stored on disk until the next round, for members that recompute the result. An upload
whose stream broke is kept until its sender resumes it over another stream; only complete uploads count.

The owner waits until all members have contributed. Once a quorum has, it waits as long again as the quorum took and
LEAST_GRACE_S more, at most until its deadline. Later contributions are refused. A contributor whose work points against
that of the others is excluded (`peer.protocol.group.contributor_judge`). The result is dropped when all members have
it, or at the end of the round."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom

from torch import Tensor

from peer.aio.events import Condition
from peer.aio.tasks import uninterrupted
from peer.codec.plain import Payload
from peer.codes import Code, rejected
from peer.errors import PartnerLost, PartnerRefused
from peer.exchange.group.compare import compare_parts
from peer.exchange.group.context import GroupContext
from peer.exchange.group.contribution import Contribution, statement_of
from peer.exchange.group.evidence import ShownEvidence, name_of
from peer.exchange.group.reduce import reduce_contributions
from peer.exchange.group.sparse_result import SparseResult
from peer.outer.pages import pages
from peer.protocol.group.contributor_judge import FEWEST, PartsComparison
from peer.protocol.group.receipts import digest_of, shown_statement, statement
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import ContributionHeader, Shard, ShardResult, UploadSlot
from peer.protocol.messages import PeerId
from peer.protocol.wire.frames import PayloadReader
from peer.protocol.wire.payload import BufferSink, BytesSource, Source

LEAST_GRACE_S = 2.0
"""Least seconds to wait for further contributions once a quorum has contributed."""


@dataclass(slots=True)
class PendingUpload:
    """A contribution that is not complete yet. It may arrive over several streams, one after the other."""

    header: ContributionHeader
    buffer: BufferSink
    reader: PayloadReader
    """The reader of the latest stream. `upload` is that stream's, too."""
    upload: ContributionUpload

    def continues(self, header: ContributionHeader) -> bool:
        """Return whether `header` continues this upload on another stream."""
        ours = self.header
        return ours.transfer != 0 and (ours.transfer, ours.tokens) == (header.transfer, header.tokens)


class ShardReducer:
    """Averages the members' contributions to one shard in one round and serves the result. Runs on the shard's owner.

    `lacking`: returns why the given contributors are too few, or an empty string if they are enough. `deadline`: run
    time at which collecting ends. `folder`: where a copy of the parts is stored as evidence; None: in memory.
    `leave_out`: chooses the contributors to exclude from the mean. Excluded contributors still receive the result."""

    def __init__(
        self,
        context: GroupContext,
        roster: Roster,
        shard: Shard,
        lacking: Callable[[Collection[PeerId]], str],
        deadline: float,
        folder: Path | None = None,
        leave_out: Callable[[PartsComparison], Collection[PeerId]] = lambda compared: (),
    ) -> None:
        self.roster = roster
        self.shard = shard
        self._context = context
        self._lacking = lacking
        self._deadline = deadline
        self._folder = folder
        self._leave_out = leave_out
        self.shown: ShownEvidence | None = None
        """The evidence of the result, for the members. None: there is no result yet, or the disk is full."""
        self._parts: dict[PeerId, Contribution] = {}
        self._pending: dict[PeerId, PendingUpload] = {}
        self._accepted: dict[PeerId, int] = {}
        """The senders whose contribution is complete and in time, with the number of its transfer."""
        self._delivered: set[PeerId] = set()
        """The members that have the result."""
        self.closed = False
        self._refused: dict[PeerId, PartnerRefused] = {}
        self._outcome: ShardResult | PartnerRefused | None = None
        self._changed = Condition()

    @property
    def over(self) -> bool:
        return self._outcome is not None

    async def run(self, own: Source, tokens: int, into: Tensor, signature: bytes = b"") -> ShardResult:
        """Collect the contributions, average them and return the result.

        `own`: our contribution, of `tokens` tokens. `into`: flat fp32 of the shard, used as working memory; undefined
        afterwards. `signature`: ours, of our contribution. Raises PartnerRefused (`none`) if there is no result. If
        cancelled, it refuses the waiting members and returns only when no thread writes to `into` any more."""
        try:
            await self._collect(Contribution(tokens, own, signature))
            self._outcome = result = await self._averaged(into)
        finally:
            self.give_up()
        if isinstance(result, PartnerRefused):
            raise result
        return result

    def give_up(self) -> None:
        """End the round without a result: waiting members are refused. Does nothing if there is an outcome already."""
        self._close()
        self._parts.clear()
        self._outcome = self._outcome or PartnerRefused(Code.GONE, "the owner of the shard gave the round up")
        self._changed.notify_all()

    async def _collect(self, own: Contribution) -> None:
        clock, began = self._context.clock, self._context.clock.now()
        self._parts[self._context.terms.me] = own
        until, quorate = self._deadline, False
        while len(self._parts) < len(self.roster.members) and (now := clock.now()) < until:
            if not quorate and not self._lacking(self._parts.keys()):
                until, quorate = min(until, now + (now - began) + LEAST_GRACE_S), True
                continue
            await self._changed.wait_for(until - now)
        self._close()

    def _close(self) -> None:
        """Refuse further contributions, and drop incomplete uploads."""
        self.closed = True
        for coming in self._pending.values():
            coming.upload.detach()
        self._pending.clear()

    async def _averaged(self, into: Tensor) -> ShardResult | PartnerRefused:
        context, parts = self._context, dict(sorted(self._parts.items()))
        self._parts.clear()
        terms, checks = context.terms.mean, (self._lacking, self._is_genuine)
        tensors = terms.tensors_of(self.roster.key.fragment, self.shard)
        left_out = set[PeerId]()
        if len(parts) >= FEWEST:  # with fewer there is no majority to compare with
            compared = await uninterrupted(
                context.offload(lambda: compare_parts(parts, terms.codec, self.shard.elements, SystemRandom()))
            )
            left_out = set(self._leave_out(compared))
        if not self._lacking(parts.keys() - left_out):  # otherwise include all: having no result would cost more
            for peer in left_out:
                del parts[peer]
        combined = await uninterrupted(
            context.offload(lambda: reduce_contributions(parts, terms, into, *checks, tensors, self._store_evidence))
        )
        for peer, error in combined.bad.items():
            context.reputation.penalize(peer, error.code, error.reason)
            self._refused[peer] = PartnerRefused(rejected(error.code), error.reason)
        if combined.payload is None:
            return PartnerRefused(Code.NONE, f"no result: {combined.lacking}")
        index = {peer: number for number, peer in enumerate(self.roster.members)}
        return await self._signed(combined.payload, tuple(index[peer] for peer in combined.named))

    def _store_evidence(self, parts: list[Contribution]) -> None:
        """Store the evidence of the result, in a worker thread. Not needed for sparse results, which contain their
        parts or belong to a group that is too large for it."""
        terms = self._context.terms.mean
        if not isinstance(terms.result_codec, SparseResult):
            with suppress(OSError):
                self.shown = ShownEvidence(terms, self.shard.elements, parts, self._folder)

    def _is_genuine(self, peer: PeerId, part: Contribution) -> bool:
        """Return whether the sender signed this contribution. Unsigned ones pass if results are not sparse, since
        earlier versions do not sign them."""
        if not part.signature and not isinstance(self._context.terms.mean.result_codec, SparseResult):
            return True
        said = statement_of(
            part, self.roster.name(), self.shard.index, self._context.terms.mean.codec, self.shard.elements
        )
        return self._context.signer.verify(peer, said, part.signature)

    async def _signed(self, payload: Payload, named: tuple[int, ...]) -> ShardResult:
        """Sign the result and its evidence. An owner that gives two members different results has then signed both,
        which proves its offence."""
        context, name, shard = self._context, self.roster.name(), self.shard.index
        digest = await context.offload(lambda: digest_of(payload, named))
        if (shown := self.shown) is not None:
            listed = await context.offload(lambda: shown.digest(payload))
            signature = context.signer.sign(shown_statement(name, shard, digest, listed))
            shown.open(name_of(name, shard), signature, len(self.roster.members))
        return ShardResult(payload, named, context.signer.sign(statement(name, shard, digest)))

    # -- incoming calls ----------------------------------------------------------------------------------------------

    def open_upload(self, sender: PeerId, header: ContributionHeader) -> UploadSlot:
        """Open a stream for a member's contribution; a header of 0 bytes asks for the result alone.

        Raises PartnerRefused: `late` (closed; ask for the result alone), `have` (the contribution is here already), or
        the code of the fault in the header."""
        due = self._context.terms.mean.codec.nbytes(self.shard.elements)
        if header.nbytes == 0:
            return ContributionUpload(self, sender, header)
        if header.nbytes != due:
            reason = f"{header.nbytes} bytes announced, {due} are due"
            self._context.reputation.penalize(sender, Code.LENGTH, reason)
            raise PartnerRefused(rejected(Code.LENGTH), reason)
        if header.transfer and self._accepted.get(sender) == header.transfer:
            return ContributionUpload(self, sender, header, have=due)
        if sender in self._accepted:
            raise PartnerRefused(Code.HAVE, "your contribution is here already")
        if self.closed:
            raise PartnerRefused(Code.LATE, "this shard is closed; ask for its result")
        return self._begin_upload(sender, header)

    def _begin_upload(self, sender: PeerId, header: ContributionHeader) -> ContributionUpload:
        """Begin a stream, or resume an upload over a new one. The member's former stream is detached, because this peer
        may not have noticed yet that it broke, and no member may use memory twice."""
        if (last := self._pending.pop(sender, None)) is not None:
            last.upload.detach()
        if last is not None and last.continues(header):
            reader, buffer = last.reader.fork(), last.buffer
        else:
            reader, buffer = PayloadReader(header.nbytes), BufferSink(header.nbytes, pages(header.nbytes))
        upload = ContributionUpload(self, sender, header, buffer, reader)
        self._pending[sender] = PendingUpload(header, buffer, reader, upload)
        return upload

    def accept(self, sender: PeerId, header: ContributionHeader, payload: Payload) -> None:
        """Add a complete contribution that is in time."""
        self._pending.pop(sender, None)
        if sender not in self._accepted:
            self._accepted[sender] = header.transfer
            self._parts[sender] = Contribution(header.tokens, BytesSource(payload), header.signature)
        self._changed.notify_all()

    def discard(self, sender: PeerId, upload: ContributionUpload) -> None:
        """Drop what this stream has received; it cannot be resumed."""
        if (coming := self._pending.get(sender)) is not None and coming.upload is upload:
            del self._pending[sender]

    def left_s(self) -> float:
        """Return the seconds until the deadline."""
        return max(0.0, self._deadline - self._context.clock.now())

    async def result_for(self, sender: PeerId) -> ShardResult:
        """Wait for the result, at most until the deadline plus the time of averaging. Raises PartnerRefused if there is
        none for this member."""
        while self._outcome is None:
            await self._changed.wait_for(LEAST_GRACE_S)
        if sender in self._refused:
            raise self._refused[sender]
        if isinstance(self._outcome, PartnerRefused):
            raise self._outcome
        return self._outcome

    def mark_delivered(self, sender: PeerId) -> None:
        """Record that this member has the result. The result is freed when all members have it."""
        self._delivered.add(sender)
        others = set(self.roster.members) - {self._context.terms.me}
        if isinstance(self._outcome, ShardResult) and others <= self._delivered | self._refused.keys():
            self._outcome = PartnerRefused(Code.GONE, "every member has had this result")


class ContributionUpload(UploadSlot):
    """One stream over which a member uploads its contribution. It is also the sink of the stream's bytes."""

    def __init__(
        self,
        reducer: ShardReducer,
        sender: PeerId,
        header: ContributionHeader,
        buffer: BufferSink | None = None,
        reader: PayloadReader | None = None,
        have: int = 0,
    ) -> None:
        self.sink = None if buffer is None else self
        self.reader = reader
        self.patience_s = reducer.left_s()
        self.transfer = header.transfer
        self.have = have if reader is None else reader.received
        self._buffer = buffer
        """Received bytes; None: this stream was detached."""
        self._reducer = reducer
        self._sender = sender
        self._header = header

    @property
    def nbytes(self) -> int:
        return self._header.nbytes

    def write(self, offset: int, data: bytes) -> None:
        """Add received bytes. Raises PartnerLost if another stream has resumed the upload, PartnerRefused (`late`) if
        the shard is closed."""
        self._held().write(offset, data)

    def complete(self) -> None:
        buffer = self._held()
        self.detach()
        self._reducer.accept(self._sender, self._header, buffer.data)

    def _held(self) -> BufferSink:
        if self._reducer.closed:
            raise PartnerRefused(Code.LATE, "this shard was closed before your contribution was complete")
        if self._buffer is None:
            raise PartnerLost("another stream has gone on with this contribution")
        return self._buffer

    def detach(self) -> None:
        """Accept nothing more over this stream: another one resumes the upload, or it is too late."""
        self._buffer = None

    def reject(self) -> None:
        self._reducer.discard(self._sender, self)

    async def result(self) -> ShardResult:
        return await self._reducer.result_for(self._sender)

    def mark_delivered(self) -> None:
        self._reducer.mark_delivered(self._sender)

    def leave(self) -> None:
        if self.transfer == 0:
            self.reject()
        self.sink = None
        self.detach()
