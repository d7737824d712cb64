"""Connections to other peers, pinned to their keys.

A connection has one channel for control calls and one for bulk transfers, so that control never waits behind bulk. It
opens more channels where a swap takes several streams."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import grpc

from peer.errors import NotDialled, PartnerLost
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.wire.frames import USUAL_CHUNK
from peer.transport.client.dialling import Dialler
from peer.transport.tls import channel_credentials

MAX_PEERS = 64
HELLO_EVERY_S = 600.0
"""Seconds after which a peer has to show again that it may take part, whatever it says of its token."""
MAX_MESSAGE = 2**20 + 2**16
AHEAD = USUAL_CHUNK
"""Bytes that a stream may send ahead of the reader; a sender keeps the larger of this and its chunk under way.

The window is small because a server holds that much for each of its callers. `peer.transport.server.read_slots` bounds
the messages beyond it. Both directions have the same window: window updates wait behind the data of the other
direction, and on a slow line the smaller window would starve."""
CHANNEL_OPTIONS = [
    # gRPC's bandwidth probe would let every stream send hundreds of MiB ahead, whatever the largest message is.
    # Without the probe, a stream sends this much ahead, or the one message that is being read.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", AHEAD),
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),
]


class Connection:
    """Channels to one endpoint of one peer, so that control calls never wait behind a bulk transfer."""

    def __init__(self, endpoint: str, channel: Callable[[], grpc.aio.Channel]) -> None:
        """`channel` makes one more channel to the endpoint, not yet connected."""
        self.endpoint = endpoint
        self.control = channel()
        self.bulk = channel()
        self.greeting = asyncio.Lock()
        """Held during a Hello, so that there is one at a time."""
        self.token = b""
        """Token that the last Hello earned; empty when there is none."""
        self._greeted = -math.inf
        self.round_trip_s = math.inf
        """Seconds of the shortest round trip measured."""
        self.stripes = 1
        """Streams that the last swap used."""
        self._channel = channel
        self._extra: list[grpc.aio.Channel] = []

    def accept_token(self, token: bytes) -> None:
        self.token, self._greeted = token, time.monotonic()

    @property
    def hello_due(self) -> bool:
        """Whether the next call has to say Hello first."""
        return not self.token or time.monotonic() - self._greeted >= HELLO_EVERY_S

    def drop_token(self) -> None:
        """Forget a token that has run out, so that the next call says Hello first."""
        self.token = b""

    def observe_round_trip(self, seconds: float) -> None:
        """Take note how long the answer to a small call took."""
        self.round_trip_s = min(self.round_trip_s, seconds)

    def observe_stripes(self, streams: int) -> None:
        """Take note how many streams a swap used."""
        self.stripes = streams

    def stripe(self, number: int) -> grpc.aio.Channel:
        """Return the channel for an additional stream of a swap, numbered from 1."""
        while len(self._extra) < number:
            self._extra.append(self._channel())
        return self._extra[number - 1]

    async def close(self) -> None:
        for channel in (self.control, self.bulk, *self._extra):
            await channel.close()


class ConnectionPool:
    """Pool of at most `MAX_PEERS` connections. It closes the least recently used one first."""

    def __init__(self, dialler: Dialler) -> None:
        self._open: OrderedDict[PeerId, Connection] = OrderedDict()
        self._dialler = dialler

    async def get(self, to: PeerRecord, timeout_s: float) -> Connection:
        """Return the open connection to a peer, or connect to the first of its endpoints that answers.

        Raises PartnerLost; NotDialled when none of them was dialled."""
        held = self._open.get(to.peer_id)
        if held is not None and held.endpoint in to.endpoints:
            self._open.move_to_end(to.peer_id)
            return held
        await self.drop(to.peer_id)
        if not to.endpoints:
            raise PartnerLost(f"{to.peer_id}: no address is known")
        near = self._dialler.near(to.peer_id, to.endpoints)
        refused = list[NotDialled]()
        for endpoint in near:
            dial = partial(self._connect, to.peer_id, endpoint, timeout_s / len(near))
            try:
                connection = await self._dialler.dial(to.peer_id, endpoint, dial)
            except NotDialled as error:
                refused.append(error)
                continue
            if connection is not None:
                return await self._keep(to.peer_id, connection)
        if len(refused) == len(near):
            raise refused[0]
        raise PartnerLost(f"{to.peer_id}: cannot connect to {', '.join(near)}")

    def endpoint_of(self, peer: PeerId) -> str:
        """Return the endpoint of the open connection to a peer; empty: there is none."""
        held = self._open.get(peer)
        return "" if held is None else held.endpoint

    async def drop(self, peer: PeerId, failed: Connection | None = None) -> None:
        """Close a connection that failed: the peer may come back at the same address with another TLS key.

        `failed` names the connection, so that a newer one of another call stays open. None closes any."""
        held = self._open.get(peer)
        if held is not None and failed in (None, held):
            del self._open[peer]
            await held.close()

    def drop_tokens(self) -> None:
        """Say Hello again at the next call to each peer."""
        for connection in self._open.values():
            connection.drop_token()

    async def close(self) -> None:
        while self._open:
            _, connection = self._open.popitem()
            await connection.close()

    async def _keep(self, peer: PeerId, connection: Connection) -> Connection:
        if (other := self._open.get(peer)) is not None:  # another call was quicker
            await connection.close()
            return other
        self._open[peer] = connection
        while len(self._open) > MAX_PEERS:
            _, oldest = self._open.popitem(last=False)
            await oldest.close()
        return connection

    async def _connect(self, peer: PeerId, endpoint: str, timeout_s: float, address: str) -> Connection | None:
        """Connect to `address`, which is one that `endpoint` stands for."""
        try:
            credentials, pinned = channel_credentials(peer)
        except ValueError as error:
            raise PartnerLost(f"{peer}: {error}") from None

        def channel() -> grpc.aio.Channel:
            return grpc.aio.secure_channel(address, credentials, options=[*CHANNEL_OPTIONS, pinned])

        connection, ready = Connection(endpoint, channel), False
        try:
            ready = await _ready(connection.control, timeout_s)
        finally:
            if not ready:  # also when the caller gives up: gRPC would go on to dial a channel that is left open
                await connection.close()
        return connection if ready else None


async def dial_check(peer: PeerId, endpoint: str, timeout_s: float) -> str:
    """Return why the peer does not answer at an endpoint with its key, for a person. An empty string means that it
    does. It keeps to no budget: see `checked_dial`."""
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        writer.close()
    except TimeoutError:
        return f"no answer within {timeout_s:.0f} s"
    except OSError as error:
        return "connection refused" if isinstance(error, ConnectionRefusedError) else str(error.strerror or error)
    credentials, pinned = channel_credentials(peer)
    async with grpc.aio.secure_channel(endpoint, credentials, options=[*CHANNEL_OPTIONS, pinned]) as channel:
        return "" if await _ready(channel, timeout_s) else "somebody else answers there"


async def checked_dial(dialler: Dialler, peer: PeerId, endpoint: str, timeout_s: float) -> str:
    """As `dial_check`, for an address out of a record. Raises NotDialled when it may not be dialled now."""
    why = "no answer"

    async def connect(address: str) -> bool | None:
        nonlocal why
        why = await dial_check(peer, address, timeout_s)
        return None if why else True

    (near,) = dialler.near(peer, [endpoint])
    return "" if await dialler.dial(peer, near, connect) else why


async def _ready(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    """Return whether the channel connects in time. A refused connection or a wrong key ends the wait at once."""
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
