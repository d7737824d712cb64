"""Relay: the call that requests a circuit from a relay, to a closed peer with a place there."""

from __future__ import annotations

from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.pair.receipt import MAX_PEER_ID
from peer.transport.calls.call import AuthenticatedCaller, Call, CallServices, Channel
from peer.transport.wire.validation import MAX_RATE
from peer.v1 import exchange_pb2 as pb


async def invoke(
    channel: Channel, relay: PeerRecord, target: PeerId, timeout_s: float, *, bulk: bool, needs: float
) -> bytes:
    """Return our slip of the circuit. `bulk`: whether it will carry payloads. `needs`: bytes per second in each
    direction; 0: not known."""
    return (await channel.unary(relay, RELAY, pb.RelayRequest(target=target, bulk=bulk, needs=needs), timeout_s)).slip


async def serve(services: CallServices, caller: AuthenticatedCaller, request: pb.RelayRequest) -> pb.RelayReply:
    target = PeerId(request.target[:MAX_PEER_ID])
    needs = request.needs if 0 <= request.needs < MAX_RATE else 0.0
    slip = services.relay_server.call(
        caller.peer, target, caller.block, bulk=request.bulk, proven=caller.proven, needs=needs
    )
    return pb.RelayReply(slip=slip)


RELAY = Call(pb.RelayRequest, pb.RelayReply, serve, Purpose.RELAYS)
