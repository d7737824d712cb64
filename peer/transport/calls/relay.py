"""Relay: ask a relay for a circuit to a closed peer that has a place there."""

from __future__ import annotations

from peer.observe.control_bytes import Purpose
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.pair.receipt import MAX_PEER_ID
from peer.transport.calls.call import Asker, Call, Channel, Host
from peer.transport.wire.validation import MAX_RATE
from peer.v1 import exchange_pb2 as pb


async def ask(
    channel: Channel, relay: PeerRecord, target: PeerId, timeout_s: float, *, bulk: bool, needs: float
) -> bytes:
    """Return our slip of the circuit. `bulk`: it carries payloads. `needs`: bytes per second each way; 0: not known."""
    return (await channel.unary(relay, RELAY, pb.RelayRequest(target=target, bulk=bulk, needs=needs), timeout_s)).slip


async def serve(host: Host, asker: Asker, request: pb.RelayRequest) -> pb.RelayReply:
    target = PeerId(request.target[:MAX_PEER_ID])
    needs = request.needs if 0 <= request.needs < MAX_RATE else 0.0
    slip = host.desk.call(asker.peer, target, asker.block, bulk=request.bulk, proven=asker.proven, needs=needs)
    return pb.RelayReply(slip=slip)


RELAY = Call(pb.RelayRequest, pb.RelayReply, serve, Purpose.RELAYS)
