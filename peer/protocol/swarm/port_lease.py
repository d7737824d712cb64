"""The lease of a port at the router: whether to ask for one, when to renew it, when to ask again, and what is told.

A router's word is a claim, and other peers decide: the port is announced once one of them got through. The address that
a router gives as its own is told and never announced. The module is pure: times in seconds of one clock."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from peer.protocol.endpoints import host_of, join_host, port_of, version_of
from peer.protocol.swarm.nearness import address_of, is_private

OTHER_PORTS = 3
"""Ports that are asked for beside the own one, where a router gives that to another machine."""
FIRST_PORT, LAST_PORT = 20000, 60999
"""They are drawn from here: routers forbid low ports, and give their own connections the highest."""
_CGNAT = ipaddress.ip_network("100.64.0.0/10")
"""Addresses between a provider's router and its customers (RFC 6598)."""


class RouterRequest(Enum):
    """An next_request to the router."""

    OPEN = "open"
    CLOSE = "close"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTerms:
    """Times of the lease, in seconds."""

    lease_s: float = 3600.0
    """Asked for: the recommendation of UPnP Forum, WANIPConnection:2, section 2.3.18."""
    least_renewal_s: float = 60.0
    """A router that gives shorter leases is not asked more often."""
    unknown_s: float = 30.0
    """So long others may take to find out whether the port is open without the router."""
    retry_s: float = 60.0
    """Before the first try again. It doubles with each that fails."""
    most_retry_s: float = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMapping:
    """A port that a router says to have opened."""

    port: int
    """The router's."""
    router: str
    """Its address in our network."""
    address: str = ""
    """The IPv4 address that it gives as its own on the internet. Empty: it gives none."""
    lease_s: float = 0.0
    """0: until it is told to close the port."""


@dataclass(frozen=True, slots=True)
class RouterRefusal:
    """A router that opened nothing, or none at all. `why`: for a person, made harmless."""

    why: str
    address: str | None = None
    """As of a `PortMapping`. None: no router was found."""

    def explain(self, seen: str) -> str:
        """Return the reason, and what the router's own address tells."""
        if self.address is None:
            return self.why
        if self.address == "":
            return f"{self.why}; it names no address on the internet: most likely a second router is before it"
        return f"{self.why}{f'; {more}' if (more := _another_router(self.address, seen)) else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The things that a peer knows about its place in the network."""

    skip_reason: str = ""
    """Why no router may be asked. Empty: it may."""
    online: bool = True
    """Whether this machine has a way to the internet over IPv4. Where it lost it, what is held is kept."""
    reachable: bool | None = None
    """Whether others of the internet can dial this peer over IPv4. None: nobody knows yet."""
    reached: Sequence[str] = ()
    """The endpoints at which others reached it."""
    denied: frozenset[str] = frozenset()
    """The endpoints that others tried in vain."""
    seen: str = ""
    """The IPv4 address that others see it call from. Empty: not known yet."""
    owns: Callable[[str], bool] = field(default=lambda host: False)
    """Whether an address is one of this machine's own interfaces."""


def no_mapping_reason(hosts: Sequence[str], source: str, *, private_run: bool) -> str:
    """Return why a peer needs no port of a router, or may not ask for one. Empty: it may.

    `hosts`: where it listens. `source`: the address of this machine that calls into the internet leave from; empty:
    none is known."""
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
    """The lease of one port. Call `next_request`, report how that ended, and let the lease `notice` what others find.

    Each of these returns what a person is to be told now; empty: nothing new."""

    def __init__(
        self, own_port: int, rng: random.Random, now: float, left_over: int = 0, terms: LeaseTerms | None = None
    ) -> None:
        """`left_over`: the port that an earlier life of this peer held and did not give back; 0: none."""
        self.terms = terms or LeaseTerms()
        self._own_port = own_port
        self._others = tuple(rng.sample(range(FIRST_PORT, LAST_PORT + 1), OTHER_PORTS))
        self._began_at = self._next_at = self._asked_at = now
        self._left_over = left_over
        self._tries = 0
        self._expires_at: float | None = None
        self._worked = self._doubted = False
        self._failing = ""
        """Why the last try failed."""
        self.held: PortMapping | None = None

    # -- what is to be done ------------------------------------------------------------------------------------------

    def next_request(self, here: Surroundings, now: float) -> RouterRequest | None:
        """Return what the router is to be asked for now."""
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
        """Return the ports to ask for, the best first. The own port is best: others may guess it."""
        held = self.held.port if self.held is not None else self._left_over
        return tuple(dict.fromkeys([*filter(None, [held]), self._own_port, *self._others]))

    def to_close(self) -> int:
        """Return the port that the router may hold open for this peer; 0: none."""
        return self.held.port if self.held is not None else self._left_over

    # -- how it went -------------------------------------------------------------------------------------------------

    def begun(self, now: float) -> None:
        """The router is being asked. Until it answers it may have opened the first of the ports."""
        self._asked_at, self._left_over = now, self.ports()[0]

    def opened(self, mapping: PortMapping, here: Surroundings, now: float) -> str:
        """The router says that it opened a port, or renewed it."""
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
        """The router opened nothing. Nothing is told that was told before."""
        why = refusal.explain(here.seen)
        self._tries += 1
        self._left_over = 0
        self._next_at = now + min(self.terms.retry_s * 2 ** min(self._tries - 1, 16), self.terms.most_retry_s)
        before, self._failing = self._failing, why
        if before == why:
            return ""
        return why if self.held is None else f"port {self.held.port} was not renewed: {why}"

    def closed(self, why: str, now: float) -> str:
        """The port was given back, or the router did not take it: `why`, empty where it did."""
        held, self.held = self.held, None
        self._left_over, self._next_at = 0, now + self.terms.retry_s
        if held is None:  # it was being asked for, or an earlier life's: nothing of it was told
            return ""
        return f"port {held.port} was not given back: {why}" if why else f"the router closed port {held.port}"

    def notice(self, here: Surroundings, now: float) -> str:
        """Take in what others found, and that time passed."""
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
        if self._worked:  # the router may have started anew, without what it was told
            self._worked = False
            self._next_at = min(self._next_at, max(now, self._asked_at + self.terms.retry_s))
            return f"nobody gets through port {self.held.port} any more: the router is asked again"
        return f"{self._claim(self.held)}, and nobody gets through: {self._cause(self.held, here)}"

    # -- what it comes to --------------------------------------------------------------------------------------------

    def endpoint(self, seen: str) -> str:
        """Return where others may try the port: at the address that they see. Empty: nowhere."""
        return join_host(seen, self.held.port) if self.held is not None and seen else ""

    def carries(self, here: Surroundings) -> bool:
        """Whether others reach this peer through the router's port, and nowhere else. Neighbours do not count."""
        outside = [endpoint for endpoint in here.reached if not is_private(host_of(endpoint))]
        return bool(outside) and all(self._is_through(endpoint, here) for endpoint in outside)

    def why(self, here: Surroundings, now: float) -> str:
        """Return the state as a sentence."""
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
        """Whether others reach this peer over IPv4 at its own port, without the router's."""
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
    """Return what the router's own address tells against it; empty: nothing."""
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
