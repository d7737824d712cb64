"""Rendezvous of swaps on the server side: a slot connects a dialling partner with our own round.

When the connection breaks, the partner's next call resumes the swap in the same slot
(`peer.transport.wire.resumption`).

On failure: a broken stream leaves the slot until the round's deadline. The partner's next call replaces its previous
one, so that a partner holds one slot however often it calls. A swap ends at once for invalid bytes, a partner that does
not resume, or a partner's farewell."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc

from peer.codes import Code, rejected
from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerSilent
from peer.ports.handler import Handler
from peer.protocol.messages import MAX_PARTS, PeerId, RoundKey, SwapReport, Verdict, Way
from peer.transport.server.admission import STEP_TIMEOUT_S, Admission
from peer.transport.wire.payload_stream import STALL_S, Caps, SwapTerms, read_open, swap_payloads
from peer.transport.wire.reader import message_reader
from peer.transport.wire.refusals import Context, refuse
from peer.transport.wire.resumption import TransferProgress
from peer.transport.wire.striping import Read, Stripe, Stripes
from peer.v1 import exchange_pb2 as pb

MAX_PARKED = 8
"""Most calls that wait for our own rounds, in total."""
MAX_PARKED_OF_PEER = 2
"""Most calls of one peer that wait for our own rounds."""
PARK_S = 30.0
"""Seconds that a partner's call waits for our own round."""
BROKE = (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.AbortError)
"""Errors of gRPC by which a broken connection shows."""


@dataclass
class AwaitedSwap:
    """A swap for which our own round waits, until the partner dials."""

    terms: SwapTerms
    progress: TransferProgress
    done: asyncio.Future[SwapReport]

    def finish(self, error: PartnerLost) -> None:
        """End the swap because the partner does not return. It succeeds if we have received everything."""
        if self.progress.reader.complete and not self.done.done():
            terms = self.terms
            self.done.set_result(self.progress.report(terms.source.nbytes, terms.sink.nbytes, sent_all=False))
        self.fail(error)

    def fail(self, error: ExchangeError) -> None:
        if not self.done.done():
            self.done.set_exception(error)


@dataclass
class _Slot:
    """Connects a partner's calls with our own round, for one (partner, round, fragment)."""

    accepting: asyncio.Future[AwaitedSwap] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    """Set when our own round starts to wait."""
    serving: asyncio.Task[Any] | None = None
    """Task of the partner's current call."""
    over: bool = False
    """Whether our own round has stopped waiting."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by one stream at a time, with its additional streams."""
    stripes: Stripes | None = None
    """The additional streams of the current stream."""
    lingering: asyncio.TimerHandle | None = None
    """Ends the swap when the partner does not return in time."""

    @property
    def begun(self) -> AwaitedSwap | None:
        """The swap, once one of its streams has begun, even if that stream has broken since; None before."""
        met = self.accepting.done() and not self.accepting.cancelled() and self.accepting.result().progress.streams > 0
        return self.accepting.result() if met else None

    def answered(self) -> None:
        """Cancel the timer that ends the swap: the partner has returned."""
        if self.lingering is not None:
            self.lingering.cancel()
            self.lingering = None


@dataclass(frozen=True, slots=True)
class SwapWays:
    """Paths of partners' calls. `of` returns the path of the caller that gRPC sees at an address. `ended` is called for
    each stream with partner, path, and why it broke; empty: it is complete."""

    of: Callable[[str], Way] = lambda seen_as: Way()
    ended: Callable[[PeerId, Way, str], None] = lambda partner, way, why: None


