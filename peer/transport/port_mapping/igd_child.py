"""A process that asks the router by UPnP: `python -m peer.transport.port_mapping.igd_child JOB`.

It limits its memory and its time, asks, and answers by one line of JSON. Only `peer.transport.port_mapping.router`
starts it."""

from __future__ import annotations

import ipaddress
import json
import math
import resource
import signal
import sys
import urllib.parse
from typing import Any, Protocol

MEMORY = 256 * 2**20
"""Bytes of address space: ten times what this process takes."""
DISCOVER_MS = 1000
"""A router may take so long to say that it is there (UPnP Device Architecture, MX of 1 s). Each kind of it is looked
for so long."""
NAME = "peer"
"""The name that the router's pages show beside the port."""
MOST_WORDS = 500
TAKEN = ("ConflictInMappingEntry", "ConflictWithOtherMechanisms")
FOR_EVER = "OnlyPermanentLeasesSupported"
Answer = dict[str, Any]


class Igd(Protocol):
    """The part of `miniupnpc.UPnP` that is used. Its methods raise bare `Exception`s with the router's words."""

    lanaddr: str

    def discover(self) -> int: ...

    def selectigd(self) -> str: ...

    def externalipaddress(self) -> str: ...

    def getspecificportmapping(self, port: int, protocol: str) -> tuple[str, int, str, bool, int] | None: ...

    def addportmapping(
        self, port: int, protocol: str, host: str, inner: int, name: str, remote: str, lease_s: int
    ) -> bool: ...

    def deleteportmapping(self, port: int, protocol: str) -> bool: ...


class Refused(Exception):
    """The router is not there, or does not do what it was asked."""


def answer(job: Answer, igd: Igd) -> Answer:
    """Do a job. The answer holds `refused` where the router did not do it."""
    found: Answer = {}
    try:
        found["router"] = _find(igd, job["hosts"])
        if job["do"] == "close":
            return _close(igd, job["ports"][0], job["inner"])
        found["address"] = _address(igd)
        return found | _open(igd, job)
    except Refused as error:
        return found | {"refused": str(error)[:MOST_WORDS]}


def _find(igd: Igd, hosts: list[str]) -> str:
    """Find the router, and return its address."""
    try:
        igd.discover()
        url = igd.selectigd()
    except Exception as error:  # the library has no other
        raise Refused("no router in this network answers UPnP") from error
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        outside = ipaddress.ip_address(host).is_global
    except ValueError:
        outside = True
    if outside:
        raise Refused(f"what answers UPnP is to be asked at {host[:80]}, which is outside this network")
    if hosts and igd.lanaddr not in hosts:
        raise Refused(f"the router is reached from {igd.lanaddr}, where this peer does not listen")
    return host


def _address(igd: Igd) -> str:
    try:
        return igd.externalipaddress()[:MOST_WORDS]
    except Exception:  # noqa: BLE001 - the library has no other; a port may be open all the same
        return ""


def _open(igd: Igd, job: Answer) -> Answer:
    """Open the first port that no other machine or program has."""
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
    """Return why the router did not open a port; empty: it says that it did."""
    try:
        igd.addportmapping(port, "TCP", igd.lanaddr, inner, NAME, "", lease_s)
    except Exception as error:  # noqa: BLE001 - the library has no other
        return str(error)[:MOST_WORDS] or "nothing"
    return ""


def _opened(igd: Igd, port: int, inner: int, lease_s: int) -> Answer:
    """Tell the lease that was given. Some routers open a port and do not list it."""
    entry = igd.getspecificportmapping(port, "TCP")
    if entry is not None and (entry[0], entry[1]) != (igd.lanaddr, inner):
        raise Refused(f"the router said yes, and leads port {port} to {entry[0]}")
    given_s = entry[4] if entry is not None else 0
    return {"port": port, "lease_s": given_s if 0 < given_s < lease_s else lease_s}


def _close(igd: Igd, port: int, inner: int) -> Answer:
    """Close a port that leads to us."""
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
    signal.alarm(math.ceil(job["seconds"]) + 1)  # whoever started this may be gone
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    limit = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import miniupnpc

    igd = miniupnpc.UPnP(multicastif=next(iter(job["hosts"]), None), discoverdelay=DISCOVER_MS)
    print(json.dumps(answer(job, igd)), flush=True)


if __name__ == "__main__":
    main()
