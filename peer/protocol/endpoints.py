"""Addresses of the form host:port."""

from __future__ import annotations

import ipaddress
import re
import urllib.parse

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


def join_host(host: str, port: int) -> str:
    """`host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
