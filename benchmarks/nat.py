"""Does a run work when nobody but the operator's node can be dialled? Linux, as root.

Promises 2 (the ledger balances), 8 (local progress survives). Bounds: 0.95 of the due peer-rounds are exchanged, 0.75
in a short run, every due round has an end, and the ledger is 0. Where routers keep ports, 0.8 of the exchanges between
homes are punched, half of them in a short run.

    sudo python -m benchmarks.nat [--homes 8] [--rounds 20] [--preset noloco] [--nat endpoint-independent] [--relays 0]
                                  [--relay RATE] [--sync-every 8] [--late 0] [--ipv6] [--short] [--json FILE]
                                  [--results]

Each home is behind a router of its own, which drops what nobody inside has asked for. The bootstrap node and as many
peers as `--relays` says are open. With `--relay off` closed homes meet only the open ones. With `--late` the report
shows how long homes that join later wait for their first exchange; `--nat none` is the control. About 4 minutes, with
`--short` one."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder on the path would shadow standard modules
    sys.path[0] = str(Path(__file__).parent.parent)

from benchmarks.nat_network import dropped, home_site, internet, open_site
from benchmarks.nat_swarm import PATHS, NatSwarm, Run, complaints, dialled_at
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish

LEAST_PARTICIPATION, LEAST_PUNCHED = 0.95, 0.8
LEAST_SHORT, LEAST_SHORT_PUNCHED = 0.75, 0.5
"""Bounds of a short run, which allow the loss of one pair of six."""
NATS = ("endpoint-independent", "symmetric", "mixed", "none")
ABOUT = Benchmark(
    "nat",
    "Does a run work when nobody but the operator's node can be dialled?",
    "2 (conservation), 8 (local progress survives)",
    smallest="--short",
    needs=("namespaces",),
    is_long=True,
)


def parser() -> argparse.ArgumentParser:
    made = options(__doc__)
    made.add_argument("--homes", type=int, default=8)
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--preset", default="noloco")
    made.add_argument("--sync-every", type=float, default=8.0, help="seconds from one round to the next")
    made.add_argument("--nat", choices=NATS, default=NATS[0], help="of the homes' routers; none: homes are open")
    made.add_argument("--relays", type=int, default=0, help="further open hosts, on each a peer that trains too")
    made.add_argument("--relay", metavar="off|RATE", help="what every daemon is told")
    made.add_argument("--late", type=int, default=0, help="so many homes come one by one when the others train")
    made.add_argument("--ipv6", action="store_true", help="homes have no IPv4")
    made.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the manifest")
    made.add_argument("--short", action="store_true", help="three homes, six rounds of 6 s")
    return made


def symmetric(given: argparse.Namespace, number: int) -> bool:
    return given.nat == "symmetric" or (given.nat == "mixed" and number % 2 == 0)


def measure(given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    numbers = range(1, given.homes + 1)
    relays = [open_site(f"relay{k}", k + 1, six=given.ipv6) for k in range(1, given.relays + 1)]
    family = {"four": not given.ipv6, "six": given.ipv6}
    closed = given.nat != "none"
    homes = [
        home_site(k, symmetric=symmetric(given, k), **family) if closed else open_site(f"home{k}", 100 + k, **family)
        for k in numbers
    ]
    with internet([open_site("bootstrap", 1, six=given.ipv6), *relays, *homes]) as hosts:
        places = {site.name: hosts[site.name] for site in relays}
        places |= {site.name: hosts[f"{site.name}/{site.homes[0]}" if site.homes else site.name] for site in homes}
        run = Run(given.preset, given.rounds, given.sync_every, tuple(given.set))
        swarm = NatSwarm(folder, run, {"bootstrap": hosts["bootstrap"]}, places, given.late)
        for site in relays:
            swarm.let(site.name, *dialled_at())
        for name in ("bootstrap", *places) if given.relay else ():
            swarm.let(name, "--relay", given.relay)
        try:
            asyncio.run(swarm.play(swarm.join_late()))
        except BaseException:
            print(swarm.words(), file=sys.stderr)
            raise
        refused = sum(dropped(hosts[site.name]) for site in homes) if closed else None
    return swarm.report() | {"homes": given.homes, "nat": given.nat, "relays": given.relays, "not_let_in": refused}


def between_homes(report: dict[str, Any]) -> dict[str, int]:
    """Return path -> number of exchanges in which both ends are homes."""
    counts = dict.fromkeys(PATHS, 0)
    for met, times in report["meetings"].items():
        one, other, path = met.split()
        if one.startswith("home") and other.startswith("home"):
            counts[path] += times
    return counts


def homes(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the report's entries of the homes."""
    return [one for name, one in report["peers"].items() if name.startswith("home")]


def figures(given: argparse.Namespace, report: dict[str, Any], wrong: list[str]) -> list[Figure]:
    met = between_homes(report)
    punched = met["punched"] / total if (total := sum(met.values())) else None
    alone, least = given.relay == "off", LEAST_SHORT if given.short else LEAST_PARTICIPATION
    punches = LEAST_SHORT_PUNCHED if given.short else LEAST_PUNCHED
    bound = punches if given.nat == "endpoint-independent" and not given.ipv6 and not alone else None
    found = [
        Figure("complaints", "", len(wrong), 0),
        Figure("participation", "", report["participation"], None, None if alone else least),
        Figure("ledger, off by", "", abs(report["ledger_imbalance"]), 0),
        Figure("exchanges between homes that were punched, of all", "", punched, None, bound),
    ]
    if alone and given.nat != "none":
        found.append(Figure("exchanges between closed homes, although nobody relays", "", total, 0))
    if alone and given.relays:
        opens = [f"relay{k}" for k in range(1, given.relays + 1)]
        fewest = min(sum(one["partners"].get(name, 0) for name in opens) for one in homes(report))
        found.append(Figure("exchanges with open peers of the home that had fewest", "", fewest, None, 1))
    return found


def main() -> None:
    given = parsed(parser(), ABOUT)
    if given.short:
        given.homes, given.rounds, given.sync_every = 3, 6, 6.0
    with tempfile.TemporaryDirectory(prefix="peer-nat-") as folder:
        report = measure(given, Path(folder))
    report["between_homes"] = between_homes(report)
    wrong = complaints(report)
    if report["not_let_in"] == 0:
        wrong.append("the routers had nothing to refuse: nobody tried to dial a home")
    report["complaints"] = wrong
    print(json.dumps(report, indent=1), flush=True)
    outcomes = sorted(set(itertools.chain(*(one["outcomes"] for one in report["peers"].values()))))
    rows = [[name, one["due"], *map(one["outcomes"].get, outcomes)] for name, one in report["peers"].items()]
    with contextlib.redirect_stdout(sys.stderr):
        print("\n".join(wrong))
        ends = Table("", ["peer", "due rounds", *outcomes], rows)
        good = publish(given, ABOUT, figures(given, report, wrong), ends, variant=given.preset)
    sys.exit(not good)


if __name__ == "__main__":
    main()
