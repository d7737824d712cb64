"""The target's side of circuits: a closed peer accepts the calls that its relays announce."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial

from peer.codes import Code
from peer.errors import PartnerLost
from peer.protocol.endpoints import host_of
from peer.protocol.messages import PathKind, PeerId, Way
from peer.protocol.relay.circuits import CIRCUITS_OF_TARGET, CLAIM_S
from peer.protocol.relay.punching import implausible
from peer.protocol.relay.testimony import RelayFault
from peer.transport.client.dialling import Dialler
from peer.transport.relay.caller import CONNECT_S, punch_to, seen_endpoint
from peer.transport.relay.negotiation import Punch, agree_as_target
from peer.transport.relay.pipe import Stream
from peer.transport.relay.punch import connected
from peer.transport.relay.wire import preamble, read_address

ServeCircuit = Callable[[Stream, Way], Awaitable[None]]
"""Serves, by gRPC, the calls that come over a circuit, until it ends."""


class CircuitReception:
    """Accepts announced calls. Their tasks run until `close`.

    A target cannot distinguish faults of the caller from faults of the relay. So a relay is only blamed when its own
    port does not answer. Otherwise any caller that falls silent could separate a closed peer from its relays."""

    def __init__(
        self, serve: ServeCircuit, dialler: Dialler, failed: Callable[[PeerId, PeerId, RelayFault], None]
    ) -> None:
        """`failed` is called with (relay, relay, fault) for each relay that does not answer: the relay is also passed
        as the other end."""
        self._serve = serve
        self._dialler = dialler
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()
        self._taking: Counter[PeerId] = Counter()
        self._closed = False

    def accept(self, relay: PeerId, address: str, slip: bytes) -> None:
        """Accept a call that a relay announced. `address`: the relay's IP address and port.

        A relay with `CIRCUITS_OF_TARGET` open calls gets no more, so that no relay takes the capacity of the others."""
        if self._closed or self._taking[relay] >= CIRCUITS_OF_TARGET:
            return
        task = asyncio.create_task(self._serve_call(relay, address, slip), name="circuit taken")
        self._tasks.add(task)
        self._taking[relay] += 1
        task.add_done_callback(partial(self._ended, relay))

    def _ended(self, relay: PeerId, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._taking -= Counter([relay])  # drops a relay without open calls

    async def _serve_call(self, relay: PeerId, address: str, slip: bytes) -> None:
        try:
            through = await connected(host_of(address), int(address.rpartition(":")[2]), CONNECT_S)
        except PartnerLost as error:
            self._failed(relay, relay, RelayFault(Code.UNREACHABLE, str(error)))
            return
        chosen: Stream | None = None
        try:
            through.send(preamble(slip))
            seen = seen_endpoint(await read_address(through.reader, CLAIM_S))
            chosen = await agree_as_target(through, self._punch(through, seen))
        except PartnerLost:
            return
        finally:
            if chosen is not through:
                through.abort()
        path = PathKind.RELAYED if chosen is through else PathKind.PUNCHED
        await self._serve(chosen, Way(path, relay, "nobody can dial us"))

    def _punch(self, through: Stream, seen: str) -> Punch | None:
        """Return the function that punches to the caller; None: the reported address is implausible."""
        if not seen or implausible(seen, private_run=self._dialler.private_run()):
            return None
        return punch_to(self._dialler, through, PeerId(f"caller at {seen}"), seen)

    async def close(self) -> None:
        """End all calls, and accept no new ones."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
