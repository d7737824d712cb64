"""Addresses of the form host:port, and the blocks that they lie in."""

from __future__ import annotations

import ipaddress
import itertools
import re
import urllib.parse
from collections.abc import Iterable
from functools import lru_cache

_SEEN = re.compile(r"(ipv4|ipv6):(.+):\d+\Z")


def host_of_caller(seen_as: str) -> str:
    """Return the host of gRPC's `ipv4:192.0.2.7:55312` or `ipv6:%5B2001:db8::7%5D:55312`, empty for anything else. An
    IPv4 caller of a dual-stack listener is returned as IPv4."""
    match = _SEEN.match(urllib.parse.unquote(seen_as)[:128])
    if match is None:
        return ""
    try:
        address = ipaddress.ip_address(match[2].strip("[]").partition("%")[0])
    except ValueError:
        return ""
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


RELAYED = "relay:"
"""Start of the address of a caller that came by way of a relay, whose peer id follows. Its own address is not known."""


def join_host(host: str, port: int) -> str:
    """`host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(endpoint: str) -> str:
    """Return the host of a `host:port`, without brackets."""
    return endpoint.rpartition(":")[0].strip("[]")


def port_of(endpoint: str) -> int:
    """Return the port of a `host:port`; 0: it has none."""
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) <= 5 else 0


HERE = "here"
"""The block of this machine's own addresses."""
MAX_KNOWN = 4096
"""Hosts whose blocks are kept. A round asks for the block of every stranger in sight."""
PREFIXES = {4: 24, 6: 56}
"""Length of the block that one customer or hoster is likely to have, by version of the address."""


def block_of(endpoint: str) -> str:
    """Return the block of a `host:port`. Names count by their last two labels: whoever has a domain makes names."""
    return block_of_host(endpoint.rpartition(":")[0])


@lru_cache(MAX_KNOWN)
def block_of_host(host: str) -> str:
    """Return the block of a host, as `block_of` does."""
    host = host.strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return ".".join(host.lower().rstrip(".").split(".")[-2:])
    address = getattr(address, "ipv4_mapped", None) or address
    if address.is_loopback:
        return HERE
    return str(ipaddress.ip_network((address, PREFIXES[address.version]), strict=False))


NAMED = "named"
"""The network of all names together, for names are free: there are services that give one to every address."""


def voice_of(endpoint: str) -> str:
    """Return the network that the word of a peer counts for which answers at this `host:port`: its block."""
    return block_of(endpoint) if version_of(endpoint) else NAMED


def version_of(endpoint: str) -> int:
    """Return 4 or 6 for an IP address, 0 for a name."""
    try:
        address = ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return 0
    return 4 if getattr(address, "ipv4_mapped", None) else address.version


def interleaved(endpoints: Iterable[str]) -> tuple[str, ...]:
    """Return endpoints with those of IPv6 and of IPv4 by turns, as far as there are both (RFC 8305, section 4).

    Names count as the version before them. Within a version the order stays."""
    by_version: dict[bool, list[str]] = {}
    six = False
    for endpoint in endpoints:
        six = version_of(endpoint) == 6 if version_of(endpoint) else six
        by_version.setdefault(six, []).append(endpoint)
    turns = itertools.zip_longest(*by_version.values())
    return tuple(endpoint for turn in turns for endpoint in turn if endpoint is not None)
