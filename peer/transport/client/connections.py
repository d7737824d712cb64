"""Connections to other peers, authenticated by their keys, and the pool of them.

A connection has one channel for control calls and one for bulk transfers, so that control calls never wait behind bulk
data. It opens additional channels for swaps over several streams."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine
from functools import partial
from typing import Any

import grpc

from peer.aio.staggered import first_of
from peer.aio.tasks import cancel_and_wait
from peer.codes import Code
from peer.errors import NotDialled, PartnerLost
from peer.protocol.endpoints import RELAYED, host_of, interleaved
from peer.protocol.messages import PathKind, PeerId, PeerRecord, Reach, RelayAddress, Way
from peer.protocol.relay.testimony import RelayFault
from peer.protocol.swarm.nearness import is_private
from peer.transport.client.channels import MakeChannel, channels_to, is_ready
from peer.transport.client.circuits import Circuits
from peer.transport.client.dialling import Dialler
from peer.transport.front.dialling import DiallingFront
from peer.transport.relay.tunnel import RelayTunnel

MAX_PEERS = 64
"""Most open connections of a pool."""
PREPARE_S = 8.0
"""Timeout in seconds of determining the path of payloads to a closed peer: a circuit, an attempt to punch, and a TLS
handshake."""
STAGGER_S = 0.25
"""Seconds between the first attempts at two addresses (RFC 8305, section 5)."""
SLOW_S = 3.0
"""Seconds without an answer over a relay that count as a failure of the relay, even if another relay answers or the
caller gives up."""
HELLO_EVERY_S = 600.0
"""Seconds after which a peer has to say Hello and show its permission again, even if its token is still valid."""


class Connection:
    """Channels to one endpoint of one peer."""

    def __init__(
        self,
        endpoint: str,
        front: DiallingFront,
        channel: MakeChannel,
        address: str = "",
        tunnel: RelayTunnel | None = None,
    ) -> None:
        """`endpoint`: as in the peer's record, or `RELAYED` and the relay's peer id. `front`: the front through which
        the channels go. `address`: the IP address and port that answered. `tunnel`: the tunnel to a closed peer.
        `close` also closes front and tunnel."""
        self.endpoint = endpoint
        self.address = address or endpoint
        self._front = front
        self._tunnel = tunnel
        self.control = channel(False)
        self.bulk = channel(True)
        self.hello_lock = asyncio.Lock()
        """Held during a Hello, so that there is only one at a time."""
        self.token = b""
        """Token from the last Hello; empty: none."""
        self._greeted = -math.inf
        self.round_trip_s = math.inf
        """Shortest round trip measured, in seconds."""
        self.stripes = 1
        """Number of streams that the last swap used."""
        self._channel = channel
        self._extra: list[grpc.aio.Channel] = []
        self._users = 0
        """Running transfers."""
        self._releases_circuit = False
        self._preparing: asyncio.Task[None] | None = None

    def accept_token(self, token: bytes) -> None:
        self.token, self._greeted = token, time.monotonic()

    @property
    def hello_due(self) -> bool:
        """Whether the next call has to say Hello first."""
        return not self.token or time.monotonic() - self._greeted >= HELLO_EVERY_S

    def drop_token(self) -> None:
        """Discard an expired token, so that the next call says Hello first."""
        self.token = b""

    def observe_round_trip(self, seconds: float) -> None:
        """Record the round trip of a small call, in seconds."""
        self.round_trip_s = min(self.round_trip_s, seconds)

    def observe_stripes(self, streams: int) -> None:
        """Record the number of streams that a swap used."""
        self.stripes = streams

    def stripe(self, number: int) -> grpc.aio.Channel:
        """Return the channel for an additional stream of a swap. Additional streams are numbered from 1."""
        while len(self._extra) < number:
            self._extra.append(self._channel(True))
        return self._extra[number - 1]

    async def close(self) -> None:
        if self._preparing is not None:
            await cancel_and_wait(self._preparing)
        try:
            for channel in (self.control, self.bulk, *self._extra):
                await channel.close()
        finally:  # also when the caller is cancelled
            await self._end_paths()

    async def _end_paths(self) -> None:
        try:
            await self._front.close()
        finally:
            if self._tunnel is not None:
                await self._tunnel.close()

    def way(self, *, mapped: bool = False) -> Way:
        """Return the path of transfers. `mapped`: whether, by the peer's record, its router opened a port for it."""
        if self._tunnel is not None:
            return self._tunnel.way
        if mapped:
            return Way(PathKind.MAPPED, why="its router opened a port for it")
        return Way(why=f"it answers at {self.endpoint}")

    def begin_swap(self, needs: float) -> None:
        """Prepare for a swap. `needs`: bytes per second in each direction; 0: unknown. If known, the relay's circuit is
        released after the swap."""
        self._releases_circuit = needs > 0
        if self._tunnel is not None:
            self._tunnel.expect(needs)

    async def ready_for_bulk(self, timeout_s: float) -> None:
        """Wait until the circuit for bulk is open. Raises PartnerLost when the relay does not open it in time."""
        if self._tunnel is not None and not await is_ready(self.bulk, timeout_s):
            why = self._tunnel.trouble or f"it opened no circuit for bulk within {timeout_s:.0f} s"
            raise PartnerLost(f"{self.endpoint}: {why}")

    @contextlib.asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Count a transfer during the block, so that the bulk channels stay open."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self._releases_circuit:
                await self._release_circuit()

    @property
    def has_transfer(self) -> bool:
        """Whether a transfer is running. Then the connection is kept even if the peer changes its addresses."""
        return self._users > 0

    def prepare(self) -> None:
        """Start to determine the path of payloads, so that no swap has to wait for an attempt to punch."""
        self._preparing = asyncio.create_task(self._prepare(), name="path")

    async def _prepare(self) -> None:
        if await is_ready(self.bulk, PREPARE_S):
            await self._release_circuit()

    async def _release_circuit(self) -> None:
        """Release the relay's bulk circuit unless a transfer is running. The next transfer opens a new one."""
        if self._tunnel is None or self._users or self._tunnel.way.path is not PathKind.RELAYED:
            return
        used, self._extra = [self.bulk, *self._extra], []
        self.bulk = self._channel(True)
        for channel in used:
            await channel.close()

    @property
    def no_room(self) -> str:
        """Why the relay has no room for the current swap; empty: it has room, or the connection uses no relay."""
        return "" if self._tunnel is None else self._tunnel.no_room

    @property
    def relay(self) -> PeerId | None:
        """The relay that the connection uses; None: it uses none."""
        return None if self._tunnel is None else PeerId(self.endpoint.removeprefix(RELAYED))


