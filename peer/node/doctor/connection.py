"""Checks whether this machine has a network, by its own addresses and routes. Nothing is sent."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

import psutil

from peer.node.doctor.finding import DoctorFinding, Severity, fine, warning

_FAR = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Documentation addresses that stand for the internet (RFC 5737, RFC 3849)."""
_CONTAINER = "In a container, give it a network: docker run without --network none."


def connection() -> DoctorFinding:
    """Check whether others can be reached at all. Having no address is an error, having no route to the internet a
    warning."""
    if routes := [address for family, far in _FAR.items() if (address := _source(family, far))]:
        return fine("connection", f"there is a route to the internet, from {' and '.join(routes)}")
    own = sorted(own_addresses())
    if not own:
        found = "this machine has no network: it has no address but its own loopback"
        return DoctorFinding(Severity.ERROR, "connection", found, f"Connect it to a network. {_CONTAINER}")
    found = f"there is no route to the internet, only to the own network, from {', '.join(own)}"
    return warning("connection", found, "Set a default route, unless all peers of the run are in this network.")


def all_on_this_machine(entries: Iterable[str]) -> bool:
    """Return whether all multiaddrs are loopback addresses, so that the run needs no network."""
    hosts = [entry.split("/")[2] for entry in entries]
    return bool(hosts) and all(host == "localhost" or _is_loopback(host) for host in hosts)


def own_addresses() -> set[str]:
    """Return the addresses of this machine that others could use."""
    found = {
        one.address.partition("%")[0]
        for of_interface in psutil.net_if_addrs().values()
        for one in of_interface
        if one.family in _FAR
    }
    return {address for address in found if not _is_loopback(address) and not address.startswith("fe80:")}


def _source(family: socket.AddressFamily, far: str) -> str:
    """Return the address from which this machine would send to `far`. Empty: there is no route."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # UDP: looks up the route without sending
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
