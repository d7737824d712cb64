"""The one place from which other peers are dialled.

It leaves out private addresses of peers that are no neighbours, resolves names once, and keeps to the budget of dials
that nobody answers."""

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
from peer.protocol.swarm.nearness import MAX_WORDS, Whereabouts, address_of, dialable, seen_hosts, shown

RESOLVE_S = 2.0
WAIT_S = 0.5
"""Seconds that a dial waits for others of the same address, host or block: they cost nothing if they are answered."""
T = TypeVar("T")
Connect = Callable[[str], Awaitable[T | None]]
"""Connects to an IP address and port. None: the named key did not answer there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPlace:
    """The places where a peer is, for the choice of addresses that it dials."""

    endpoints: Callable[[], Iterable[str]]
    """Our own."""
    ticket: tuple[str, ...] = ()
    """The hosts that our ticket names, or those that we announce if we are the ticket's node. Empty: its ticket names
    the hosts of our endpoints."""
    trusted: frozenset[PeerId] = frozenset()
    """The keys that our ticket names. They are dialled without a budget."""


class Dialler:
    """Decides which addresses are dialled, and how often."""

    def __init__(self, place: OwnPlace | None = None, now: Callable[[], float] = time.monotonic) -> None:
        """`place` None: every address is near."""
        self._place = place
        self._now = now
        self._budget = DialBudget()
        self._seen_from: OrderedDict[PeerId, str] = OrderedDict()
        self._under_way: Counter[str] = Counter()
        """Dials of each address, host and block that have not ended."""
        self._dial_ended = Condition()

    def trusts(self, peer: PeerId) -> bool:
        """Whether our ticket names this key."""
        return self._place is not None and peer in self._place.trusted

    def dialable(self, peer: PeerId, endpoints: Sequence[str]) -> tuple[str, ...]:
        """Return the endpoints of a peer's record that may be dialled. Raises NotDialled if there is none."""
        found = tuple(endpoints) if self._place is None else dialable(endpoints, self._whereabouts(self._place))
        if not found:
            raise NotDialled(f"{peer}: not dialled: {', '.join(endpoints)} is private, and it is no neighbour")
        return found

    async def dial(self, peer: PeerId, endpoint: str, connect: Connect[T]) -> T | None:
        """Call `connect` with the addresses that an endpoint stands for, until one answers. Return what it made.

        None: none answered. Raises NotDialled when the budget has no dial of any."""
        if address_of(host_of(endpoint)) is not None:
            return await self._within_budget(peer, endpoint, connect)
        return await self._within_budget(peer, endpoint, lambda name: self._by_name(peer, name, connect))

    def record_seen_as(self, by: PeerId, seen_as: str) -> None:
        """Note from where a peer sees us call, as gRPC writes it."""
        if host := host_of_caller(seen_as):
            self._seen_from[by] = host
            self._seen_from.move_to_end(by)
            while len(self._seen_from) > MAX_WORDS:
                self._seen_from.popitem(last=False)

    def record_call(self, peer: PeerId, seen_as: str) -> None:
        """Note that a peer that proved its key called us from there, as gRPC writes it."""
        if host := host_of_caller(seen_as):
            self._budget.called(peer, host)

    def answered_hosts(self, peer: PeerId) -> Collection[str]:
        """Return the hosts at which the key of a peer has answered us."""
        return self._budget.answered_hosts(peer)

    def seen_hosts(self) -> tuple[str, ...]:
        """Return the public hosts that others see us call from."""
        return seen_hosts(self._seen_from, frozenset() if self._place is None else self._place.trusted)

    def announceable(self, endpoints: Sequence[str]) -> tuple[str, ...]:
        """Return those of our own endpoints that our public record may name."""
        return tuple(endpoints) if self._place is None else shown(endpoints, self._whereabouts(self._place))

    def private_run(self) -> bool:
        """Tell whether the run lies in a private network."""
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
            self._under_way += Counter()  # without those at 0
            self._dial_ended.notify_all()

    async def _admitted(self, peer: PeerId, endpoint: str) -> None:
        """Take a dial. Wait a little for one that is given back. Raises NotDialled."""
        until = self._now() + WAIT_S
        while (short := self._budget.take(peer, endpoint, self._now())) is not None:
            left_s = until - self._now()
            if left_s <= 0 or not self._under_way[short.scope]:
                raise NotDialled(f"{peer}: {short}")
            await self._dial_ended.wait_for(left_s)


async def resolve(endpoint: str) -> list[str]:
    """Return an address of each family that a name has, as endpoints; none: it has none."""
    host, _, port = endpoint.rpartition(":")
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TimeoutError):
        return []
    by_family = {family: str(address[0]) for family, _, _, _, address in reversed(found)}
    return [join_host(host.partition("%")[0], int(port)) for host in by_family.values()]