class ConnectionPool:
    """At most `MAX_PEERS` connections. Closes the least recently used one when another is added."""

    def __init__(self, dialler: Dialler, circuits: Circuits | None = None) -> None:
        """`circuits`: access to closed peers; None: they cannot be called."""
        self._open: OrderedDict[PeerId, Connection] = OrderedDict()
        self._dialler = dialler
        self._circuits = circuits
        self._lingering: set[asyncio.Task[None]] = set()
        self._retired = set[Connection]()

    async def get(self, to: PeerRecord, timeout_s: float) -> Connection:
        """Return the open connection to a peer, or connect to the first of its endpoints and relays that answers.

        Raises PartnerLost, or NotDialled when no address was dialled."""
        held = self._open.get(to.peer_id)
        named = held is not None and (held.endpoint in to.endpoints or held.relay in {r.peer_id for r in to.relays})
        if held is not None and (named or held.has_transfer):
            self._open.move_to_end(to.peer_id)
            return held
        await self.drop(to.peer_id)
        if not to.endpoints and not to.relays:
            raise PartnerLost(f"{to.peer_id}: no address is known")
        refused, trouble = list[NotDialled](), list[str]()
        near = self._endpoints_to_dial(to, refused)
        relays = self.relays_of(to)

        async def direct(endpoint: str) -> Connection | None:
            try:
                dial = partial(self._connect, to.peer_id, endpoint, timeout_s)
                return await self._dialler.dial(to.peer_id, endpoint, dial)
            except NotDialled as error:
                refused.append(error)
                return None

        async def relayed(relay: RelayAddress) -> Connection | None:
            trying = asyncio.ensure_future(self._relayed(to.peer_id, relay, timeout_s, trouble))
            try:
                return await asyncio.shield(trying)
            except asyncio.CancelledError:
                self._finish_in_background(trying)
                raise

        ways = [*(partial(direct, endpoint) for endpoint in near), *(partial(relayed, relay) for relay in relays)]
        try:
            async with asyncio.timeout(timeout_s):
                connection = await first_of(ways, STAGGER_S, lambda late: late.close())
        except TimeoutError:
            connection = None
        if connection is not None:
            return await self.store(to.peer_id, connection)
        if refused and not relays and len(refused) >= len(near):
            raise refused[0]
        tried = ", ".join([*near, *(f"{RELAYED}{relay.peer_id[-8:]}" for relay in relays)])
        raise PartnerLost(f"{to.peer_id}: cannot connect to {tried}{''.join(f' ({why})' for why in trouble[:1])}")

    def _endpoints_to_dial(self, to: PeerRecord, refused: list[NotDialled]) -> tuple[str, ...]:
        """Return the endpoints to dial. Of a peer that cannot be dialled from outside, these are only the private
        ones."""
        if not to.endpoints:
            return ()
        try:
            near = self._dialler.dialable(to.peer_id, to.endpoints)
        except NotDialled as error:
            if not to.relays:
                raise
            refused.append(error)
            return ()
        return interleaved(e for e in near if to.reachable or not to.relays or is_private(host_of(e)))

    def relays_of(self, to: PeerRecord) -> list[RelayAddress]:
        """Return the relays to try, best first, without those that failed recently unless there are no others."""
        if to.reach is Reach.DIRECT or self._circuits is None:
            return []
        kept = self._circuits.standing((relay.peer_id for relay in to.relays), to.peer_id)
        named = {relay.peer_id: relay for relay in to.relays}
        return [named[relay] for relay in kept]

    def retire_over(self, relay: PeerId) -> set[PeerId]:
        """Close the connections over a relay on which no transfer is running, so that later calls connect anew. Return
        all peers that were connected over it."""
        peers = {peer for peer, held in self._open.items() if held.relay == relay}
        for peer in peers:
            if not (held := self._open[peer]).has_transfer:
                del self._open[peer]
                self._retired.add(held)
                self.run_in_background(self._retire(held))
        return peers

    async def _retire(self, connection: Connection) -> None:
        """Close a connection after the time that small calls running on it may still take."""
        await asyncio.sleep(SLOW_S)
        self._retired.discard(connection)
        await connection.close()

    def open_connection(self, peer: PeerId) -> Connection | None:
        """Return the open connection to a peer; None: there is none."""
        return self._open.get(peer)

    def endpoint_of(self, peer: PeerId) -> str:
        """Return the endpoint of the open connection to a peer; empty: there is none."""
        held = self._open.get(peer)
        return "" if held is None else held.endpoint

    async def drop(self, peer: PeerId, failed: Connection | None = None) -> None:
        """Close a connection that failed, because the peer may return at the same address with another TLS key.

        `failed`: the connection that failed, so that a newer one is left open; None: close whichever is open."""
        held = self._open.get(peer)
        if held is not None and failed in (None, held):
            del self._open[peer]
            await held.close()

    def drop_tokens(self) -> None:
        """Discard all tokens, so that the next call to each peer says Hello."""
        for connection in self._open.values():
            connection.drop_token()

    async def close(self) -> None:
        lingering = list(self._lingering)
        for task in lingering:
            task.cancel()
        await asyncio.gather(*lingering, return_exceptions=True)
        ending = [*self._retired, *self._open.values()]
        self._retired.clear()
        self._open.clear()
        await asyncio.gather(*(connection.close() for connection in ending))

    def _finish_in_background(self, trying: asyncio.Future[Connection | None]) -> None:
        """Let an attempt over a relay continue for `SLOW_S` after another attempt has won, so that a relay that stalls
        is detected. Otherwise an attempt over it would always be cancelled first."""

        async def linger() -> None:
            try:
                async with asyncio.timeout(SLOW_S):
                    late = await trying
            except (TimeoutError, PartnerLost):
                return
            if late is not None:
                await late.close()

        self.run_in_background(linger())

    def run_in_background(self, trying: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine as a task that `close` cancels."""
        task = asyncio.create_task(trying, name="slow relay")
        self._lingering.add(task)
        task.add_done_callback(self._lingering.discard)

    async def store(self, peer: PeerId, connection: Connection) -> Connection:
        """Add a new connection to the pool, unless another call has added one to this peer. Return the one in the
        pool."""
        if (other := self._open.get(peer)) is not None:
            await connection.close()
            return other
        self._open[peer] = connection
        if connection.relay and self._circuits is not None and self._circuits.may_punch(peer):
            connection.prepare()
        while len(self._open) > MAX_PEERS:
            _, oldest = self._open.popitem(last=False)
            await oldest.close()
        return connection

    async def _connect(self, peer: PeerId, endpoint: str, timeout_s: float, address: str) -> Connection | None:
        """Connect to `address`, an IP address and port to which `endpoint` resolves; None: the peer did not answer
        there. Raises PartnerLost for a peer id that contains no key."""
        front = _front_to(peer)
        try:
            connection = Connection(endpoint, front, await channels_to(front, address, address), address)
        except OSError:  # no file descriptor or no port is left
            await front.close()
            return None
        return await _ready_or_closed(connection, timeout_s)

    async def _relayed(
        self, peer: PeerId, relay: RelayAddress, timeout_s: float, trouble: list[str]
    ) -> Connection | None:
        """Connect over a relay; None: it failed. Then the reason is appended to `trouble` and the fault recorded
        against the relay."""
        assert self._circuits is not None
        began, tunnel = time.monotonic(), self._circuits.tunnel(relay, peer)
        try:
            ready = await self.connect_over(peer, relay, timeout_s, tunnel)
        except OSError as error:
            trouble.append(error.strerror or str(error))
            return None
        except asyncio.CancelledError:
            if time.monotonic() - began >= SLOW_S:
                self._blame(relay, peer, RelayFault(Code.LATE, f"nobody answered over it within {SLOW_S:.0f} s"))
            raise
        if ready is None:
            trouble.append(tunnel.trouble or "nobody answered over it with the peer's key")
            if not tunnel.refused:  # a refusal is no fault: the peer may have lost its place at an honest relay
                self._blame(relay, peer, RelayFault(Code.BROKEN, trouble[-1]))
        return ready

    def _blame(self, relay: RelayAddress, peer: PeerId, fault: RelayFault) -> None:
        assert self._circuits is not None
        self._circuits.failed(relay.peer_id, peer, fault)

    async def connect_over(
        self, peer: PeerId, relay: RelayAddress, timeout_s: float, tunnel: RelayTunnel | None = None
    ) -> Connection | None:
        """Connect over a relay without recording faults. `tunnel`: the tunnel to use; None: a new one. Return None if
        the peer did not answer with its key.

        Raises OSError when no socket can be created."""
        assert self._circuits is not None
        tunnel, front = tunnel or self._circuits.tunnel(relay, peer), _front_to(peer)
        try:
            make = await channels_to(front, *await tunnel.start())
            connection = Connection(f"{RELAYED}{relay.peer_id}", front, make, tunnel=tunnel)
        except BaseException:
            await front.close()
            await tunnel.close()
            raise
        return await _ready_or_closed(connection, timeout_s)


def _front_to(peer: PeerId) -> DiallingFront:
    try:
        return DiallingFront(peer)
    except ValueError as error:
        raise PartnerLost(f"{peer}: {error}") from None


async def _ready_or_closed(connection: Connection, timeout_s: float) -> Connection | None:
    """Return the connection once it is ready. If it is not ready in time, close it and return None."""
    ready = False
    try:
        ready = await is_ready(connection.control, timeout_s)
    finally:
        if not ready:  # also when cancelled: gRPC keeps dialling for an open channel
            await connection.close()
    return connection if ready else None
