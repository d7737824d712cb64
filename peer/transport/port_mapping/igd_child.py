"""UPnP client program: `python -m peer.transport.port_mapping.igd_child JOB`.

Limits its own memory and time, asks the router, and prints the answer as one line of JSON. Started only by
`peer.transport.port_mapping.router`.

Any machine of the network can answer the search for a router, with any address for its description (LOCATION).
Descriptions are therefore fetched only from the default gateway, which forwards all our packets in any case. The answer
has to come from the gateway's address, and its LOCATION and the control URL in the description have to be at that
address. `miniupnpc` alone would fetch from any address."""

from __future__ import annotations

import ipaddress
import json
import math
import re
import resource
import signal
import socket
import sys
import time
import urllib.parse
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any, Protocol

MEMORY = 256 * 2**20
"""Limit of the address space in bytes, ten times what this program needs."""
SEARCH_S = 2.0
"""Seconds to wait for routers. They may delay an answer by a second (UPnP Device Architecture 1.1, MX of 1 s)."""
SSDP = ("239.255.255.250", 1900)
SEARCH = 'M-SEARCH * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nST: {kind}\r\nMAN: "ssdp:discover"\r\nMX: 1\r\n\r\n'
KINDS = tuple(
    f"urn:schemas-upnp-org:{kind}"
    for kind in (
        "device:InternetGatewayDevice:2",
        "device:InternetGatewayDevice:1",
        "service:WANIPConnection:2",
        "service:WANIPConnection:1",
    )
)
MOST_ANSWER_BYTES = 2048
MOST_LOCATIONS = 4
LOCATION = re.compile(rb"^LOCATION:[ \t]*(\S{1,500})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
ROUTES = Path("/proc/net/route")
HAS_GATEWAY = 2
"""Flag RTF_GATEWAY of a route in /proc/net/route."""
NAME = "peer"
"""Name that the router's user interface shows for the port."""
MOST_WORDS = 500
TAKEN = ("ConflictInMappingEntry", "ConflictWithOtherMechanisms")
"""Errors of a router whose port is in use, after which the next port is tried."""
FOR_EVER = "OnlyPermanentLeasesSupported"
"""Error of a router that accepts only permanent leases."""
Answer = dict[str, Any]


class Igd(Protocol):
    """The part of `miniupnpc.UPnP` that is used. Its methods raise plain `Exception`s with the router's message."""

    lanaddr: str

    def selectigd(self, location: str) -> str: ...

    def externalipaddress(self) -> str: ...

    def getspecificportmapping(self, port: int, protocol: str) -> tuple[str, int, str, bool, int] | None: ...

    def addportmapping(
        self, port: int, protocol: str, host: str, inner: int, name: str, remote: str, lease_s: int
    ) -> bool: ...

    def deleteportmapping(self, port: int, protocol: str) -> bool: ...


class Refused(Exception):
    """There is no router, or it does not do what was requested."""


def answer(job: Answer, igd: Igd, locations: Sequence[str]) -> Answer:
    """Execute a job. If it failed, the answer contains `refused`. `locations`: the result of `search`."""
    found: Answer = {}
    try:
        found["router"] = _find(igd, locations, job["hosts"])
        if job["do"] == "close":
            return _close(igd, job["ports"][0], job["inner"])
        found["address"] = _address(igd)
        return found | _open(igd, job)
    except Refused as error:
        return found | {"refused": str(error)[:MOST_WORDS]}


def search(host: str | None, gateways: Container[str], to: tuple[str, int] = SSDP) -> list[str]:
    """Search this network for routers by SSDP, from our address `host`. Return the locations of the descriptions of
    those among `gateways`, at most `MOST_LOCATIONS`.

    Takes up to `SEARCH_S`. Raises OSError when this machine has no such network."""
    found: dict[str, None] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.bind((host or "", 0))
        if host:
            asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(host))
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 2)
        for kind in KINDS:
            asking.sendto(SEARCH.format(kind=kind).encode(), to)
        until = time.monotonic() + SEARCH_S
        while (left_s := until - time.monotonic()) > 0 and len(found) < MOST_LOCATIONS:
            asking.settimeout(left_s)
            try:
                said, (sender, _) = asking.recvfrom(MOST_ANSWER_BYTES)
            except TimeoutError:
                break
            if sender in gateways and (location := location_of(said, sender)):
                found[location] = None
    return list(found)


def location_of(said: bytes, sender: str) -> str:
    """Return the location of the description named in an answer; empty if it is not on the sender's own host."""
    named = LOCATION.search(said)
    location = named[1].decode("ascii", "replace") if named is not None else ""
    return location if _is_on(location, sender) else ""


