"""What do closed homes lose when a relay dies, lies, or is held up by strangers? Linux, as root.

Promises 2 (the ledger balances), 8 (local progress survives), 10 (every fault has a reason). Bounds: only rounds that
are under way when a relay dies are lost. A home calls over a lying relay in at most two rounds, and a journal names
that relay. With 1,000 silent connections a relay loses no round of its own, and grows by at most 64 MiB.

    sudo python -m benchmarks.nat_faults killed|lying|silent [--kills 10] [--lie drop|delay|flip|swap] [--rounds N]
                                         [--homes 4] [--sync-every 16] [--preset noloco] [--json FILE] [--results]

The homes' routers draw ports, so nothing is punched. There are three bootstrap nodes, which relay and do not train. A
home sends so slowly that a swap takes about 4 s.

* `killed`: in the middle of a round's swaps the node with most circuits is killed, and started again. 6 minutes.
* `lying`: in front of each node is a box (`benchmarks.lying_relay`). From round 2 on that of the node which carries
  most spoils circuits, and nothing else. 4 minutes for each lie; all of them without `--lie`.
* `silent`: a relay that trains too, in the place of one home, has 1,000 connections of strangers who say nothing.
  3 minutes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import resource
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.lying_relay import LIES, LyingBox
from benchmarks.nat_network import Site, home_site, inside, internet, open_site
from benchmarks.nat_swarm import (
    PORT,
    NatSwarm,
    PlacedDaemon,
    Run,
    complaints,
    dialled_at,
    resident_bytes,
)
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.codes import Code
from peer.observe.events import Event, RelayLeft, RoundDue, RoundEnded

FAULTS = (Code.UNREACHABLE, Code.SILENT, Code.BROKEN, Code.LATE, Code.SLOW)
NODES = ("node1", "node2", "node3")
LARGE = ("model.hidden_size=128", "model.intermediate_size=352")
"""Settings of a model with payloads of 400 kB in noloco's codec."""
UPLOAD = ("--max-upload", "100000")
"""Upload cap of each home, bytes per second. A payload takes 4 s at it."""
IN_THE_MIDDLE_S = 1.5
"""Seconds after a round's due moment at which the relay is killed."""
AWAY_S = 1.0
SILENT, STRANGERS = 1000, 4
MOST_GROWTH_MIB = 64
LEFT_AFTER = 2
"""Most rounds in which a home may call over a lying relay. Other homes may call it until each has found out."""
Journal = Sequence[tuple[float, Event]]
ABOUT = Benchmark(
    "nat_faults",
    "What do closed homes lose when a relay dies, lies, or is held up by strangers?",
    "2 (conservation), 8 (local progress survives), 10 (every fault has a reason)",
    smallest="killed --kills 1",
    needs=("namespaces",),
    is_long=True,
)


@contextlib.contextmanager
def closed_swarm(given: argparse.Namespace, rounds: int, *extra: Site) -> Iterator[tuple[NatSwarm, dict[str, str]]]:
    """Make homes that can meet only over relays, and three bootstrap nodes. `extra`: further hosts without processes.

    Yield the swarm and the namespace of each host."""
    nodes = [open_site(name, number) for number, name in enumerate(NODES, 1)]
    homes = [home_site(number, symmetric=True) for number in range(1, given.homes + 1)]
    with internet([*nodes, *homes, *extra]) as hosts, tempfile.TemporaryDirectory(prefix="peer-nat-") as folder:
        run = Run(given.preset, rounds, given.sync_every, LARGE)
        places = {site.name: hosts[f"{site.name}/{site.homes[0]}"] for site in homes}
        swarm = NatSwarm(Path(folder), run, {name: hosts[name] for name in NODES}, places)
        for name in places:
            swarm.let(name, *UPLOAD)
        try:
            yield swarm, hosts
        except BaseException:
            print(swarm.words(), file=sys.stderr)
            raise


# -- killed ----------------------------------------------------------------------------------------------------------


@dataclass
class Kill:
    """One kill. at: seconds since the epoch. circuits: number of circuits that the relay had."""

    relay: str
    at: float
    circuits: int
    back_s: float


