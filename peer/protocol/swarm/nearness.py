"""Which addresses in a record this peer may dial, depending on whether they are private and whether both peers are
neighbours.

A private address means another machine in each network. A stranger who names one could make this peer connect to its
own router or printer. So private addresses are dialled among neighbours only. Records do not prove addresses: that two
records have the same public address is only a claim, and `peer.protocol.policy.dial_budget` limits what a false claim
costs. The module is pure."""

from __future__ import annotations

import functools
import ipaddress
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from peer.protocol.endpoints import host_of
from peer.protocol.messages import PeerId

LAN_PREFIX_6 = 64
"""Length of the IPv6 prefix that the machines of one network share."""
LOCAL_NAMES = ("local", "lan", "internal", "localdomain", "localhost", "home.arpa")
"""Suffixes of names that are valid in one network only. Names without a dot are too."""
LONGEST_ADDRESS = 45
"""Maximum characters of an IP address."""
MAX_REPORTS, LEAST_REPORTS = 8, 2
"""Number of peers whose latest report of our address counts, and how many have to agree."""
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_PRIVATE = [
    ipaddress.ip_network(text)
    for text in (
        "127.0.0.0/8",
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "0.0.0.0/8",
        "::/127",
        "fe80::/10",
        "fc00::/7",
    )
]


def is_private(host: str) -> bool:
    """Return whether this address or name may belong to another machine in another network."""
    address = address_of(host)
    if address is None:
        name = host.lower().rstrip(".")
        return "." not in name or name.endswith(tuple(f".{end}" for end in LOCAL_NAMES))
    return _range_of(address) is not None


def address_of(host: str) -> _Address | None:
    """Return the IP address that a host is, without brackets and zone. An IPv4 address mapped to IPv6 is returned as
    IPv4. None: it is a name."""
    text = host.strip("[]").partition("%")[0]
    return _parsed(text) if len(text) <= LONGEST_ADDRESS else None


@functools.lru_cache(1024)  # the same hosts occur in many records
def _parsed(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """The networks in which a peer is, as far as it knows."""

    hosts: frozenset[str] = frozenset()
    """Hosts of its own endpoints, and hosts from which others see it call."""
    private_run: bool = False
    """Whether the run is in a private network: the ticket has private addresses only."""

    @classmethod
    def of(cls, endpoints: Iterable[str], seen: Iterable[str] = (), ticket: Iterable[str] = ()) -> Whereabouts:
        """Return the whereabouts. `endpoints`: our own. `seen`: hosts from which others see us call. `ticket`: hosts in
        our ticket; for the ticket's own node, the hosts that it announces."""
        named = list(ticket)
        return cls(frozenset([*map(host_of, endpoints), *seen]), bool(named) and all(map(is_private, named)))

    @property
    def public(self) -> frozenset[str]:
        """The public networks of this peer, in a form that can be compared."""
        return frozenset(filter(None, map(_public_network, self.hosts)))

    def neighbours(self, endpoints: Iterable[str]) -> bool:
        """Return whether a peer with these endpoints claims to have the same public address, or to be in the same IPv6
        network."""
        ours = self.public
        return any(_public_network(host_of(endpoint)) in ours for endpoint in endpoints)


def dialable(endpoints: Iterable[str], here: Whereabouts) -> tuple[str, ...]:
    """Return the endpoints of a record that a peer at `here` may dial, in the same order.

    Public endpoints are always returned. Private ones are returned in a run inside a private network, and for a
    neighbour. If `here` has no public address, a peer is a neighbour if it names an address of the same private
    range."""
    named = list(endpoints)
    if here.private_run or here.neighbours(named):
        return tuple(named)
    return tuple(endpoint for endpoint in named if _may_dial(host_of(endpoint), here))


def shown(endpoints: Iterable[str], here: Whereabouts) -> tuple[str, ...]:
    """Return those of our endpoints that a public record may contain. Addresses inside a home are not published. In a
    run inside a private network there are only such addresses, so they are published."""
    return tuple(endpoint for endpoint in endpoints if here.private_run or not is_private(host_of(endpoint)))


def _may_dial(host: str, here: Whereabouts) -> bool:
    if not is_private(host):
        return True
    address = address_of(host)
    if address is None or here.public:
        return False
    own = {_range_of(found) for found in map(address_of, here.hosts) if found is not None}
    return _range_of(address) in own


def seen_hosts(words: Mapping[PeerId, str], trusted: Container[PeerId] = frozenset()) -> tuple[str, ...]:
    """Return the public hosts from which others see us call: for each IP version the one with most reports.

    `words`: the latest report of each peer. `trusted`: peers whose report suffices; they outweigh all others. Of the
    others `LEAST_REPORTS` have to agree, so that no single peer can put an address into our record."""
    families: dict[int, Counter[str]] = {}
    for peer, host in words.items():
        address = address_of(host)
        if address is not None and not is_private(host):
            weight = MAX_REPORTS * LEAST_REPORTS if peer in trusted else 1
            families.setdefault(address.version, Counter())[str(address)] += weight
    most = [counts.most_common(1)[0] for _, counts in sorted(families.items())]
    return tuple(host for host, weight in most if weight >= LEAST_REPORTS)


@functools.lru_cache(1024)
def _range_of(address: _Address) -> int | None:
    """Return which of the private ranges the address lies in. None: it is public."""
    return next((place for place, range_ in enumerate(_PRIVATE) if address in range_), None)


def _public_network(host: str) -> str:
    """Return the network that counts as one place: a public IPv4 address, or the /64 of a public IPv6 address. Empty:
    the host is private, or a name."""
    address = address_of(host)
    if address is None or _range_of(address) is not None:
        return ""
    prefix = 32 if address.version == 4 else LAN_PREFIX_6
    return str(ipaddress.ip_network((address, prefix), strict=False))
