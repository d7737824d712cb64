"""The served side of the exchange. Hello is the only call without a token; everything else names its caller by one."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from peer.errors import BadPayload, ExchangeError, PartnerLost
from peer.identity import Identity, peer_id_of, verify
from peer.net.directory.record import open_record
from peer.net.handler import Handler
from peer.net.refusal import TOKEN_KEY, bad_payload_code, refuse
from peer.net.stream import Caps, Terms, read_open, send_payload, swap_payloads
from peer.net.tokens import LIFETIME_S, TokenTable
from peer.protocol.frames import Kind, pack
from peer.protocol.messages import Offer, PeerId, RoundKey, RunId, SwapReport, Verdict
from peer.protocol.payload import BytesSource
from peer.v1 import exchange_pb2 as pb

HELLO_DOMAIN = b"peer hello v1"
STEP_TIMEOUT_S = 5.0
"""For one message of a caller that is expected at once."""
MAX_PARKED = 8
MAX_PIECES = 4
PARK_S = 30.0

Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


@dataclass(kw_only=True)
class Facts:
    """What both sides of the transport know of the run."""

    identity: Identity
    run_id: RunId
    now: Callable[[], float]
    wire_min: int
    wire_max: int
    max_clock_offset_s: float = 60.0
    layout_digest: bytes = b""
    max_payload: int = 0
    codec: str = "bf16"
    record: Callable[[], bytes] = lambda: b""
    """Our own sealed directory record, shown to whom we call."""


@dataclass
class Accepting:
    """Our own coordinator waits here for the partner to dial."""

    terms: Terms
    done: asyncio.Future[SwapReport]


@dataclass
class Slot:
    """Where a dialling partner and our own coordinator meet."""

    accepting: asyncio.Future[Accepting] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    serving: asyncio.Task[Any] | None = None


class ExchangeService:
    """Methods of the gRPC service. Every wait on a caller has a deadline; every number from one a bound."""

    def __init__(self, facts: Facts, handler: Handler, caps: Caps) -> None:
        self._facts = facts
        self._handler = handler
        self._caps = caps
        self._tokens = TokenTable()
        self._slots: dict[tuple[PeerId, RoundKey], Slot] = {}
        self._pieces = 0

    # -- Hello -------------------------------------------------------------------------------------------------------

    async def hello(self, _: Any, context: Context) -> None:
        """Open, challenge, proof, token."""
        opened = (await self._step(context)).open
        if (found := self._why_not(opened)) is not None:
            await refuse(context, *found)
        nonce = secrets.token_bytes(32)
        challenge = pb.HelloChallenge(nonce=nonce, clock=self._facts.now(), seen_as=context.peer()[:128])
        await context.write(pb.HelloReply(challenge=challenge))
        proof = (await self._step(context)).proof
        message = self._facts.run_id + self._facts.identity.public_key + nonce
        if not verify(opened.public_key, HELLO_DOMAIN, message, proof.signature):
            await refuse(context, "bad_proof", "the signature over our challenge is not by the key you named")
        caller = PeerId(peer_id_of(opened.public_key))
        self._learn(opened.record, caller)
        token = self._tokens.issue(caller, self._facts.now())
        await context.write(pb.HelloReply(granted=pb.HelloGranted(token=token, expires_in_s=LIFETIME_S)))

    async def _step(self, context: Context) -> pb.HelloRequest:
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                message = await context.read()
        except TimeoutError:
            await refuse(context, "timeout", "the next step of Hello did not come")
        if not isinstance(message, pb.HelloRequest):
            await refuse(context, "hello", "Hello ended in the middle")
        return message

    def _why_not(self, opened: pb.HelloOpen) -> tuple[str, str] | None:
        facts = self._facts
        if opened.run_id != facts.run_id:
            return "wrong_run", "this peer takes part in another run"
        if opened.wire_min > facts.wire_max or opened.wire_max < facts.wire_min:
            return "wire_version", f"wire versions {facts.wire_min} to {facts.wire_max} are spoken here; update"
        if facts.layout_digest and opened.layout_digest and opened.layout_digest != facts.layout_digest:
            return "layout", "your model has other tensors than this run's"
        if len(opened.public_key) != 32:
            return "bad_proof", "a public key has 32 bytes"
        if not abs(opened.clock - facts.now()) <= facts.max_clock_offset_s:
            return "clock", f"your clock differs by more than {facts.max_clock_offset_s:.0f} s; set it"
        return None

    def _learn(self, raw: bytes, caller: PeerId) -> None:
        if not raw:
            return
        try:
            record = open_record(raw, self._facts.run_id, self._facts.now())
        except ExchangeError:
            return
        if record.peer_id == caller:
            self._handler.on_hello(record)

    # -- small calls -------------------------------------------------------------------------------------------------

    async def offer(self, request: pb.OfferRequest, context: Context) -> pb.OfferReply:
        caller = await self._caller(context)
        answer = self._handler.on_offer(caller, Offer(RoundKey(request.round, request.fragment), request.withdraw))
        return pb.OfferReply(verdict=answer.verdict.value, eta_s=answer.eta_s, reason=answer.reason[:200])

    async def manifest(self, request: pb.ManifestRequest, context: Context) -> pb.ManifestReply:
        await self._caller(context)
        held = self._handler.on_manifest()
        if held is None:
            await refuse(context, "no_manifest", "this peer has no manifest yet")
        return pb.ManifestReply(manifest=held[0], signature=held[1])

    async def state(self, request: pb.StateRequest, context: Context) -> pb.StateReply:
        await self._caller(context)
        index = self._handler.on_state()
        if index is None:
            await refuse(context, "no_state", "this peer has no complete state to give (yet)")
        pieces = [pb.StatePiece(first=p.first, count=p.count, nbytes=p.nbytes, digest=p.digest) for p in index.pieces]
        return pb.StateReply(
            snapshot=index.snapshot, round=index.round, layout_digest=index.layout_digest, pieces=pieces
        )

    async def _caller(self, context: Context) -> PeerId:
        for key, value in context.invocation_metadata() or ():
            if key == TOKEN_KEY and isinstance(value, bytes):
                owner = self._tokens.owner(value, self._facts.now())
                if owner is not None:
                    return owner
        return await refuse(context, "no_token", "say Hello first")

    # -- bulk --------------------------------------------------------------------------------------------------------

    async def fetch_piece(self, raw: bytes, context: Context) -> None:
        await self._caller(context)
        try:
            request = pb.PieceRequest.FromString(raw[:4096])
        except DecodeError:
            await refuse(context, "request", "the request cannot be read")
        data = self._handler.on_piece(request.snapshot, request.piece)
        if data is None:
            await refuse(context, "gone", "that snapshot is no longer kept; ask for the state again")
        if self._pieces >= MAX_PIECES:
            await refuse(context, "busy", f"{MAX_PIECES} pieces are being sent already; ask again or ask another")
        self._pieces += 1
        try:
            await context.write(pack(Kind.OPEN, 0, pb.SwapOpen(nbytes=len(data)).SerializeToString()))
            await send_payload(context.write, BytesSource(data), self._caps, max(request.max_rate, 0.0))
        finally:
            self._pieces -= 1

    async def swap(self, _: Any, context: Context) -> None:
        """A partner dials. Who it is and which round decides the handler; then it waits for our own coordinator."""
        caller = await self._caller(context)
        read, write = _reader(context), context.write
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                theirs = await read_open(read)
        except TimeoutError:
            await refuse(context, "timeout", "the opening frame did not come")
        except BadPayload as error:
            await refuse(context, bad_payload_code(error), error.reason)
        except PartnerLost:
            return
        key = RoundKey(theirs.round, theirs.fragment)
        answer = self._handler.on_swap(caller, key)
        if answer.verdict in (Verdict.TAKEN, Verdict.REFUSED):
            await refuse(context, answer.verdict.value, answer.reason)
        accepting = await self._meet(caller, key, context)
        try:
            report = await swap_payloads(read, write, accepting.terms, self._caps, theirs)
        except BadPayload as error:
            _settle(accepting.done, error)
            await refuse(context, bad_payload_code(error), error.reason)
        except PartnerLost as error:
            _settle(accepting.done, error)
        except (grpc.aio.UsageError, grpc.aio.InternalError, grpc.aio.AbortError) as error:
            _settle(accepting.done, PartnerLost(f"{caller}: the connection broke ({error})"))
        except asyncio.CancelledError:
            _settle(accepting.done, PartnerLost(f"{caller}: the connection broke"))
            raise
        else:
            if not accepting.done.done():
                accepting.done.set_result(report)

    async def _meet(self, caller: PeerId, key: RoundKey, context: Context) -> Accepting:
        """Park the call until our coordinator accepts this swap."""
        slot = self._slots.setdefault((caller, key), Slot())
        parked = sum(s.serving is not None for s in self._slots.values())
        if slot.serving is not None or parked >= MAX_PARKED:
            await refuse(context, "busy", "too many swaps are waiting here")
        slot.serving = asyncio.current_task()
        try:
            async with asyncio.timeout(PARK_S):
                accepting = await asyncio.shield(slot.accepting)
        except TimeoutError:
            await refuse(context, "timeout", "this peer did not come to that round in time")
        else:
            return accepting
        finally:
            if not slot.accepting.done() or slot.accepting.cancelled():
                self._slots.pop((caller, key), None)

    async def accept(self, partner: PeerId, terms: Terms) -> SwapReport:
        """Wait for the partner to dial and swap. The caller bounds the time; on cancellation the served call ends."""
        slot = self._slots.setdefault((partner, terms.key), Slot())
        done: asyncio.Future[SwapReport] = asyncio.get_running_loop().create_future()
        if slot.accepting.done():
            raise PartnerLost(f"{partner}: a swap of {terms.key} is under way already")
        slot.accepting.set_result(Accepting(terms, done))
        try:
            return await done
        finally:
            self._slots.pop((partner, terms.key), None)
            if not done.done() or done.cancelled():
                done.cancel()
                if slot.serving is not None:
                    slot.serving.cancel()


def _reader(context: Context) -> Callable[[], Any]:
    async def read() -> bytes | None:
        message = await context.read()
        return message if isinstance(message, bytes) else None

    return read


def _settle(done: asyncio.Future[SwapReport], error: ExchangeError) -> None:
    if not done.done():
        done.set_exception(error)