async def kill_relays(swarm: NatSwarm, times: int, killed: list[Kill]) -> None:
    """Kill the busiest node `times` times in the middle of a round's swaps, each time waiting until it is back."""
    watched, last = next(iter(swarm.peers)), -1
    for _ in range(times):
        last = await swarm.next_round(watched, last)
        await asyncio.sleep(IN_THE_MIDDLE_S)
        told = {name: await node.status() or {} for name, node in swarm.nodes.items()}
        circuits = {name: int(said.get("relaying", {}).get("circuits", 0)) for name, said in told.items()}
        name = max(circuits, key=lambda one: circuits[one])
        at = time.time()
        await swarm.nodes[name].kill_and_restart(AWAY_S)
        while not await swarm.nodes[name].status():
            await asyncio.sleep(0.3)
        killed.append(Kill(name, at, circuits[name], round(time.time() - at, 1)))


def play_killed(given: argparse.Namespace) -> dict[str, Any]:
    killed: list[Kill] = []
    with closed_swarm(given, given.rounds or 2 * given.kills + 2) as (swarm, _):
        asyncio.run(swarm.play(kill_relays(swarm, given.kills, killed)))
        report = swarm.report()
        journals = {name: one.events for name, one in swarm.accounts().items()}
    under_way, beyond, went_on = list[Any](), list[Any](), 0
    for name, (due, at, event) in ((name, one) for name, journal in journals.items() for one in rounds_of(journal)):
        hit = [kill for kill in killed if due <= kill.at <= at]
        if event.outcome != "exchanged":
            since = round(due - max((kill.at for kill in killed if kill.at < due), default=math.nan), 1)
            row = {"home": name, "round": event.round, "s_after_the_last_kill": since, "reason": event.reason}
            (under_way if hit else beyond).append(row)
        elif any(event.first_byte_at < kill.at < event.done_at for kill in hit):
            went_on += 1
    wrong = complaints(report)
    wrong += [f"{len(beyond)} rounds were lost that were not under way"] * bool(beyond)
    wrong += [f"{len(killed)} of {given.kills} kills came about"] * (len(killed) < given.kills)
    wrong += ["no relay had a circuit when it was killed"] * (not any(kill.circuits for kill in killed))
    return report | {
        "kills": [vars(kill) for kill in killed],
        "lost_under_way": under_way,
        "lost_beyond": beyond,
        "went_on_over_a_kill": went_on,
        "complaints": wrong,
    }


def rounds_of(journal: Journal) -> Iterator[tuple[float, float, RoundEnded]]:
    """Yield (due, end, event) of each ended round."""
    due = {event.round: at for at, event in journal if isinstance(event, RoundDue)}
    for at, event in journal:
        if isinstance(event, RoundEnded) and event.round in due:
            yield due[event.round], at, event


# -- lying -----------------------------------------------------------------------------------------------------------


def play_lie(given: argparse.Namespace, lie: str) -> dict[str, Any]:
    """Run a swarm in which the circuits of the busiest node are corrupted from round 2 on."""
    boxes = {name: LyingBox(lie) for name in NODES}
    with closed_swarm(given, given.rounds or 9) as (swarm, hosts):
        asyncio.run(_play_behind_boxes(swarm, hosts, boxes))
        report, accounts = swarm.report(), swarm.accounts()
        relay = min(NODES, key=lambda name: boxes[name].lies_from)
        relay_id = swarm.nodes[relay].peer_id
    box, homes = boxes[relay], {}
    for number, (name, one) in enumerate(accounts.items(), 1):
        host = home_site(number).public
        uses = [(at, calls) for at, user, calls in box.uses if user == host]
        homes[name] = _under_the_lie(one.events, box.lies_from, uses, relay_id, given.sync_every)
    wrong = complaints(report)
    wrong += ["nothing went over the relay that lies: the run shows nothing"] * (not box.spoilt)
    wrong += ["no journal names it"] * (not any(home["named"] for home in homes.values()))
    for name, home in homes.items():
        rounds = list(home["calls_by_round"])
        wrong += [f"{name} calls over it in rounds {rounds} of its lies"] * (len(rounds) > LEFT_AFTER)
    return report | {"lie": lie, "relay": relay_id, "homes": homes, "complaints": wrong}


