"""Budget of dials to addresses at which no peer has answered yet.

Anybody can sign any number of records with somebody else's address, and all peers that believe them would dial it. So
dials are counted per address, host and block, over all records. A dial that the named key answers is returned to the
budget, and from then on dials to this key at this host are free.

The budget counts packets, not calls: one dial sends at most `PACKETS` packets that open connections. A call that is not
answered within 8 s sends four (TCP repeats a lost first packet after 1, 3 and 7 s). The attempts of a hole punch are
refused at once and send one packet each, so one dial pays for four of them.

Private addresses are counted per address only: a laboratory is one host or one block, and only neighbours dial its
addresses (`peer.protocol.swarm.nearness`). The module is pure: `now` is an argument, in seconds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TypeVar

from peer.protocol.endpoints import block_of_host, host_of
from peer.protocol.messages import PeerId
from peer.protocol.swarm.nearness import is_private
from peer.protocol.token_bucket import Rate, TokenBuckets

ADDRESS = Rate(1 / 60, 3)
"""Unanswered dials of one `host:port`."""
HOST = Rate(1 / 30, 6)
"""Unanswered dials of one host, at all ports."""
BLOCK = Rate(1 / 10, 24)
"""Unanswered dials of one address block (`peer.protocol.endpoints.block_of`)."""
PACKETS = 4
"""Packets that one dial may send to open connections."""
MAX_REMEMBERED = 4096
MAX_HOSTS = 4
"""Hosts remembered for a key that answered there. A peer has a few addresses, and moves now and then."""
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Shortage:
    """The reason why an address must not be dialled now."""

    scope: str
    """Address, host or block whose budget is used up."""
    failed: int
    """Unanswered dials of the scope since the last answered one."""
    wait_s: float
    """Seconds until the next dial is allowed."""

    def __str__(self) -> str:
        return f"not dialled: {self.scope} did not answer {self.failed} others, again in {self.wait_s:.0f} s"


class DialBudget:
    """The dials of one peer, counted per address, host and block."""

    def __init__(self) -> None:
        self._scopes = [TokenBuckets[str](rate) for rate in (ADDRESS, HOST, BLOCK)]
        self._failed: OrderedDict[str, int] = OrderedDict()
        self._answered: OrderedDict[PeerId, tuple[str, ...]] = OrderedDict()
        self._called: OrderedDict[tuple[PeerId, str], None] = OrderedDict()

    def take(self, peer: PeerId, endpoint: str, now: float) -> Shortage | None:
        """Charge one dial of this address, which `answered` returns to the budget. Return None if it may be dialled,
        else the reason why not; nothing is charged then."""
        host = host_of(endpoint)
        if host in self.answered_hosts(peer):
            return None
        if (peer, host) in self._called:
            del self._called[peer, host]
            return None
        scopes = self._buckets(endpoint)
        for scope, buckets in scopes:
            if (wait_s := buckets.wait_s(scope, now)) > 0:
                return Shortage(scope, self._failed.get(scope, 0), wait_s)
        for scope, buckets in scopes:
            buckets.take(scope, now)
            _remember(self._failed, scope, self._failed.get(scope, 0) + 1)
        return None

    def answered(self, peer: PeerId, endpoint: str, now: float) -> None:
        """Record that the key of this peer answered at this address."""
        host, before = host_of(endpoint), self.answered_hosts(peer)
        if host not in before:
            for scope, buckets in self._buckets(endpoint):
                buckets.give_back(scope, now)
                self._failed.pop(scope, None)
        others = [other for other in before if other != host]
        _remember(self._answered, peer, (host, *others)[:MAX_HOSTS])

    def answered_hosts(self, peer: PeerId) -> tuple[str, ...]:
        """Return the hosts at which this peer's key has answered, latest first."""
        return self._answered.get(peer, ())

    def called(self, peer: PeerId, host: str) -> None:
        """Record that this peer, with a proven key, called from this host. The next dial of this peer at this host is
        free."""
        _remember(self._called, (peer, host), None)

    def _buckets(self, endpoint: str) -> list[tuple[str, TokenBuckets[str]]]:
        return list(zip(scopes_of(endpoint), self._scopes, strict=False))


def scopes_of(endpoint: str) -> tuple[str, ...]:
    """Return the scopes in which a dial is counted: the address, and for a public address its host and block."""
    host = host_of(endpoint)
    return (endpoint,) if is_private(host) else (endpoint, host, block_of_host(host))


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > MAX_REMEMBERED:
        table.popitem(last=False)
