"""Endpoints of the form `host:port`, and the address blocks that they belong to."""

from __future__ import annotations

import ipaddress
import itertools
import re
import urllib.parse
from collections.abc import Iterable
from functools import lru_cache

_SEEN = re.compile(r"(ipv4|ipv6):(.+):\d+\Z")


def host_of_caller(seen_as: str) -> str:
    """Return the host of a gRPC peer name (`ipv4:192.0.2.7:55312` or `ipv6:%5B2001:db8::7%5D:55312`). Empty for any
    other text. An IPv4 caller of a dual-stack listener is returned as IPv4."""
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
"""Prefix of the address of a caller that comes through a relay. The relay's peer id follows; the caller's own address
is not known."""


def join_host(host: str, port: int) -> str:
    """Return `host:port`, with an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(endpoint: str) -> str:
    """Return the host of a `host:port`, without brackets."""
    return endpoint.rpartition(":")[0].strip("[]")


def port_of(endpoint: str) -> int:
    """Return the port of a `host:port`. 0: it has none."""
    port = endpoint.rpartition(":")[2]
    return int(port) if port.isdecimal() and len(port) <= 5 else 0


HERE = "here"
"""Block of this machine's own addresses."""
MAX_KNOWN = 16384
"""Hosts whose blocks are cached. A round computes the block of every visible stranger."""
PREFIXES = {4: 24, 6: 56}
"""Prefix length of the block that one customer or hoster is likely to have, by IP version."""


def block_of(endpoint: str) -> str:
    """Return the address block of a `host:port`: the network of an IP address, or the last two labels of a name,
    because the owner of a domain can create any number of names in it."""
    return block_of_host(endpoint.rpartition(":")[0])


@lru_cache(MAX_KNOWN)
def block_of_host(host: str) -> str:
    """Return the address block of a host, see `block_of`."""
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
"""The common network of all names. Names cost nothing: some services give one to every address."""


def voice_of(endpoint: str) -> str:
    """Return the network to which the vote of a peer at this `host:port` counts: its address block, or `NAMED` for a
    name."""
    return block_of(endpoint) if version_of(endpoint) else NAMED


@lru_cache(MAX_KNOWN)
def version_of(endpoint: str) -> int:
    """Return 4 or 6 for an IP address, 0 for a name."""
    try:
        address = ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]").partition("%")[0])
    except ValueError:
        return 0
    return 4 if getattr(address, "ipv4_mapped", None) else address.version


def interleaved(endpoints: Iterable[str]) -> tuple[str, ...]:
    """Return the endpoints with IPv6 and IPv4 alternating, as long as there are both (RFC 8305, section 4).

    A name counts as the version of the endpoint before it. The order within a version stays."""
    by_version: dict[bool, list[str]] = {}
    six = False
    for endpoint in endpoints:
        six = version_of(endpoint) == 6 if version_of(endpoint) else six
        by_version.setdefault(six, []).append(endpoint)
    turns = itertools.zip_longest(*by_version.values())
    return tuple(endpoint for turn in turns for endpoint in turn if endpoint is not None)
