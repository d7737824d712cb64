"""The lease of a port at the router: whether to request one, when to renew or retry, and what to report.

What a router answers is not trusted: the port is announced once another peer got through it. The address that a router
gives as its own is reported to people and never announced. The module is pure: times in seconds of any one clock."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from peer.protocol.endpoints import host_of, join_host, port_of, version_of
from peer.protocol.swarm.nearness import address_of, is_private

OTHER_PORTS = 3
"""Further ports to request if the router has given our own port to another machine."""
FIRST_PORT, LAST_PORT = 20000, 60999
"""Range of these ports: routers forbid low ports, and use the highest ones for their own connections."""
_CGNAT = ipaddress.ip_network("100.64.0.0/10")
"""Addresses between a provider's router and its customers (RFC 6598)."""


class RouterRequest(Enum):
    """A request to the router."""

    OPEN = "open"
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """Times of the lease, in seconds."""

    lease_s: float = 3600.0
    """Requested duration, as recommended by UPnP Forum, WANIPConnection:2, section 2.3.18."""
    least_renewal_s: float = 60.0
    """Minimum time until a renewal, also if the router gives shorter leases."""
    unknown_s: float = 30.0
    """How long others may take to find out whether this peer can be dialled without the router."""
    retry_s: float = 60.0
    """Time before the first retry. It doubles with each failure."""
    most_retry_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMapping:
    """A port that a router claims to have opened."""

    port: int
    """Port at the router."""
    router: str
    """Address of the router in our network."""
    address: str = ""
    """IPv4 address that the router gives as its own on the internet. Empty: it gives none."""
    lease_s: float = 0.0
    """Duration of the lease. 0: until the port is closed."""


@dataclass(frozen=True, slots=True)
class RouterRefusal:
    """The router opened no port, or there is no router. `why`: for people to read, without control characters."""

    why: str
    address: str | None = None
    """See `PortMapping.address`. None: no router was found."""

    def explain(self, seen: str) -> str:
        """Return the reason, with a note if the router's own address shows that there is a second router before it.
        `seen`: our address as others see it."""
        if self.address is None:
            return self.why
        if self.address == "":
            return f"{self.why}; it names no address on the internet: most likely a second router is before it"
        return f"{self.why}{f'; {more}' if (more := _another_router(self.address, seen)) else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a peer knows about its place in the network."""

    skip_reason: str = ""
    """Why no router may be asked. Empty: it may."""
    online: bool = True
    """Whether this machine has a route to the internet over IPv4. While it has none, a held lease is kept."""
    reachable: bool | None = None
    """Whether others on the internet can dial this peer over IPv4. None: not known yet."""
    reached: Sequence[str] = ()
    """Endpoints at which others reached it."""
    denied: frozenset[str] = frozenset()
    """Endpoints that others dialled without success."""
    seen: str = ""
    """IPv4 address from which others see it call. Empty: not known yet."""
    owns: Callable[[str], bool] = field(default=lambda host: False)
    """Whether an address belongs to an interface of this machine."""


def no_mapping_reason(hosts: Sequence[str], source: str, *, private_run: bool) -> str:
    """Return why a peer needs no port at a router, or may not request one. Empty: it may.

    `hosts`: where it listens. `source`: address of this machine for calls into the internet; empty: not known."""
    listening = [address for address in map(address_of, hosts) if address is not None]
    if private_run:
        return "the run lies in a private network"
    if all(address.is_loopback for address in listening):
        return "this peer listens on this machine only"
    if not any(address.version == 4 and not address.is_loopback for address in listening):
        return "this peer listens over IPv6 only"
    if source and not is_private(source):
        return f"this machine has a public address, {source}"
    return ""


