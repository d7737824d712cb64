"""Creates gRPC channels to other peers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc

from peer.protocol.wire.frames import USUAL_CHUNK
from peer.transport.front.dialling import DiallingFront

MAX_MESSAGE = 2**20 + 2**16
AHEAD = USUAL_CHUNK
"""Bytes that a stream may send ahead of the reader. A sender has the larger of this and its chunk in flight.

The window is small because a server buffers that much for each of its callers. `peer.transport.server.read_slots`
bounds messages that are larger. Both directions have the same window, because window updates queue behind the data of
the other direction, so that on a slow line the direction with the smaller window would starve."""
CHANNEL_OPTIONS = [
    # gRPC's bandwidth probe would let every stream send hundreds of MiB ahead, regardless of the largest message.
    # Without the probe, a stream sends at most `AHEAD` bytes ahead, or the one message that is being read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", AHEAD),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
]

MakeChannel = Callable[[bool], grpc.aio.Channel]
"""Creates another channel, not yet connected. The argument says whether it is for bulk transfers."""


async def channels_to(front: DiallingFront, control: str, bulk: str) -> MakeChannel:
    """Return a factory of channels that go through the front to these addresses, one for control and one for bulk.

    Raises OSError when no socket can be created."""
    for_control = await front.lead_to(control)
    for_bulk = for_control if bulk == control else await front.lead_to(bulk)
    return lambda is_bulk: grpc.aio.insecure_channel(for_bulk if is_bulk else for_control, options=CHANNEL_OPTIONS)


async def is_ready(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    """Return whether the channel connects within `timeout_s`. Returns False at once when the connection is refused or
    the key is wrong."""
    try:
        async with asyncio.timeout(timeout_s):
            state = channel.get_state(try_to_connect=True)
            while state is not grpc.ChannelConnectivity.READY:
                if state in (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN):
                    return False
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return True
