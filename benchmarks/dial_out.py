"""Can peers pair when most homes let nothing in? Linux, as root.

Promise 8: local progress survives closed homes, and every pair that can form forms. Bounds: every due round has an end,
the public peer exchanges with each closed home, and no closed home exchanges with another. About three minutes.

    sudo python -m benchmarks.dial_out [--rounds 30] [--sync-every 5] [--ipv6] [--json FILE] [--results]

One public host runs the bootstrap node and a peer. Two other peers can only dial out. Each host is a network namespace
of its own behind a router (`benchmarks.router`) that drops what would open a connection to a closed home."""

from __future__ import annotations

import argparse
import asyncio
import collections
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, publish
from benchmarks.router import Host, network
from peer.identity import load_or_create
from peer.lab.localswarm.processes import Daemon
from peer.observe.event_codec import decode
from peer.observe.events import Event, RoundDue, RoundEnded
from peer.run.home import Home
from peer.run.manifest import write_new

TAG = os.getpid() % 10000
ABOUT = Benchmark("dial_out", "Can peers pair when most homes let nothing in?", "8 (local progress survives)")


def hosts() -> list[Host]:
    public = Host(f"peer-pub-{TAG}", ("10.77.0.1", "fd77::1"), False, f"pub{TAG}")
    homes = [Host(f"peer-h{k}-{TAG}", (f"10.77.{k}.2", f"fd77:{k}::2"), True, f"h{k}x{TAG}") for k in (1, 2)]
    return [public, *homes]


def events_of(home: Path) -> list[Event]:
    found: list[Event] = []
    for journal in sorted(home.rglob("journal*")):
        for line in journal.read_bytes().splitlines():
            found.append(decode(line)[0])  # noqa: PERF401
    return found


async def start(daemon: Daemon, host: Host, *arguments: str) -> None:
    await daemon.start(*arguments, prefix=("ip", "netns", "exec", host.name), env={"OMP_NUM_THREADS": "1"})


async def swarm(home: Path, rounds: int, length_s: float, six: bool, all_hosts: list[Host]) -> dict[str, Any]:
    public = all_hosts[0]
    manifest = home / "run.toml"
    settings = ["sync.clock=seconds", f"sync.sync_every={length_s}", f"train.total_rounds={rounds}"]
    own = Home(home / "bootstrap")
    write_new(manifest, load_or_create(own.identity), settings)  # so the node may sign when the run begins
    any_host = "/ip6/::/tcp/0" if six else "/ip4/0.0.0.0/tcp/0"
    bootstrap = Daemon("bootstrap", home / "bootstrap")
    ticket = home / "bootstrap" / "ticket"
    listen = ("--host-maddrs", any_host)
    await start(
        bootstrap, public, "bootstrap", str(manifest), *listen, "--ticket-file", str(ticket), "--min-peers", "3"
    )
    deadline = time.monotonic() + 60
    while not ticket.exists():
        assert bootstrap.running, bootstrap.last_words()
        assert time.monotonic() < deadline, bootstrap.last_words()
        await asyncio.sleep(0.2)
    peers = [Daemon(name, home / name) for name in ("public", "home-1", "home-2")]
    for daemon, host in zip(peers, all_hosts, strict=True):
        words = ("join", ticket.read_text().strip(), *listen, "--threads", "1", "--speed", "0.2", "--min-peers", "3")
        await start(daemon, host, *words)
    said: dict[str, Any] = {}
    try:
        async with asyncio.timeout(120 + rounds * length_s * 2):
            waits = [asyncio.create_task(daemon.wait()) for daemon in peers]
            while not all(task.done() for task in waits):
                await asyncio.wait(waits, timeout=2.0)
                said |= {d.name: status for d in peers if (status := await d.status()) and status.get("round")}
    finally:
        for daemon in (*peers, bootstrap):
            await daemon.stop(10)
    names = {said[daemon.name]["peer_id"]: daemon.name for daemon in peers}
    return {"peers": {daemon.name: account(daemon, names, said[daemon.name]) for daemon in peers}}


def account(daemon: Daemon, names: dict[str, str], status: dict[str, Any]) -> dict[str, Any]:
    events = events_of(daemon.home)
    ended = [event for event in events if isinstance(event, RoundEnded)]
    return {
        "exit": daemon.exit_codes,
        "due": sum(isinstance(event, RoundDue) for event in events),
        "outcomes": dict(collections.Counter(event.outcome for event in ended)),
        "partners": dict(collections.Counter(names.get(event.partner, "?") for event in ended if event.partner)),
        "reachable": status["reachable"],
        "pairs": {names.get(p["peer_id"], "bootstrap"): p["pairs"] for p in status["peers"]},
    }


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--sync-every", type=float, default=5.0, help="seconds")
    parser.add_argument("--ipv6", action="store_true")
    given = parser.parse_args()
    all_hosts = hosts()
    with tempfile.TemporaryDirectory(prefix="peer-dial-out-") as folder, network(all_hosts) as router:
        home = Path(folder)
        try:
            found = asyncio.run(swarm(home, given.rounds, given.sync_every, given.ipv6, all_hosts))
        except BaseException:
            for log in sorted(home.rglob("daemon.log")):
                print(f"--- {log}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-30:]))
            raise
        print(json.dumps({**found, "connections_not_let_in": router.dropped}, indent=1))
    wrong = complaints(found["peers"], router.dropped)
    print("\n".join(wrong) or "every pair that can form formed, none hung", file=sys.stderr)
    show(given, found["peers"], len(wrong))
    sys.exit(bool(wrong))


def show(given: argparse.Namespace, peers: dict[str, Any], wrong: int) -> None:
    open_rounds = sum(abs(peer["due"] - sum(peer["outcomes"].values())) for peer in peers.values())
    met = [peers["public"]["partners"].get(name, 0) for name in ("home-1", "home-2")]
    figures = [
        Figure("complaints", "", wrong, 0),
        Figure("due rounds without an end", "", open_rounds, 0),
        Figure("rounds of the public peer with the closed home it met least", "", min(met), None, 1),
    ]
    outcomes = sorted({outcome for peer in peers.values() for outcome in peer["outcomes"]})
    rows = [[name, peer["due"], *map(peer["outcomes"].get, outcomes)] for name, peer in peers.items()]
    variant = "ipv6" if given.ipv6 else ""
    publish(given, ABOUT, figures, Table("", ["peer", "due rounds", *outcomes], rows), variant=variant)


def complaints(peers: dict[str, Any], dropped: int) -> list[str]:
    """List everything that should not be so."""
    wrong = [f"{name}: exit {p['exit']}" for name, p in peers.items() if p["exit"] != [0]]
    wrong += [f"{name}: {p['due']} rounds due" for name, p in peers.items() if p["due"] != sum(p["outcomes"].values())]
    wrong += [f"{name} is reachable: {p['reachable']}" for name, p in peers.items() if reached(p) != (name == "public")]
    wrong += [f"public never met {name}" for name in ("home-1", "home-2") if not peers["public"]["partners"].get(name)]
    wrong += [f"{name} met its like" for name in ("home-1", "home-2") if set(peers[name]["partners"]) != {"public"}]
    return wrong if dropped else [*wrong, "the router had nothing to refuse: the homes were not closed"]


def reached(peer: dict[str, Any]) -> bool:
    return bool(peer["reachable"]["value"])


if __name__ == "__main__":
    main()