class PortLease:
    """The lease of one port. The caller makes the request that `next_request` returns, reports how it ended (`opened`,
    `refused` or `closed`), and reports what others found (`notice`).

    Each of these reports returns a sentence to show to people; empty: nothing new."""

    def __init__(
        self, own_port: int, rng: random.Random, now: float, left_over: int = 0, terms: LeaseTerms | None = None
    ) -> None:
        """`left_over`: port that an earlier process of this peer opened and did not close; 0: none."""
        self.terms = terms or LeaseTerms()
        self._own_port = own_port
        self._others = tuple(rng.sample(range(FIRST_PORT, LAST_PORT + 1), OTHER_PORTS))
        self._began_at = self._next_at = self._asked_at = now
        self._left_over = left_over
        self._tries = 0
        self._expires_at: float | None = None
        self._worked = self._doubted = False
        self._failing = ""
        """Why the last request failed. Empty: it did not."""
        self.held: PortMapping | None = None

    # -- requests ----------------------------------------------------------------------------------------------------

    def next_request(self, here: Surroundings, now: float) -> RouterRequest | None:
        """Return the request to make to the router now. None: no request is due."""
        if not here.online:
            return None
        if here.skip_reason:
            return RouterRequest.CLOSE if self.held is not None else None
        if self.held is not None and self._needless(here):
            return RouterRequest.CLOSE
        if now < self._next_at or not (self.held is not None or self._is_wanted(here, now)):
            return None
        return RouterRequest.OPEN

    def ports(self) -> tuple[int, ...]:
        """Return the ports to request, best first. The own port is preferred because others may guess it."""
        held = self.held.port if self.held is not None else self._left_over
        return tuple(dict.fromkeys([*filter(None, [held]), self._own_port, *self._others]))

    def to_close(self) -> int:
        """Return the port that the router may have open for this peer; 0: none."""
        return self.held.port if self.held is not None else self._left_over

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def begun(self, now: float) -> None:
        """Report that a request has started. Until it ends, the router may have opened the first of `ports`."""
        self._asked_at, self._left_over = now, self.ports()[0]

    def opened(self, mapping: PortMapping, here: Surroundings, now: float) -> str:
        """Report that the router claims to have opened a port, or to have renewed it."""
        before, self.held = self.held, mapping
        again, self._failing = bool(self._failing), ""
        self._tries = self._left_over = 0
        lease_s = mapping.lease_s or self.terms.lease_s
        self._expires_at = now + lease_s if mapping.lease_s else None
        self._next_at = now + max(self.terms.least_renewal_s, lease_s / 2)
        if before is not None and (before.port, before.router, before.address) == _place(mapping) and not again:
            return ""
        self._worked = self._doubted = False
        return f"{self._claim(mapping)}{self._warning(mapping, here)}"

    def refused(self, refusal: RouterRefusal, here: Surroundings, now: float) -> str:
        """Report that the router opened no port. The same reason is returned only once."""
        why = refusal.explain(here.seen)
        self._tries += 1
        self._left_over = 0
        self._next_at = now + min(self.terms.retry_s * 2 ** min(self._tries - 1, 16), self.terms.most_retry_s)
        before, self._failing = self._failing, why
        if before == why:
            return ""
        return why if self.held is None else f"port {self.held.port} was not renewed: {why}"

    def closed(self, why: str, now: float) -> str:
        """Report that the lease has ended. `why`: why the router did not close the port; empty: it did."""
        held, self.held = self.held, None
        self._left_over, self._next_at = 0, now + self.terms.retry_s
        if held is None:  # requested only, or of an earlier process: it was never reported as open
            return ""
        return f"port {held.port} was not given back: {why}" if why else f"the router closed port {held.port}"

    def notice(self, here: Surroundings, now: float) -> str:
        """Report what others found, and that time has passed."""
        if self.held is None:
            return ""
        if self._expires_at is not None and now >= self._expires_at:
            port, self.held = self.held.port, None
            return f"the lease of port {port} is over: {self._failing or 'it was not renewed in time'}"
        if any(self._is_through(endpoint, here) for endpoint in here.reached):
            self._worked, self._doubted = True, False
            return ""
        if not self._is_shut(here) or self._doubted:
            return ""
        self._doubted = True
        if self._worked:  # the router may have restarted and lost the mapping
            self._worked = False
            self._next_at = min(self._next_at, max(now, self._asked_at + self.terms.retry_s))
            return f"nobody gets through port {self.held.port} any more: the router is asked again"
        return f"{self._claim(self.held)}, and nobody gets through: {self._cause(self.held, here)}"

    # -- state -------------------------------------------------------------------------------------------------------

    def endpoint(self, seen: str) -> str:
        """Return the endpoint at which others may try the port, on our address as they see it. Empty: there is none."""
        return join_host(seen, self.held.port) if self.held is not None and seen else ""

    def carries(self, here: Surroundings) -> bool:
        """Return whether others reach this peer through the router's port only. Neighbours do not count."""
        outside = [endpoint for endpoint in here.reached if not is_private(host_of(endpoint))]
        return bool(outside) and all(self._is_through(endpoint, here) for endpoint in outside)

    def why(self, here: Surroundings, now: float) -> str:
        """Return the state of the lease as a sentence."""
        if self.held is not None:
            failing = f"; it did not renew it: {self._failing}" if self._failing else ""
            if self.carries(here):
                return f"{self._claim(self.held)}, and others get through{failing}"
            if self._is_shut(here):
                return f"{self._claim(self.held)}, and nobody gets through: {self._cause(self.held, here)}{failing}"
            return f"{self._claim(self.held)}; nobody has tried it yet{failing}"
        if here.skip_reason:
            return f"no router is asked: {here.skip_reason}"
        if not here.online:
            return "no router is asked: this machine has no way to the internet over IPv4"
        if not self._is_wanted(here, now):
            if here.reachable:
                return "no router is asked: others reach this peer without it"
            return "no router is asked before others have tried to dial this peer"
        if self._failing:
            return f"{self._failing}; asked again in {max(0.0, self._next_at - now):.0f} s"
        return "the router is being asked"

    # -- parts -------------------------------------------------------------------------------------------------------

    def _is_wanted(self, here: Surroundings, now: float) -> bool:
        if self._left_over or here.reachable is False:
            return True
        return here.reachable is None and now - self._began_at >= self.terms.unknown_s

    def _needless(self, here: Surroundings) -> bool:
        """Return whether others reach this peer over IPv4 at its own port, without the router's mapping."""
        outside = [e for e in here.reached if version_of(e) == 4 and not is_private(host_of(e))]
        return any(not self._is_through(endpoint, here) for endpoint in outside)

    def _is_through(self, endpoint: str, here: Surroundings) -> bool:
        if self.held is None or version_of(endpoint) != 4 or port_of(endpoint) != self.held.port:
            return False
        return self.held.port != self._own_port or not here.owns(host_of(endpoint))

    def _is_shut(self, here: Surroundings) -> bool:
        return here.reachable is False and self.endpoint(here.seen) in here.denied

    def _claim(self, mapping: PortMapping) -> str:
        at = f" of {mapping.address}" if mapping.address else ""
        return f"the router at {mapping.router} says that it opened port {mapping.port}{at}"

    def _warning(self, mapping: PortMapping, here: Surroundings) -> str:
        return f"; {cause}" if (cause := _another_router(mapping.address, here.seen)) else ""

    def _cause(self, mapping: PortMapping, here: Surroundings) -> str:
        return _another_router(mapping.address, here.seen) or "it does not do so, or something behind it forbids it"


def _place(mapping: PortMapping) -> tuple[int, str, str]:
    return mapping.port, mapping.router, mapping.address


def _another_router(address: str, seen: str) -> str:
    """Return a note if the router's own `address` shows that there is a second router before it; empty: it does not."""
    found = address_of(address)
    if found is None:
        return ""
    if found in _CGNAT:
        return f"{address} is an address of the provider's own network (CGNAT), whose router lets nothing in"
    if is_private(address):
        return f"{address} is a private address, so a second router is before it and lets nothing in (double NAT)"
    if seen and seen != address:
        return f"{address} is not the address that others see, {seen}: it is wrong, or a second router is before it"
    return ""