async def _play_behind_boxes(swarm: NatSwarm, hosts: dict[str, str], boxes: dict[str, LyingBox]) -> None:
    """Run the swarm with a box in front of every node, because the busiest is not known in advance."""

    async def lie() -> None:
        await swarm.next_round(next(iter(swarm.peers)), 1)
        told = {name: await node.status() or {} for name, node in swarm.nodes.items()}
        passed = {name: said.get("relaying", {}).get("bytes", 0) for name, said in told.items()}
        boxes[max(passed, key=lambda name: passed[name])].begin()
        await asyncio.Event().wait()

    async with contextlib.AsyncExitStack() as stack:
        for number, name in enumerate(NODES, 1):
            public = open_site(name, number).public
            await stack.enter_async_context(boxes[name].beside(hosts[name], public, PORT))
        await swarm.play(lie())


def _under_the_lie(
    journal: Journal, since: float, uses: list[tuple[float, bool]], relay: str, round_s: float
) -> dict[str, Any]:
    """Return what one home did with a relay that lied since `since`. Rounds count from 1, and each begins a quarter
    before it is due, when offers open. `uses`: (time, whether the home called)."""
    begun = [at - round_s / 4 for at, event in journal if isinstance(event, RoundDue) and at >= since]
    by_round = {
        which: Counter(max(1, sum(start <= at for start in begun)) for at, calls in uses if calls == which)
        for which in (True, False)
    }
    ends = [(at >= since, event) for at, event in journal if isinstance(event, RoundEnded)]
    left = [
        f"{e.code}: {e.reason}"
        for at, e in journal
        if isinstance(e, RelayLeft) and e.relay == relay and at >= since and e.code in FAULTS
    ]
    return {
        "rounds_under_the_lie": len(begun),
        "exchanged_under_the_lie": sum(late and event.outcome == "exchanged" for late, event in ends),
        "lost_under_the_lie": sum(late and event.outcome != "exchanged" for late, event in ends),
        "over_it_before": sum(not late and event.path_via == relay for late, event in ends),
        "over_it_since": sum(late and event.path_via == relay for late, event in ends),
        "calls_by_round": dict(sorted(by_round[True].items())),
        "called_by_round": dict(sorted(by_round[False].items())),
        "named": left[:3],
    }


# -- silent ----------------------------------------------------------------------------------------------------------


def play_silent(given: argparse.Namespace) -> dict[str, Any]:
    """Run a swarm in which strangers hold many connections to one training relay."""
    relay = open_site("relay", 40)
    strangers = [open_site(f"stranger{k}", 50 + k) for k in range(1, STRANGERS + 1)]
    seen: Counter[str] = Counter()
    given.homes -= 1
    with closed_swarm(given, given.rounds or 8, relay, *strangers) as (swarm, hosts):
        swarm.peers["relay"] = PlacedDaemon("relay", swarm.home / "relay", namespace=hosts["relay"])
        swarm.let("relay", *dialled_at(), *UPLOAD)
        asyncio.run(swarm.play(_hold(swarm, [hosts[site.name] for site in strangers], relay.public, seen)))
        report = swarm.report()
    growth = (seen["most_bytes"] - seen["bytes_before"]) / 2**20
    outcomes = report["peers"]["relay"]["outcomes"]
    lost = sum(outcomes.values()) - outcomes.get("exchanged", 0)
    wrong = complaints(report)
    wrong += [f"{lost} rounds of the relay were not exchanged"] * bool(lost)
    wrong += [f"the relay grew by {growth:.0f} MiB"] * (growth > MOST_GROWTH_MIB)
    return report | {"silent": seen, "growth_mib": round(growth, 1), "complaints": wrong}


