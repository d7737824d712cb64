"""Decides which addresses of peers are dialled. All dials go through here.

Private addresses of peers in other networks are skipped, each name is resolved once per dial, and unanswered dials are
limited by a budget."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from peer.aio.events import Condition
from peer.errors import NotDialled
from peer.protocol.endpoints import host_of, host_of_caller, join_host
from peer.protocol.messages import PeerId
from peer.protocol.policy.dial_budget import DialBudget, scopes_of
from peer.protocol.swarm.nearness import MAX_REPORTS, Whereabouts, address_of, dialable, seen_hosts, shown

RESOLVE_S = 2.0
WAIT_S = 0.5
"""When no budget is left for a dial, seconds to wait for running dials to the same address, host or block, which return
their share of the budget if they are answered."""
T = TypeVar("T")
Connect = Callable[[str], Awaitable[T | None]]
"""Connects to an IP address and port. Returns None if the peer's key did not answer there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPlace:
    """Where this peer is in the network, which decides which addresses it may dial."""

    endpoints: Callable[[], Iterable[str]]
    """Returns our own endpoints."""
    ticket: tuple[str, ...] = ()
    """Hosts that our ticket names; on the node that the ticket names, the hosts that it announces. Empty: the hosts of
    our endpoints."""
    trusted: frozenset[PeerId] = frozenset()
    """Keys that our ticket names. They are dialled without a budget."""


class Dialler:
    """Decides which addresses are dialled, and how often."""

    def __init__(self, place: OwnPlace | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`place` None: all addresses may be dialled."""
        self._place = place
        self._now = now
        self._budget = DialBudget()
        self._seen_from: OrderedDict[PeerId, str] = OrderedDict()
        """Peer -> host from which it last saw us call."""
        self._under_way: Counter[str] = Counter()
        """Number of running dials by address, host and block."""
        self._dial_ended = Condition()

    def trusts(self, peer: PeerId) -> bool:
        """Return whether our ticket names this key."""
        return self._place is not None and peer in self._place.trusted

    def dialable(self, peer: PeerId, endpoints: Sequence[str]) -> tuple[str, ...]:
        """Return the endpoints of a peer's record that may be dialled. Raises NotDialled if there are none."""
        found = tuple(endpoints) if self._place is None else dialable(endpoints, self._whereabouts(self._place))
        if not found:
            raise NotDialled(f"{peer}: not dialled: {', '.join(endpoints)} is private, and it is no neighbour")
        return found

    async def dial(self, peer: PeerId, endpoint: str, connect: Connect[T]) -> T | None:
        """Call `connect` for each address of an endpoint until one answers. Return its result; None: none answered.

        Raises NotDialled when the budget allows no dial of any address."""
        if address_of(host_of(endpoint)) is not None:
            return await self._within_budget(peer, endpoint, connect)
        return await self._within_budget(peer, endpoint, lambda name: self._by_name(peer, name, connect))

    def record_seen_as(self, by: PeerId, seen_as: str) -> None:
        """Record the address from which a peer sees us call, in gRPC's notation."""
        if host := host_of_caller(seen_as):
            self._seen_from[by] = host
            self._seen_from.move_to_end(by)
            while len(self._seen_from) > MAX_REPORTS:
                self._seen_from.popitem(last=False)

    def record_call(self, peer: PeerId, seen_as: str) -> None:
        """Record that a peer that proved its key called us from this address, in gRPC's notation."""
        if host := host_of_caller(seen_as):
            self._budget.called(peer, host)

    def answered_hosts(self, peer: PeerId) -> Collection[str]:
        """Return the hosts at which this peer's key has answered us."""
        return self._budget.answered_hosts(peer)

    def seen_hosts(self) -> tuple[str, ...]:
        """Return the public hosts from which others see us call."""
        return seen_hosts(self._seen_from, frozenset() if self._place is None else self._place.trusted)

    def announceable(self, endpoints: Sequence[str]) -> tuple[str, ...]:
        """Return those of our own endpoints that may appear in our public record."""
        return tuple(endpoints) if self._place is None else shown(endpoints, self._whereabouts(self._place))

    def private_run(self) -> bool:
        """Return whether the run is inside a private network."""
        return self._place is not None and self._whereabouts(self._place).private_run

    def _whereabouts(self, place: OwnPlace) -> Whereabouts:
        ours = list(place.endpoints())
        return Whereabouts.of(ours, self.seen_hosts(), place.ticket or map(host_of, ours))

    async def _by_name(self, peer: PeerId, name: str, connect: Connect[T]) -> T | None:
        refused: NotDialled | None = None
        if not (addresses := await resolve(name)):
            return None
        for address in self.dialable(peer, addresses):
            try:
                if (made := await self._within_budget(peer, address, connect)) is not None:
                    return made
            except NotDialled as error:
                refused = error
        if refused is not None:
            raise refused
        return None

    async def _within_budget(self, peer: PeerId, endpoint: str, connect: Connect[T]) -> T | None:
        if self.trusts(peer):
            if (made := await connect(endpoint)) is not None:
                self._budget.answered(peer, endpoint, self._now())
            return made
        await self._admitted(peer, endpoint)
        scopes = scopes_of(endpoint)
        self._under_way.update(scopes)
        try:
            if (made := await connect(endpoint)) is not None:
                self._budget.answered(peer, endpoint, self._now())
            return made
        finally:
            self._under_way.subtract(scopes)
            self._under_way += Counter()  # drops entries at 0
            self._dial_ended.notify_all()

    async def _admitted(self, peer: PeerId, endpoint: str) -> None:
        """Charge a dial to the budget. If it is used up, wait up to `WAIT_S` for a running dial to return its share.
        Raises NotDialled."""
        until = self._now() + WAIT_S
        while (short := self._budget.take(peer, endpoint, self._now())) is not None:
            left_s = until - self._now()
            if left_s <= 0 or not self._under_way[short.scope]:
                raise NotDialled(f"{peer}: {short}")
            await self._dial_ended.wait_for(left_s)


async def resolve(endpoint: str) -> list[str]:
    """Resolve an endpoint's name. Return one endpoint per address family; none if the name has no address."""
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return []
    by_family = {family: str(address[0]) for family, _, _, _, address in reversed(found)}
    return [join_host(host.partition("%")[0], int(port)) for host in by_family.values()]
