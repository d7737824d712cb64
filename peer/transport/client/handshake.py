"""Handshake (Hello) on the caller's side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from peer.errors import BadPayload, PartnerLost
from peer.identity import public_key_of
from peer.observe.control_bytes import Purpose
from peer.protocol.endpoints import voice_of
from peer.protocol.messages import PeerRecord, Welcome
from peer.transport.calls.call import HELLO
from peer.transport.client.connections import Connection
from peer.transport.client.streams import Ended
from peer.transport.config import TransportConfig
from peer.transport.wire.hello import HELLO_DOMAIN, proof_message
from peer.transport.wire.validation import A_DAY_S, offset_of
from peer.v1 import exchange_pb2 as pb


async def say_hello(
    connection: Connection, to: PeerRecord, facts: TransportConfig, correction: Callable[[], float]
) -> Welcome:
    """Prove our key to a peer; keep its token and round trip with the connection.

    `correction` returns the difference of `facts.now` to our raw clock, seconds. Raises PartnerLost when the Hello ends
    in the middle, BadPayload for an impossible clock or a peer that is not invited, and the errors of the stream."""
    terms, starts = facts.terms, facts.starts
    method = connection.control.stream_stream(
        HELLO.path, request_serializer=facts.control.encoder(Purpose.HELLO, pb.HelloRequest.SerializeToString)
    )
    decoded = facts.control.decoder(Purpose.HELLO, pb.HelloReply.FromString)
    opening = pb.HelloOpen(
        run_id=facts.run_id,
        wire_min=facts.wire_min,
        wire_max=facts.wire_max,
        layout_digest=terms.layout_digest,
        public_key=facts.identity.public_key,
        clock=facts.now(),
        record=terms.record(),
        invitation=facts.invitation,
        start=b"" if starts is None else starts.nonce,
    )
    stream = method()
    with Ended(stream):
        before, corrected = facts.now(), correction()
        await stream.write(pb.HelloRequest(open=opening))
        challenge = _expect(decoded, await stream.read(), "challenge", to.peer_id)
        if (found := terms.why_uninvited(to.peer_id, challenge.invitation)) is not None:
            raise BadPayload(*found)
        after = facts.now() - correction() + corrected  # another Hello may have moved the correction meanwhile
        offset = offset_of(challenge, before, after, terms.max_clock_offset_s if terms.layout_digest else A_DAY_S)
        server_key = public_key_of(to.peer_id)
        message = proof_message(facts.run_id, server_key, challenge.nonce)
        proof = pb.HelloProof(signature=facts.identity.sign(HELLO_DOMAIN, message))
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
    """Return this step of a Hello. `raw`: what was read; gRPC's mark of the end is no bytes. Raises PartnerLost."""
    try:
        reply = decoded(raw) if isinstance(raw, bytes) else None
    except DecodeError:
        reply = None
    if reply is None or reply.WhichOneof("step") != step:
        raise PartnerLost(f"{who}: Hello ended in the middle")
    return getattr(reply, step)
