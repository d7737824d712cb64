"""The caller's side of circuits: requests one from a relay, and negotiates the path with the target."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from peer.errors import NotDialled, PartnerLost
from peer.protocol.endpoints import host_of, host_of_caller, join_host, port_of
from peer.protocol.messages import PathKind, PeerId, RelayAddress, Way
from peer.protocol.policy.dial_budget import PACKETS
from peer.protocol.relay.circuits import CLAIM_S
from peer.protocol.relay.punching import PunchMemory
from peer.transport.client.dialling import Dialler
from peer.transport.relay.negotiation import OPENED_NOTHING, Check, Punch, agree_as_caller
from peer.transport.relay.pipe import Stream
from peer.transport.relay.punch import connected, punched
from peer.transport.relay.wire import preamble, read_address

AGAIN_S = 0.05
"""Seconds between two dials of one hole punch."""
MOST_DIALS = 8
"""Most dials of one hole punch. This limits dials to a peer that answered at that host before, which cost no budget."""
CONNECT_S = 8.0
"""Timeout of connecting to the relay, in seconds. TCP retransmits a lost first packet after 1, 3 and 7 s."""

Ask = Callable[[RelayAddress, PeerId, bool, float], Awaitable[tuple[bytes, str]]]
"""Requests a circuit from a relay, called with (relay, target, whether it is for bulk, needed bytes per second).
Returns our slip, and the relay's IP address with its port. Raises PartnerLost, PartnerRefused or BadPayload."""


class CircuitCaller:
    """Opens circuits to closed peers."""

    def __init__(
        self, ask: Ask, dialler: Dialler, memory: PunchMemory, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._dialler = dialler
        self._memory = memory
        self._now = now

    async def open(
        self,
        relay: RelayAddress,
        target: PeerId,
        *,
        bulk: bool,
        needs: float = 0.0,
        answered: Callable[[float], None] = lambda asked_s: None,
    ) -> tuple[Stream, Way]:
        """Open a circuit and return its stream and path. Only circuits for bulk try to punch, because of the delay.
        `answered` is called with the seconds that the relay took to provide the circuit.

        Raises PartnerLost, PartnerRefused or BadPayload when the relay or the target fails."""
        began = self._now()
        slip, address = await self._ask(relay, target, bulk, needs)
        answered(self._now() - began)
        through = await connected(host_of(address), int(address.rpartition(":")[2]), CONNECT_S)
        chosen: Stream | None = None
        try:
            through.send(preamble(slip))
            seen = seen_endpoint(await read_address(through.reader, CLAIM_S))
            punch, why = self._punch(through, target, seen, bulk=bulk)
            chosen, unpunched = await agree_as_caller(through, punch)
        finally:
            if chosen is not through:
                through.abort()
        if chosen is not through:
            self._memory.worked(target)
            return chosen, Way(PathKind.PUNCHED, relay.peer_id, "nobody can dial it, and both routers let it through")
        if unpunched == OPENED_NOTHING:
            self._memory.failed(target, self._now())
        return through, Way(PathKind.RELAYED, relay.peer_id, why or unpunched)

    def _punch(self, through: Stream, target: PeerId, seen: str, *, bulk: bool) -> tuple[Punch | None, str]:
        """Return the function that punches, or None and the reason for not punching."""
        if not bulk:
            return None, "small calls stay with the relay"
        if host_of(seen) in self._dialler.seen_hosts():
            return None, "both are behind one router, which does not lead back"
        why = self._memory.skip_reason(target, seen, private_run=self._dialler.private_run(), now=self._now())
        return (None, why) if why else (punch_to(self._dialler, through, target, seen), "")


def punch_to(dialler: Dialler, through: Stream, peer: PeerId, seen: str) -> Punch:
    """Return a function that punches to a peer that the relay sees at `seen`, within that address's budget of dials.

    The relay reports that address and could report any other. Refused attempts therefore cost the budget as much as any
    packet, and only a peer that answers returns its dial."""

    async def punch(check: Check) -> Stream:
        refused = False

        async def connect(endpoint: str) -> Stream | None:
            nonlocal refused
            host, port = host_of(endpoint), port_of(endpoint)
            opened, passes = await punched(through, host, port, attempts=PACKETS), False
            refused = opened is None
            if opened is None:
                return None
            try:
                passes = await check(opened)
                return opened if passes else None
            finally:
                if not passes:
                    opened.abort()

        for _ in range(MOST_DIALS):
            try:
                made = await dialler.dial(peer, seen, connect)
            except NotDialled as error:
                raise PartnerLost(str(error)) from None
            if made is not None:
                return made
            if not refused:
                raise PartnerLost("somebody else answers there")
            await asyncio.sleep(AGAIN_S)
        raise PartnerLost(f"refused {MOST_DIALS * PACKETS} times")

    return punch


def seen_endpoint(seen_as: str) -> str:
    """Return `host:port` for an address in gRPC's notation; empty for anything else."""
    host, _, port = host_of_caller(seen_as), *seen_as.rpartition(":")[1:]
    return join_host(host, int(port)) if host and port.isdigit() and 0 < int(port) < 65536 else ""
