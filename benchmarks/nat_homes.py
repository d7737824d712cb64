"""Do two homes meet, whatever their routers are like? Linux, as root.

Promise 8 (local progress survives). Bounds: participation 0.95 in each case, over the paths that are expected there.

    sudo python -m benchmarks.nat_homes [CASE …] [--rounds 8] [--sync-every 8] [--preset noloco] [--json [FILE]]

The only node that can be dialled is the bootstrap node, which has both families of addresses. A case takes a minute and
a half:

* `one-router`: both homes are behind the same router, and meet in its network.
* `two-routers`: one home's router is in the network of a carrier's. Both routers keep ports: punched.
* `drawn-ports`: one home's router draws a port for each connection: relayed.
* `families`: one home has IPv6 only, the other IPv4 only: relayed.
* `ipv6`: both have IPv6 only, behind routers that let nothing in: punched.
* `upnp`: one home's router opens ports for those inside who ask: mapped. It takes `miniupnpd`.
* `upnp-lies`: it says that it did, and lets nothing in: punched."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.nat_network import Site, home_site, internet, open_site, why_not
from benchmarks.nat_swarm import NatSwarm, Run, complaints, json_option, write
from benchmarks.upnp_router import UpnpRouter, upnp_router
from benchmarks.upnp_router import why_not as why_no_upnp

LEAST_PARTICIPATION = 0.95
HOME = "192.168.7.2"
OPEN = open_site("bootstrap", 1, six=True)


@dataclass(frozen=True)
class Case:
    """`places`: the namespace of each of the two homes, by its site and address. `expected`: the paths that will do."""

    sites: tuple[Site, ...]
    places: tuple[str, str]
    expected: tuple[str, ...]
    upnp: str = ""
    """Whether the first home's router opens ports: it `obeys`, or it `lies`."""


CARRIER = (
    Site("carrier", "60.9.0.1", ("100.64.7.9",), gateway="100.64.7.1"),
    Site("home1", "100.64.7.3", (HOME,), inside="carrier"),
)
FAMILIES = home_site(1, four=False, six=True), home_site(2)
SIXES = home_site(1, four=False, six=True), home_site(2, four=False, six=True)
EACH = f"home1/{HOME}", f"home2/{HOME}"
CASES = {
    "one-router": Case((home_site(1, homes=2),), (f"home1/{HOME}", "home1/192.168.7.3"), ("direct",)),
    "two-routers": Case((*CARRIER, home_site(2)), EACH, ("punched",)),
    "drawn-ports": Case((home_site(1, symmetric=True), home_site(2)), EACH, ("relayed",)),
    "families": Case(FAMILIES, EACH, ("relayed",)),
    "ipv6": Case(SIXES, EACH, ("punched",)),
    "upnp": Case((home_site(1), home_site(2)), EACH, ("mapped",), "obeys"),
    "upnp-lies": Case((home_site(1), home_site(2)), EACH, ("punched",), "lies"),
}


def play(case: Case, run: Run, folder: Path) -> dict[str, Any]:
    opened: set[str] = set()
    with internet([OPEN, *case.sites]) as hosts, contextlib.ExitStack() as beside:
        upnp = None
        if case.upnp:
            upnp = beside.enter_context(upnp_router(hosts["home1"], obeys=case.upnp == "obeys"))
        places = {f"peer{k}": hosts[place] for k, place in enumerate(case.places, 1)}
        swarm = NatSwarm(folder, run, {"bootstrap": hosts["bootstrap"]}, places)
        try:
            asyncio.run(swarm.play(*([_watch(upnp, opened)] if upnp else [])))
        except BaseException:
            print(swarm.words(), file=sys.stderr)
            raise
        report = swarm.report() | {"expected": case.expected}
        wrong = complaints(report)
        if upnp:
            left = upnp.opened()
            report["upnp"] = {"opened": sorted(opened), "left_open": left, "times_asked": upnp.times_asked()}
            wrong += [f"a port stays open: {rule}" for rule in left]
    elsewhere = {path: n for path, n in report["paths"].items() if n and path not in case.expected}
    wrong += [f"{n} exchanges were {path}, not {' or '.join(case.expected)}" for path, n in elsewhere.items()]
    if report["participation"] < LEAST_PARTICIPATION:
        wrong.append(f"participation is {report['participation']:.2f}")
    return report | {"complaints": wrong}


async def _watch(router: UpnpRouter, opened: set[str]) -> None:
    """Note every port that a router opens."""
    while True:
        opened.update(await asyncio.to_thread(router.opened))
        await asyncio.sleep(1.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", default=[])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--sync-every", type=float, default=8.0)
    parser.add_argument("--preset", default="noloco")
    json_option(parser)
    given = parser.parse_args()
    if reason := why_not() or why_no_upnp():
        sys.exit(reason)
    if unknown := set(given.cases) - CASES.keys():
        parser.error(f"no such case: {', '.join(unknown)}. There are {', '.join(CASES)}")
    found = {}
    for name in given.cases or CASES:
        with tempfile.TemporaryDirectory(prefix="peer-nat-") as folder:
            found[name] = play(CASES[name], Run(given.preset, given.rounds, given.sync_every), Path(folder))
        print(f"{name}: {'; '.join(found[name]['complaints']) or 'as expected'}", file=sys.stderr, flush=True)
    write(found, given.json)
    sys.exit(any(one["complaints"] for one in found.values()))


if __name__ == "__main__":
    main()
