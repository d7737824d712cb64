"""Hello: the first call on a connection. Both peers prove their keys, and the caller gets a token for further calls.
Its steps are opening, challenge, proof and token.

It is the only call without a token. It verifies that the caller owns its key, that both sides share a wire version, and
that they take part in the same run. The caller also measures the other's clock."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from peer.codes import Code
from peer.errors import BadPayload, PartnerLost
from peer.identity import peer_id_of, public_key_of, verify
from peer.observe.control_bytes import Purpose
from peer.ports.handler import Handler
from peer.protocol.endpoints import host_of_caller, voice_of
from peer.protocol.messages import PeerId, PeerRecord, RunId, Welcome
from peer.signed_record import InvalidRecord, open_record
from peer.transport.calls.call import StreamedCall
from peer.transport.client.connections import Connection
from peer.transport.client.streams import CancelOnExit
from peer.transport.config import TransportConfig
from peer.transport.server.admission import Admission
from peer.transport.server.tokens import LIFETIME_S
from peer.transport.wire.refusals import Context, refuse
from peer.v1 import exchange_pb2 as pb

HELLO = StreamedCall("Hello", Purpose.HELLO)
HELLO_DOMAIN = b"peer hello v1"
"""Domain of the signatures in Hellos; see `peer.identity`."""
A_DAY_S = 86400.0
"""Seconds that two clocks may differ until the manifest is known. No manifest allows more."""
KEPT_CALLERS = 64
"""Most hosts of callers that are stored until `take_callers`."""
RECORD_FRESH_S = 30.0
"""Maximum age of the record in a Hello, in seconds. A caller seals a new record for each Hello, so an older one is a
replay."""


async def say_hello(
    connection: Connection, to: PeerRecord, config: TransportConfig, correction: Callable[[], float]
) -> Welcome:
    """Prove our key to a peer. Stores the token and the round trip in the connection.

    `correction` returns the seconds by which `config.now` is ahead of our raw clock. Raises PartnerLost when the Hello
    is interrupted, BadPayload for an impossible clock or an uninvited peer, and errors of the stream."""
    terms, starts = config.terms, config.starts
    method = connection.control.stream_stream(
        HELLO.path, request_serializer=config.control.encoder(Purpose.HELLO, pb.HelloRequest.SerializeToString)
    )
    decoded = config.control.decoder(Purpose.HELLO, pb.HelloReply.FromString)
    opening = pb.HelloOpen(
        run_id=config.run_id,
        wire_min=config.wire_min,
        wire_max=config.wire_max,
        layout_digest=terms.layout_digest,
        public_key=config.identity.public_key,
        clock=config.now(),
        record=terms.record(),
        invitation=config.invitation,
        start=b"" if starts is None else starts.nonce,
    )
    stream = method()
    with CancelOnExit(stream):
        before, corrected = config.now(), correction()
        await stream.write(pb.HelloRequest(open=opening))
        challenge = _expect(decoded, await stream.read(), "challenge", to.peer_id)
        if (found := terms.uninvited_reason(to.peer_id, challenge.invitation)) is not None:
            raise BadPayload(*found)
        after = config.now() - correction() + corrected  # a concurrent Hello may have changed the correction
        offset = offset_of(challenge, before, after, terms.max_clock_offset_s if terms.layout_digest else A_DAY_S)
        server_key = public_key_of(to.peer_id)
        message = proof_message(config.run_id, server_key, challenge.nonce)
        proof = pb.HelloProof(signature=config.identity.sign(HELLO_DOMAIN, message))
        if starts is not None:
            server_start, _ = starts.learn(server_key, challenge.start)
            starts.judge(challenge.other_start)
            proof.start, proof.other_start = starts.claim, starts.other_of(server_key, server_start)
        await stream.write(pb.HelloRequest(proof=proof))
        granted = _expect(decoded, await stream.read(), "granted", to.peer_id)
        await stream.done_writing()
    connection.accept_token(granted.token[:64])
    connection.observe_round_trip(after - before)
    return Welcome(offset + corrected, after - before, challenge.seen_as[:128], voice_of(connection.endpoint))


def _expect(decoded: Callable[[bytes], pb.HelloReply], raw: object, step: str, who: str) -> Any:
    """Return the message of this step of a Hello. `raw`: the message read, or gRPC's end-of-stream marker. Raises
    PartnerLost for any other step."""
    try:
        reply = decoded(raw) if isinstance(raw, bytes) else None
    except DecodeError:
        reply = None
    if reply is None or reply.WhichOneof("step") != step:
        raise PartnerLost(f"{who}: Hello ended in the middle")
    return getattr(reply, step)


def offset_of(challenge: pb.HelloChallenge, before: float, after: float, limit_s: float) -> float:
    """Return the other peer's clock minus ours in seconds. `before` and `after`: our time when the call began and
    ended.

    Raises BadPayload when the offset is not finite or beyond `limit_s`. Offsets correct our clock, and a NaN would
    break it permanently."""
    offset = challenge.clock - (before + after) / 2
    if not abs(offset) <= limit_s:
        raise BadPayload(
            Code.CLOCK, f"its clock differs from ours by {offset:.0f} s; at most {limit_s:.0f} s are taken"
        )
    return offset


def proof_message(run_id: RunId | bytes, server_key: bytes, nonce: bytes) -> bytes:
    """Return the bytes that a caller signs. They name the run, the server and the server's challenge, so that the
    signature is useless elsewhere."""
    return run_id + server_key + nonce


class Handshake:
    """The server side of Hello: gives tokens to callers that prove their key."""

    def __init__(
        self, config: TransportConfig, admission: Admission, handler: Handler, called: Callable[[PeerId, str], None]
    ) -> None:
        """`called` is called with each caller that gets a token, and its address."""
        self._config = config
        self._called = called
        self._admission = admission
        self._handler = handler
        self._callers: dict[str, None] = {}

    def take_callers(self) -> tuple[str, ...]:
        """Return the hosts of recent callers that proved a key, at most `KEPT_CALLERS`, and clear the list."""
        callers, self._callers = tuple(self._callers), {}
        return callers

    async def serve(self, _: Any, context: Context) -> None:
        """Serve a Hello: receive the opening, send a challenge, check the proof, send a token."""
        async with self._admission.greeting(context):
            await self._greet(context)

    async def _greet(self, context: Context) -> None:
        opened = (await self._step(context)).open
        if (found := self._refusal_before_proof(opened)) is not None:
            await self._admission.turn_away(context, *found)
        nonce, starts = secrets.token_bytes(32), self._config.starts
        challenge = pb.HelloChallenge(
            nonce=nonce,
            clock=self._config.now(),
            seen_as=(await self._admission.origin(context))[:128],
            invitation=self._config.invitation,
            start=b"" if starts is None else starts.claim_for(opened.public_key, opened.start),
            other_start=b"" if starts is None else starts.other_of(opened.public_key, opened.start),
        )
        await context.write(pb.HelloReply(challenge=challenge))
        proof = (await self._step(context)).proof
        message = proof_message(opened.run_id, self._config.identity.public_key, nonce)
        proven = verify(opened.public_key, HELLO_DOMAIN, message, proof.signature)
        caller = PeerId(peer_id_of(opened.public_key)) if proven else None
        if (found := self._refusal_after_proof(opened)) is not None:
            await self._admission.turn_away(context, *found, caller)
        if caller is None:
            reason = "the signature over our challenge is not by the key you named"
            await self._admission.turn_away(context, Code.BAD_PROOF, reason)
        if (found := self._config.terms.uninvited_reason(caller, opened.invitation)) is not None:
            self._admission.reputation.refused(caller, *found)
            await refuse(context, *found)
        if why := self._admission.reputation.exclusion_reason(caller):
            await refuse(context, Code.STANDING, why)
        start = b""
        if starts is not None:
            start, named = starts.learn(opened.public_key, proof.start)
            starts.judge(proof.other_start)
            if named:
                self._admission.tokens.expire_starts(caller, named)
        if caller != self._config.identity.peer_id:  # otherwise it is another process with our own key
            await self._learn(opened, caller, context)
            self._admission.greeted(context, caller)
            origin = await self._admission.origin(context)
            self._called(caller, origin)
            if (host := host_of_caller(origin)) and len(self._callers) < KEPT_CALLERS:
                self._callers[host] = None
        token = self._admission.tokens.issue(caller, self._config.now(), start)
        await context.write(pb.HelloReply(granted=pb.HelloGranted(token=token, expires_in_s=LIFETIME_S)))

    async def _step(self, context: Context) -> pb.HelloRequest:
        raw = await self._admission.request(context)
        if not raw:
            await self._admission.turn_away(context, Code.HELLO, "Hello ended in the middle")
        try:
            return pb.HelloRequest.FromString(raw)
        except DecodeError:
            await self._admission.turn_away(context, Code.REQUEST, "the message cannot be read")

    def _refusal_before_proof(self, opened: pb.HelloOpen) -> tuple[Code, str] | None:
        """Return why the Hello is refused before the caller has proven its key, as a code and a reason; None: it
        continues."""
        config = self._config
        if opened.wire_min > config.wire_max or opened.wire_max < config.wire_min:
            return Code.WIRE_VERSION, f"wire versions {config.wire_min} to {config.wire_max} are spoken here; update"
        if len(opened.public_key) != 32:
            return Code.BAD_PROOF, "a public key has 32 bytes"
        ahead = opened.clock - config.now()
        if not abs(ahead) <= config.terms.max_clock_offset_s:
            way, most = "ahead of" if ahead > 0 else "behind", config.terms.max_clock_offset_s
            return Code.CLOCK, f"your clock is {abs(ahead):.0f} s {way} ours; at most {most:.0f} s are taken"
        return None

    def _refusal_after_proof(self, opened: pb.HelloOpen) -> tuple[Code, str] | None:
        """Return why the caller is refused after it has proven its key, as a code and a reason; None: it is
        admitted."""
        if opened.run_id != self._config.run_id:
            return Code.WRONG_RUN, "this peer takes part in another run"
        ours = self._config.terms.layout_digest
        if ours and opened.layout_digest and opened.layout_digest != ours:
            return Code.LAYOUT, "your model has other tensors than this run's"
        return None

    async def _learn(self, opened: pb.HelloOpen, caller: PeerId, context: Context) -> None:
        """Check the directory record that the caller presents, and pass it to the handler."""
        if not opened.record:
            return
        try:
            record = open_record(opened.record, self._config.run_id, self._config.now())
        except InvalidRecord as bad:
            if bad.code in (Code.EXPIRED, Code.FUTURE):  # its clock is wrong, but within the limit
                return
            await self._admission.turn_away(context, Code.RECORD, f"your record: {bad.reason} ({bad.code})", caller)
        if record.peer_id != caller:
            await self._admission.turn_away(
                context, Code.RECORD, f"the record of {record.peer_id} is not yours to show", caller
            )
        if opened.clock - record.issued_at > RECORD_FRESH_S:
            age = opened.clock - record.issued_at
            await self._admission.turn_away(context, Code.RECORD, f"your record is a replay, {age:.0f} s old", caller)
        self._handler.on_hello(record)