async def _hold(swarm: NatSwarm, strangers: list[str], host: str, seen: Counter[str]) -> None:
    """Open the connections, reopen closed ones, and record the relay's memory."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    pid = swarm.peers["relay"].pid
    seen["bytes_before"] = resident_bytes(pid)
    async with asyncio.TaskGroup() as group:
        for number in range(SILENT):
            group.create_task(_stay_silent(strangers[number % len(strangers)], host, seen))
        while True:
            with contextlib.suppress(OSError):  # the relay's process has ended
                seen["most_bytes"] = max(seen["most_bytes"], resident_bytes(pid))
            seen["most_open"] = max(seen["most_open"], seen["opened"] - seen["closed"])
            await asyncio.sleep(0.2)


async def _stay_silent(namespace: str, host: str, seen: Counter[str]) -> None:
    """Connect and wait until the relay closes the connection, repeatedly."""
    loop = asyncio.get_running_loop()
    while True:
        with inside(namespace):
            made = socket.socket()
        made.setblocking(False)
        with made:
            try:
                async with asyncio.timeout(10):
                    await loop.sock_connect(made, (host, PORT))
                seen["opened"] += 1
                await loop.sock_recv(made, 1)
                seen["closed"] += 1
            except (OSError, TimeoutError):
                seen["failed"] += 1
        await asyncio.sleep(1.0)


def figures(report: dict[str, Any]) -> list[Figure]:
    """Return the figures of one fault. Its complaints are what breaks its bounds."""
    found = [
        Figure("complaints", "", len(report["complaints"]), 0),
        Figure("participation", "", report["participation"]),
        Figure("ledger, off by", "", abs(report["ledger_imbalance"]), 0),
    ]
    if "kills" in report:
        found += [
            Figure("relays killed in the middle of swaps", "", len(report["kills"])),
            Figure("swaps that went on over a kill, one for each side", "", report["went_on_over_a_kill"]),
            Figure("rounds lost that were under way at a kill", "", len(report["lost_under_way"])),
            Figure("rounds lost beyond those", "", len(report["lost_beyond"]), 0),
        ]
    if "lie" in report:
        homes = report["homes"].values()
        most = max(len(home["calls_by_round"]) for home in homes)
        called = max(len(home["called_by_round"]) for home in homes)
        under = sum(home["rounds_under_the_lie"] for home in homes)
        lost = sum(home["lost_under_the_lie"] for home in homes)
        found += [
            Figure("rounds of the lies in which a home called over that relay, at most", "", most, LEFT_AFTER),
            Figure("rounds of the lies in which a home was called over it, at most", "", called),
            Figure("homes whose journal names it", "", sum(bool(home["named"]) for home in homes), None, 1),
            Figure("rounds due under the lies, of all homes", "", under),
            Figure("rounds that ended under the lies without an exchange", "", lost),
        ]
    if "growth_mib" in report:
        found += [
            Figure("silent connections open at once", "", report["silent"]["most_open"]),
            Figure("growth of the relay", "MiB", report["growth_mib"], MOST_GROWTH_MIB),
        ]
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("fault", choices=["killed", "lying", "silent"])
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--lie", choices=LIES)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--homes", type=int, default=4)
    parser.add_argument("--preset", default="noloco")
    parser.add_argument("--sync-every", type=float, default=16.0)
    given = parsed(parser, ABOUT)
    if given.fault == "lying":
        found = {lie: play_lie(given, lie) for lie in ([given.lie] if given.lie else LIES)}
    else:
        found = {given.fault: (play_killed if given.fault == "killed" else play_silent)(given)}
    for name, one in found.items():
        print(f"{name}: {'; '.join(one['complaints']) or 'as it should be'}", file=sys.stderr)
    print(json.dumps(found, indent=1), flush=True)
    with contextlib.redirect_stdout(sys.stderr):
        for name, one in found.items():
            ends = sorted({end for peer in one["peers"].values() for end in peer["outcomes"]})
            rows = [[name, peer["due"], *map(peer["outcomes"].get, ends)] for name, peer in one["peers"].items()]
            publish(given, ABOUT, figures(one), Table("", ["peer", "due rounds", *ends], rows), variant=name)
    sys.exit(any(one["complaints"] for one in found.values()))


if __name__ == "__main__":
    main()
