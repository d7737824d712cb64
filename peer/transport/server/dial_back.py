"""Dial-back of callers, for only another peer can tell whether a peer can be dialled.

Asked by a caller with a token, we dial the address that it calls from and the endpoints that it names. We check that
its key answers there.

Callers cannot use this to scan other people's networks. An endpoint elsewhere than the caller's own address is dialled
only if it is public. Each caller has one dial-back per `EVERY_S`."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from peer.protocol.endpoints import host_of_caller, join_host
from peer.protocol.messages import MAX_ENDPOINTS, PeerId, Probed

EVERY_S = 10.0
"""Seconds between two dial-backs of one caller, at least."""
DIAL_S = 4.0
RESOLVE_S = 2.0
MAX_AT_ONCE = 4
MAX_REMEMBERED = 1024

Dial = Callable[[PeerId, str, float], Awaitable[str]]
"""Function (peer, endpoint, timeout) that returns why the peer does not answer there; empty: it does."""
_ENDPOINT = re.compile(r"(\[[0-9A-Fa-f:.]{2,45}\]|[0-9A-Za-z.-]{1,253}):(\d{1,5})\Z")


class DialBack:
    """Dials callers back. `dial` makes the connection, and `now` is in seconds."""

    def __init__(self, dial: Dial, now: Callable[[], float]) -> None:
        self._dial = dial
        self._now = now
        self._last: OrderedDict[PeerId, float] = OrderedDict()
        self._running = 0

    async def probe(self, caller: PeerId, seen_as: str, endpoints: list[str], port: int) -> Probed:
        """Dial a caller back and report the endpoints that answered. Takes at most `RESOLVE_S` and `DIAL_S`; never
        raises."""
        if (declined := self._decline(caller)) is not None:
            return Probed((), (), declined)
        self._running += 1
        try:
            chosen = await self._choose(host_of_caller(seen_as), endpoints[:MAX_ENDPOINTS], port)
            found = await asyncio.gather(*(self._dial(caller, endpoint, DIAL_S) for endpoint in chosen))
        finally:
            self._running -= 1
        answered = tuple(endpoint for endpoint, why in zip(chosen, found, strict=True) if not why)
        reasons = [f"{endpoint}: {why}" for endpoint, why in zip(chosen, found, strict=True) if why]
        return Probed(tuple(chosen), answered, "; ".join(reasons) or ("" if chosen else "no address to dial"))

    def _decline(self, caller: PeerId) -> str | None:
        now = self._now()
        if self._running >= MAX_AT_ONCE:
            return "busy with other probes"
        if now - self._last.get(caller, -EVERY_S) < EVERY_S:
            return f"asked again within {EVERY_S:.0f} s"
        self._last[caller] = now
        self._last.move_to_end(caller)
        while len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)
        return None

    async def _choose(self, seen: str, endpoints: list[str], port: int) -> list[str]:
        chosen = [join_host(seen, port)] if seen and 0 < port < 65536 else []
        for endpoint in endpoints:
            if endpoint not in chosen and await self._may_dial(endpoint, seen):
                chosen.append(endpoint)
        return chosen[:MAX_ENDPOINTS]

    async def _may_dial(self, endpoint: str, seen: str) -> bool:
        match = _ENDPOINT.match(endpoint)
        if match is None or not 0 < int(match[2]) < 65536:
            return False
        addresses = await _resolve(match[1].strip("[]"), int(match[2]))
        return bool(addresses) and all(str(a) == seen or a.is_global for a in addresses)


async def _resolve(host: str, port: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    try:
        return [ipaddress.ip_address(host)]
    except ValueError:
        pass
    try:
        async with asyncio.timeout(RESOLVE_S):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return [ipaddress.ip_address(entry[4][0]) for entry in found[:8]]
    except (OSError, ValueError, TimeoutError):  # the name resolves to no address
        return []