def _is_on(url: str, host: str) -> bool:
    """Return whether this is an HTTP URL on this host, with an acceptable port."""
    try:
        parts = urllib.parse.urlsplit(url)
        return parts.scheme == "http" and parts.hostname == host and parts.username is None and parts.port != 0
    except ValueError:
        return False


class PrivateHosts:
    """Container of all private addresses. Used as the gateways on systems that do not list them."""

    def __contains__(self, host: object) -> bool:
        try:
            address = ipaddress.ip_address(str(host))
        except ValueError:
            return False
        return not (address.is_global or address.is_loopback)


def gateways() -> Container[str]:
    """Return the addresses of the default gateways of this machine."""
    try:
        lines = ROUTES.read_text().splitlines()[1:]
    except OSError:
        return PrivateHosts()  # not Linux
    routes = [line.split() for line in lines]
    return {
        str(ipaddress.IPv4Address(int(route[2], 16).to_bytes(4, sys.byteorder)))
        for route in routes
        if route[1] == "00000000" and int(route[3], 16) & HAS_GATEWAY
    }


def _find(igd: Igd, locations: Sequence[str], hosts: list[str]) -> str:
    """Select the first router whose control URL is on its own host. Return its address. Raises Refused."""
    why = "no router in this network answers UPnP"
    for location in locations:
        host = urllib.parse.urlsplit(location).hostname or ""
        try:
            url = igd.selectigd(location)  # only fetches the description
        except Exception:  # noqa: BLE001 - the library has no other
            url = None
        if url is None:
            why = f"the router at {host} does not describe itself"
        elif not _is_on(url, host):
            why = f"the router at {host} wants to be asked at {url[:80]}, which is another machine"
        elif hosts and igd.lanaddr not in hosts:
            why = f"the router is reached from {igd.lanaddr}, where this peer does not listen"
        else:
            return host
    raise Refused(why)


def _address(igd: Igd) -> str:
    try:
        return igd.externalipaddress()[:MOST_WORDS]
    except Exception:  # noqa: BLE001 - the library raises only this; the port may be open nevertheless
        return ""


def _open(igd: Igd, job: Answer) -> Answer:
    """Open the first of the job's ports that is free. Raises Refused."""
    inner, lease_s = job["inner"], job["lease_s"]
    why = ""
    for port in job["ports"]:
        if _leads_elsewhere(igd, port, inner):
            why = f"port {port} is another's"
        elif not (why := _add(igd, port, inner, lease_s)):
            return _opened(igd, port, inner, lease_s)
        elif why == FOR_EVER:
            if why := _add(igd, port, inner, 0):
                raise Refused(f"the router said: {why}")
            return {"port": port, "lease_s": 0}
        elif why not in TAKEN:
            break
    raise Refused(f"the router said: {why}")


def _add(igd: Igd, port: int, inner: int, lease_s: int) -> str:
    """Request a port mapping. Return why the router refused; empty: it reports success."""
    try:
        igd.addportmapping(port, "TCP", igd.lanaddr, inner, NAME, "", lease_s)
    except Exception as error:  # noqa: BLE001 - the library has no other
        return str(error)[:MOST_WORDS] or "nothing"
    return ""


def _opened(igd: Igd, port: int, inner: int, lease_s: int) -> Answer:
    """Return the port and the lease that was granted, as the router lists it. Some routers open a port without listing
    it."""
    entry = igd.getspecificportmapping(port, "TCP")
    if entry is not None and (entry[0], entry[1]) != (igd.lanaddr, inner):
        raise Refused(f"the router said yes, and leads port {port} to {entry[0]}")
    given_s = entry[4] if entry is not None else 0
    return {"port": port, "lease_s": given_s if 0 < given_s < lease_s else lease_s}


def _close(igd: Igd, port: int, inner: int) -> Answer:
    """Close a port, if it leads to us."""
    if _leads_elsewhere(igd, port, inner):
        return {"closed": 0}
    try:
        igd.deleteportmapping(port, "TCP")
    except Exception as error:
        if igd.getspecificportmapping(port, "TCP") is not None:
            raise Refused(f"the router said: {error}") from error
    return {"closed": port}


def _leads_elsewhere(igd: Igd, port: int, inner: int) -> bool:
    entry = igd.getspecificportmapping(port, "TCP")
    return entry is not None and (entry[0], entry[1]) != (igd.lanaddr, inner)


def main() -> None:
    job = json.loads(sys.argv[1])
    signal.alarm(math.ceil(job["seconds"]) + 1)  # the parent process may be gone
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import miniupnpc

    try:
        locations = search(next(iter(job["hosts"]), None), gateways())
    except OSError:  # without multicast there is no router to ask
        locations = []
    print(json.dumps(answer(job, miniupnpc.UPnP(), locations)), flush=True)


if __name__ == "__main__":
    main()