class SwapRendezvous:
    """All slots of one server."""

    def __init__(self, handler: Handler, admission: Admission, caps: Caps, ways: SwapWays | None = None) -> None:
        self._ways = ways or SwapWays()
        self._handler = handler
        self._admission = admission
        self._caps = caps
        self._slots: dict[tuple[PeerId, RoundKey], _Slot] = {}

    async def accept(self, partner: PeerId, terms: SwapTerms, progress: TransferProgress) -> SwapReport:
        """Wait for the partner to dial, then swap. The caller bounds the time; cancellation ends the partner's call."""
        slot = self._slots.setdefault((partner, terms.key), _Slot())
        done: asyncio.Future[SwapReport] = asyncio.get_running_loop().create_future()
        if slot.accepting.done():
            raise PartnerLost(f"{partner}: a swap of {terms.key} is under way already")
        slot.accepting.set_result(AwaitedSwap(terms, progress, done))
        try:
            return await done
        finally:
            self._slots.pop((partner, terms.key), None)
            slot.answered()
            done.cancel()
            slot.over = True
            if slot.serving is not None:
                slot.serving.cancel()

    async def serve(self, caller: PeerId, context: Context) -> None:
        """Serve one stream of a partner until it ends."""
        theirs = await self._opening(caller, context)
        key = RoundKey(theirs.round, theirs.fragment, min(theirs.part, MAX_PARTS))
        if theirs.stripe:
            return await self._carry(caller, theirs, key, context)
        answer = self._handler.on_swap(caller, key)
        if answer.verdict in (Verdict.TAKEN, Verdict.REFUSED):
            await refuse(context, Code(answer.verdict), answer.reason)
        slot = await self._place(caller, theirs, key, context, locked=answer.verdict is Verdict.LOCKED)
        accepting = await self._await_acceptance(slot, caller, key, context)
        way = self._ways.of(context.peer())
        try:
            report = await self._stream(slot, accepting, theirs, context)
        except BadPayload as error:
            slot.serving = None
            accepting.fail(error)
            await refuse(context, rejected(error.code), error.reason)
        except PartnerLost as error:
            self._ways.ended(caller, way, str(error))
            await self._ended(slot, accepting, error, context)
        except BROKE as error:
            self._ways.ended(caller, way, "the connection broke")
            self._broke(slot, accepting, PartnerLost(f"{caller}: the connection broke ({error})"))
        except asyncio.CancelledError:
            if slot.serving is not asyncio.current_task():  # replaced by the partner's next call
                self._ways.ended(caller, way, "the partner called again")
                raise
            if not slot.over:
                self._ways.ended(caller, way, "the connection broke")
                self._broke(slot, accepting, PartnerLost(f"{caller}: the connection broke"))
                raise
            _still_serving()
            await refuse(context, Code.TIMEOUT, "your part of the swap did not come in time")
        else:
            slot.serving = None
            self._ways.ended(caller, way, "")
            if not accepting.done.done():
                accepting.done.set_result(replace(report, way=way))

    # -- before it begins --------------------------------------------------------------------------------------------

    async def _opening(self, caller: PeerId, context: Context) -> pb.SwapOpen:
        async def first() -> bytes | None:
            message = await self._admission.message(context, caller)
            return message if isinstance(message, bytes) else None

        try:
            return await read_open(first)
        except BadPayload as error:
            if (expecting := self._expecting(caller)) is not None:
                expecting.fail(error)  # our own round records the fault
            else:
                self._admission.reputation.penalize(caller, error.code, error.reason)
            await refuse(context, rejected(error.code), error.reason)
        except PartnerLost:
            return await refuse(context, Code.REQUEST, "the swap ended before it began")

    def _expecting(self, caller: PeerId) -> AwaitedSwap | None:
        """Return the swap in which our own round waits for this caller; None: there is none."""
        for (peer, _), slot in self._slots.items():
            if peer == caller and slot.serving is None and slot.accepting.done():
                return slot.accepting.result()
        return None

    async def _place(
        self, caller: PeerId, theirs: pb.SwapOpen, key: RoundKey, context: Context, *, locked: bool
    ) -> _Slot:
        """Return the slot in which this call resumes a swap or waits for our own round. Refuses the call if there is
        none."""
        held = self._slots.get((caller, key))
        begun = held.begun if held is not None else None
        if held is None or begun is None:
            if theirs.have:
                await refuse(context, Code.GONE, "that swap is not under way here (any more)")
            return await self._park(caller, key, context, locked=locked)
        if not begun.progress.agreed or theirs.swap != begun.progress.number:
            if held.serving is not None:
                await refuse(context, Code.BUSY, "this swap is under way already")
            held.answered()
            begun.finish(PartnerLost(f"{caller}: it knows nothing of the swap that broke off"))
            await refuse(context, Code.GONE, "this is not the swap that broke off")
        last, held.serving = held.serving, asyncio.current_task()
        if last is not None:
            last.cancel()
        return held

    async def _park(self, caller: PeerId, key: RoundKey, context: Context, *, locked: bool) -> _Slot:
        """Occupy a slot until our own round starts to wait. `locked`: our round is locked with this partner, which
        always gets a slot."""
        parked = [peer for (peer, _), slot in self._slots.items() if slot.serving is not None]
        full = len(parked) >= MAX_PARKED or parked.count(caller) >= MAX_PARKED_OF_PEER
        held = self._slots.get((caller, key))
        if (held is not None and held.serving is not None) or (full and not locked):
            await refuse(context, Code.BUSY, "too many swaps are waiting here")
        slot = self._slots.setdefault((caller, key), _Slot())
        slot.serving = asyncio.current_task()
        return slot

    async def _await_acceptance(self, slot: _Slot, caller: PeerId, key: RoundKey, context: Context) -> AwaitedSwap:
        """Wait until our own round accepts this swap. Refuses the call after `PARK_S`."""
        try:
            async with asyncio.timeout(PARK_S):
                accepting = await asyncio.shield(slot.accepting)
        except TimeoutError:
            await refuse(context, Code.TIMEOUT, "this peer did not come to that round in time")
        else:
            return accepting
        finally:
            if not slot.accepting.done() or slot.accepting.cancelled():
                self._slots.pop((caller, key), None)

    # -- a stream, and its end ---------------------------------------------------------------------------------------

    async def _stream(self, slot: _Slot, accepting: AwaitedSwap, theirs: pb.SwapOpen, context: Context) -> SwapReport:
        progress = accepting.progress
        stripes = Stripes(message_reader(context), context.write)
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                await slot.turn.acquire()
        except TimeoutError:
            raise PartnerLost("the stream before this one does not end") from None
        try:
            progress.adopt_number(theirs.swap)
            terms, answered, slot.stripes = accepting.terms, slot.answered, stripes
            report = await swap_payloads(
                stripes.read, stripes.write, terms, self._caps, theirs, progress, answered, stripes
            )
            if progress.agreed and report.sent_all:
                await _await_farewell(stripes.read, progress)
            return report
        finally:
            slot.stripes = None
            slot.turn.release()
            await stripes.close()

    async def _carry(self, caller: PeerId, theirs: pb.SwapOpen, key: RoundKey, context: Context) -> None:
        """Serve one additional stream of a swap until the main stream ends."""
        held = self._slots.get((caller, key))
        begun, stripes = (held.begun, held.stripes) if held is not None else (None, None)
        if (
            begun is None
            or stripes is None
            or begun.progress.number != theirs.swap
            or not stripes.awaits(theirs.stripe)
        ):
            await refuse(context, Code.GONE, "no swap waits for this stream")
        await stripes.carry(theirs.stripe, Stripe(message_reader(context), context.write))

    async def _ended(self, slot: _Slot, accepting: AwaitedSwap, error: PartnerLost, context: Context) -> None:
        """End a stream that has stopped. The caller gets the reason if it still reads."""
        self._broke(slot, accepting, error)
        with contextlib.suppress(grpc.aio.UsageError, grpc.aio.InternalError):
            if accepting.progress.can_resume:
                await context.abort(grpc.StatusCode.ABORTED, "this stream broke; call again")
            await refuse(context, Code.TIMEOUT if isinstance(error, PartnerSilent) else Code.GONE, str(error))

    def _broke(self, slot: _Slot, accepting: AwaitedSwap, error: PartnerLost) -> None:
        """Keep the slot for the partner's next call if the swap can resume; otherwise end the swap."""
        progress, slot.serving = accepting.progress, None
        progress.record_break(error)
        slot.answered()
        if not progress.can_resume:
            accepting.finish(error)
        elif progress.reader.complete:
            slot.lingering = asyncio.get_running_loop().call_later(progress.patience_s, accepting.finish, error)


async def _await_farewell(read: Read, progress: TransferProgress) -> None:
    """Wait until the partner confirms that it has received everything. Raises PartnerLost if the stream breaks."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(STALL_S):
            if not progress.is_farewell(await read()):
                raise PartnerLost("the stream broke before the partner said that it has everything")


def _still_serving() -> None:
    """Undo the cancellation of this call by `accept`, because it still has to send a refusal."""
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
