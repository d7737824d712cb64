"""Dial-back of callers: a peer cannot test itself whether others can dial it, so it asks other peers to try.

On request of a caller with a token, we dial the address from which its call comes, on the ports that it names, and
check that its key answers there.

Callers cannot use this to scan networks: no other address is dialled, no name is resolved, and all failures are
reported alike. Keys cost nothing, so dial-backs are limited per address block as well."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable

from peer.protocol.endpoints import block_of_host, join_host
from peer.protocol.messages import PeerId, Probed
from peer.protocol.token_bucket import Rate, TokenBuckets

EVERY_S = 10.0
"""Shortest time between two dial-backs of one caller, in seconds."""
OF_A_BLOCK = Rate(1.0, 64.0)
"""Dial-backs per second and burst of one address block. The burst allows all peers of a laboratory to start at once."""
DIAL_S = 4.0
MAX_AT_ONCE = 8
MAX_AT_ONCE_OF_A_BLOCK = 4
MAX_PORTS = 3
MAX_REMEMBERED = 1024
SILENT = "no answer there"
"""The reason of every failure, so that a caller learns only whether its own key answers."""

Dial = Callable[[PeerId, str, float], Awaitable[str]]
"""Function (peer, endpoint, timeout) that returns why the peer does not answer there; empty: it does."""
_PORT = re.compile(r":(\d{1,5})\Z", re.ASCII)


class DialBack:
    """Dials callers back. `dial` makes the connection. `now`: seconds."""

    def __init__(self, dial: Dial, now: Callable[[], float]) -> None:
        self._dial = dial
        self._now = now
        self._last: OrderedDict[PeerId, float] = OrderedDict()
        self._budget: TokenBuckets[str] = TokenBuckets(OF_A_BLOCK)
        self._running = Counter[str]()

    async def probe(self, caller: PeerId, host: str, endpoints: list[str], port: int) -> Probed:
        """Dial a caller back at `host`, from which its call comes, and return the endpoints that answered.

        Takes at most `DIAL_S`; never raises."""
        block = block_of_host(host)
        if (declined := self._decline(caller, host, block)) is not None:
            return Probed((), (), declined)
        chosen = [join_host(host, number) for number in _ports(endpoints, port)]
        self._running[block] += 1
        try:
            found = await asyncio.gather(*(self._dial(caller, endpoint, DIAL_S) for endpoint in chosen))
        finally:
            self._running -= Counter([block])
        answered = tuple(endpoint for endpoint, why in zip(chosen, found, strict=True) if not why)
        reason = SILENT if len(answered) < len(chosen) else "" if chosen else "no port to dial"
        return Probed(tuple(chosen), answered, reason)

    def _decline(self, caller: PeerId, host: str, block: str) -> str | None:
        """Return why the caller is not dialled now; None: it is, and the dial is charged to its limits."""
        now = self._now()
        if not host:
            return "your address is not known here"
        if self._running.total() >= MAX_AT_ONCE or self._running[block] >= MAX_AT_ONCE_OF_A_BLOCK:
            return "busy with other probes"
        if now - self._last.get(caller, -EVERY_S) < EVERY_S:
            return f"asked again within {EVERY_S:.0f} s"
        if self._budget.take(block, now) > 0:
            return "too many probes for your network; ask another"
        self._last[caller] = now
        self._last.move_to_end(caller)
        while len(self._last) > MAX_REMEMBERED:
            self._last.popitem(last=False)
        return None


def _ports(endpoints: list[str], port: int) -> list[int]:
    """Return the ports to dial: the caller's listening port, and the ports of its endpoints."""
    named = [port, *(int(match[1]) for match in map(_PORT.search, endpoints) if match is not None)]
    return [number for number in dict.fromkeys(named) if 0 < number < 65536][:MAX_PORTS]
