"""A member's part in one shard of a round: it sends its contribution to the shard's owner, and receives the result.

The contribution is encoded chunk by chunk as it is sent, and the result is decoded into the mean as it arrives, so
neither is in memory as a whole. A sparse result, which is small, is decoded when it is complete. On failure the shard
has no result: its part of the mean is undefined, and `ShardOutcome.why` gives the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from peer.aio.tasks import uninterrupted
from peer.codec.stream import Decoding, Encoding, Flat, swap_ended
from peer.codes import Code
from peer.errors import BadPayload, PartnerLost, PartnerRefused
from peer.exchange.group.context import GroupContext
from peer.exchange.group.contribution import Contribution, statement_of, tiles
from peer.exchange.group.outcome import ShardOutcome
from peer.exchange.group.reducer import ShardReducer
from peer.exchange.group.sparse_result import Genuine, ResultCodec, SparseResult, sink_for
from peer.exchange.payloads import TensorSlice
from peer.exchange.throughput import MeasuredSource, Throughput
from peer.exchange.validation import check_result
from peer.methods.codec_specs import result_nbytes
from peer.protocol.group.receipts import digest_of, digesting, statement
from peer.protocol.group.roster import Roster
from peer.protocol.group.shards import ContributionHeader, ResultSink, Shard, ShardResult, check_named
from peer.protocol.messages import PeerRecord
from peer.protocol.wire.payload import BufferSink, BytesSource

AGAIN_S = 1.0
"""Seconds before an owner is called again after a failure."""
LOST_TRIES = 3
"""After this many lost calls an owner counts as dead, and the member stops waiting for its result."""
TRY_AGAIN = (Code.HAVE, Code.LATE, Code.LATER, Code.BUSY, Code.LOST, Code.TIMEOUT)
"""Refusal codes of an owner that may still give the result to a later call."""


class ShardResultSink(ResultSink):
    """Receives a shard's result, decodes it into `into`, and hashes it for the check of the owner's signature.

    A dense result is decoded as it arrives, a sparse one by `finish`. `members`: number of members of the roster.
    `begun`: called before the first byte. `now`: returns seconds."""

    def __init__(
        self, codec: ResultCodec, into: Tensor, members: int, begun: Callable[[], None], now: Callable[[], float]
    ) -> None:
        self._codec = codec
        self._into = into
        self.throughput = Throughput(result_nbytes(codec.name, into.numel(), members), now)
        self._members = members
        self._when_begun = begun
        self._taking: Decoding | BufferSink | None = None
        self._closed = False
        self._digest = digesting(())
        self.named: tuple[int, ...] = ()
        self.signature = b""

    @property
    def begun(self) -> bool:
        return self._taking is not None

    @property
    def nbytes(self) -> int:
        return 0 if self._taking is None else self._taking.nbytes

    def begins(self, named: tuple[int, ...], signature: bytes, nbytes: int) -> None:
        assert not self.begun
        try:
            self.named = check_named(named, self._members)
        except ValueError as error:
            raise BadPayload(Code.NAMED, f"those named in a result cannot be ({error})") from None
        self._taking = sink_for(self._codec, nbytes, self._into, len(self.named))
        self.signature, self._digest = signature, digesting(self.named)
        self._when_begun()

    def write(self, offset: int, data: bytes) -> None:
        """Decode the next bytes. Raises BadPayload; PartnerLost if the sink is closed."""
        assert self._taking is not None
        if self._closed:
            raise swap_ended()
        self.throughput.note(offset + len(data))
        self._taking.write(offset, data)
        self._digest.update(data)

    def digest(self) -> bytes:
        """Return the digest of all received bytes (`digest_of`)."""
        return self._digest.digest()

    def finish(self, genuine: Genuine) -> None:
        """Decode a complete sparse result, in a worker thread. `genuine`: verifies the signature of a part. Raises
        BadPayload."""
        if isinstance(self._codec, SparseResult):
            assert isinstance(self._taking, BufferSink)
            self._codec.read(self._taking.data, len(self.named), self._into, genuine)

    def close(self) -> None:
        """Make further writes fail."""
        self._closed = True


@dataclass(frozen=True, slots=True)
class ShardExchange:
    """The exchanges of one member in one round, with its own shard and with each other owner.

    `gradient`: our pseudo-gradient; it must not change during the exchange. `into`: receives the mean, flat fp32 of the
    same length. `outer`: the params that the gradient was computed against, if available. A cancelled call leaves no
    thread that writes to `into`."""

    context: GroupContext
    roster: Roster
    gradient: Flat
    tokens: int
    into: Tensor
    outer: Flat | None = None
    usual: float | None = None
    """Root mean square of the result that was applied in the fragment's round before; None: there was none yet."""

    async def average_own(self, reducer: ShardReducer) -> ShardOutcome:
        """Average our own shard as its owner, and decode the encoded result as all other members do."""
        context, shard, members = self.context, reducer.shard, self.roster.members
        source = Encoding(context.terms.mean.codec, self._part(shard))
        try:
            signature = await self._sign(shard, source)
            result = await reducer.run(source, self.tokens, self.into[shard.start : shard.end], signature)
        except PartnerRefused as error:
            return ShardOutcome(why=f"our own shard: {error.reason}")
        finally:
            source.close()
        ours = members.index(context.terms.me) in result.named
        others = len(result.named) - ours  # each of them sent its part and receives the result
        sent, received = others * len(result.payload), others * source.nbytes
        came = await uninterrupted(context.offload(lambda: self._decode_own(shard, result)))
        return ShardOutcome(came, ours, sent, received, contributors=result.named, signature=result.signature)

    def _decode_own(self, shard: Shard, result: ShardResult) -> bytes:
        """Decode our own result in a worker thread, and return its digest."""
        codec, into = self.context.terms.mean.result_codec, self.into[shard.start : shard.end]
        if isinstance(codec, SparseResult):
            codec.read(result.payload, len(result.named), into, lambda number, part: True)
            return digest_of(result.payload, result.named)
        for span, payload in tiles(codec, BytesSource(result.payload), shard.elements):
            codec.decode_into(payload, into[span])
        return digest_of(result.payload, result.named)

    async def _sign(self, shard: Shard, source: Encoding) -> bytes:
        """Sign our contribution. The owner shows the signature to members that recompute the mean, and a sparse result
        contains it."""
        context = self.context
        part = Contribution(self.tokens, source)
        said = await uninterrupted(context.offload(lambda: self._statement(shard, part)))
        return context.signer.sign(said)

    def _statement(self, shard: Shard, part: Contribution) -> bytes:
        return statement_of(part, self.roster.name(), shard.index, self.context.terms.mean.codec, shard.elements)

    async def _finish(self, shard: Shard, taking: ShardResultSink) -> None:
        """Decode a sparse result, and verify the signature of each of its parts. Raises BadPayload."""
        if not isinstance(self.context.terms.mean.result_codec, SparseResult):
            return
        members, verify = self.roster.members, self.context.signer.verify

        def genuine(number: int, part: Contribution) -> bool:
            return verify(members[taking.named[number]], self._statement(shard, part), part.signature)

        await uninterrupted(self.context.offload(lambda: taking.finish(genuine)))

    async def contribute(self, shard: Shard, until: float) -> ShardOutcome:
        """Contribute to another member's shard until `until` (run time) at most. When the result begins to arrive,
        sending stops, and our encoded part may be freed."""
        if (owner := self.context.peer_table.peers.get(shard.owner)) is None:
            return ShardOutcome(why=f"{shard.owner}: its address is not known")
        source = Encoding(self.context.terms.mean.codec, self._part(shard))
        try:
            return await self._call_owner(owner, shard, source, await self._sign(shard, source), until)
        finally:
            source.close()

    async def _call_owner(
        self, owner: PeerRecord, shard: Shard, source: Encoding, signature: bytes, until: float
    ) -> ShardOutcome:
        """Call the owner until it gives a result or refuses for good. A broken upload is resumed, as the owner keeps
        what it has received."""
        context, why, sending, lost = self.context, "", True, 0
        while (left_s := until - context.clock.now()) > 0:
            into = self.into[shard.start : shard.end]
            members, now = len(self.roster.members), context.clock.now
            taking = ShardResultSink(context.terms.mean.result_codec, into, members, source.close, now)
            giving = MeasuredSource(source, now) if sending else None
            throughput = (taking.throughput,) if giving is None else (giving.throughput, taking.throughput)
            nbytes = source.nbytes if sending else 0
            header = ContributionHeader(
                self.roster.key, self.roster.name(), shard.index, self.tokens, nbytes, signature=signature
            )
            try:
                with context.transfers.watching(*throughput):
                    receipt = await context.transport.contribute(owner, header, giving, taking, left_s)
                await self._finish(shard, taking)
            except PartnerRefused as error:
                why = f"{shard.owner}: {error.reason}"
                if error.code not in TRY_AGAIN:
                    return ShardOutcome(why=why)
                sending = sending and error.code not in (Code.HAVE, Code.LATE)
            except BadPayload as error:
                context.reputation.penalize(shard.owner, error.code, str(error))
                return ShardOutcome(why=f"{shard.owner}: {error}")
            except PartnerLost as error:
                context.peer_table.detector.lost(shard.owner, "lost as the owner of a shard", error, 0.0)
                why, lost = f"{shard.owner}: {error}", lost + 1
                if lost == LOST_TRIES:
                    return ShardOutcome(why=why)
            else:
                context.peer_table.detector.heard(shard.owner, "it gave a result")
                us = self.roster.members.index(context.terms.me) in taking.named
                return ShardOutcome(
                    taking.digest(),
                    us,
                    receipt.bytes_sent,
                    receipt.bytes_received,
                    way=receipt.way,
                    contributors=taking.named,
                    signature=taking.signature,
                )
            finally:
                taking.close()
            sending = sending and not taking.begun
            await context.clock.sleep(min(AGAIN_S, max(0.0, until - context.clock.now())))
        return ShardOutcome(why=why)

    def check(self, shard: Shard, given: ShardOutcome) -> ShardOutcome:
        """Return the outcome with the measures of its result, in a worker thread. Raises BadPayload if the result is
        implausible or its owner did not sign it."""
        outer = None if self.outer is None else TensorSlice(self.outer, shard.start, shard.end)
        measured = check_result(self.into[shard.start : shard.end], self._part(shard), outer, self.usual)
        said = statement(self.roster.name(), shard.index, given.result_digest)
        if not self.context.signer.verify(shard.owner, said, given.signature):
            raise BadPayload(Code.SIGNATURE, "the owner did not sign the result it gave")
        measured = replace(measured, named=len(given.contributors), names_us=given.includes_us)
        return replace(given, measured=measured)

    def _part(self, shard: Shard) -> TensorSlice:
        return TensorSlice(self.gradient, shard.start, shard.end)
