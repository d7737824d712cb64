"""How many bytes does a peer send and receive apart from its payloads? Linux, as root, with nftables.

Bounds: at most 50 MB a peer and day at rounds of 300 s, both directions together. All other peers know a newcomer
within 30 s. A peer's own count of the bytes on its line is correct within 2 %. About six minutes and `--rounds` rounds.

    sudo python -m benchmarks.control_bytes [--peers 4] [--rounds 3] [--round-seconds 300] [--json FILE] [--results]

A bootstrap node and the peers are real processes, each in a network namespace with a public address of its own
(`benchmarks.nat_network`). nftables counts what passes each interface, IP headers included, by the port of the exchange
service and by that of the DHT. Counting begins when every peer has exchanged. Payload frames and the messages of each
purpose are counted by the daemons, and so is all that their connections carry: `line_bytes` of `peer status`, which
is compared with the interface. What is left of an interface's bytes is the cost of connections: TCP, TLS, HTTP/2,
libp2p. When all is counted one more peer joins, and the seconds count until each of the others lists it. They begin
when the newcomer's daemon first answers `peer status`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nat_network import Site, internet
from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.identity import load_or_create
from peer.lab.localswarm.processes import Daemon
from peer.observe.control_bytes import PURPOSES, Purpose
from peer.run.home import Home
from peer.run.manifest import write_new

PACE = ("--step-seconds", "5", "--plain", "--yes")
ABOUT = Benchmark(
    "control_bytes",
    "How many bytes does a peer send and receive apart from its payloads?",
    "at most 50 MB a peer and day with rounds of 300 s, and that others know a newcomer within 30 s",
    smallest="--peers 2 --rounds 1",
    needs=("namespaces",),
    is_long=True,
)
ROUND_S, DAY_S = 300.0, 86_400.0
MOST_MB = 50.0
MOST_OFF = 2.0
"""Largest accepted difference, in percent, between a peer's own count (`line_bytes` in its status) and that of its
interface."""
KNOWN_S = 30.0
READY_S = 240.0
LOOK_S = 2.0
EXCHANGE, DHT = 4810, 4811
SETTINGS = ["sync.clock=seconds", "train.total_rounds=100000", "train.eval_every=1000"]
SETTINGS += ["model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=1"]
"""The model is so small that the headers of its payloads' packets do not matter."""
RULES = """
table inet count {
  counter exchange_sent {}
  counter exchange_received {}
  counter directory_sent {}
  counter directory_received {}
  chain out {
    type filter hook output priority 0
    oifname "lo" accept
    tcp sport EXCHANGE counter name exchange_sent accept
    tcp dport EXCHANGE counter name exchange_sent accept
    counter name directory_sent
  }
  chain in {
    type filter hook input priority 0
    iifname "lo" accept
    tcp sport EXCHANGE counter name exchange_received accept
    tcp dport EXCHANGE counter name exchange_received accept
    counter name directory_received
  }
}
"""
Counts = dict[str, int]


@dataclass(frozen=True)
class Sight:
    """Byte counts of one peer so far: those of its interface and its own."""

    wire: Counts
    sent: Counts
    """Bytes of messages by purpose."""
    received: Counts
    payload: int
    exchanged: int
    line: tuple[int, int]
    """Bytes sent and received on the line, as the peer itself reports them."""


def counted(host: str) -> Counts:
    """Return counter -> bytes of a host's nftables."""
    told = subprocess.run(
        ["ip", "netns", "exec", host, "nft", "-j", "list", "counters"],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    ).stdout
    found = (entry["counter"] for entry in json.loads(told)["nftables"] if "counter" in entry)
    return {counter["name"]: counter["bytes"] for counter in found}


async def sight(daemon: Daemon, host: str) -> Sight:
    """Read the counts of one peer. Raises AssertionError if it does not answer."""
    status = await daemon.status()
    assert status is not None, daemon.log_tail()
    control = status["control_bytes"]
    return Sight(
        counted(host),
        control["sent"],
        control["received"],
        status["bytes_sent"] + status["bytes_received"],
        status.get("rounds", {}).get("exchanged", 0),
        (status["line_bytes"]["sent"], status["line_bytes"]["received"]),
    )


@dataclass(frozen=True)
class Seen:
    """The measurements of one swarm."""

    looks: list[tuple[Sight, Sight]]
    known_s: float
    """Seconds until every peer listed the newcomer."""


async def start(daemon: Daemon, host: str, *arguments: str) -> None:
    prefix = ("ip", "netns", "exec", host)
    await daemon.start(*arguments, prefix=prefix, env={"OMP_NUM_THREADS": "1"})


async def measure(home: Path, given: argparse.Namespace, hosts: Mapping[str, str], sites: Sequence[Site]) -> Seen:
    """Run the swarm: read each peer's counts twice, `--rounds` rounds apart, then let one more peer join."""
    bootstrap, manifest, ticket = Daemon("bootstrap", home / "bootstrap"), home / "run.toml", home / "ticket"
    settings = [*SETTINGS, f"sync.sync_every={given.round_seconds:g}"]
    write_new(manifest, load_or_create(Home(bootstrap.home).identity), settings)
    peers = {site.name: Daemon(site.name, home / site.name) for site in sites if site.name.startswith("peer")}
    late = Daemon("late", home / "late")

    def at(site: Site) -> tuple[str, ...]:
        return "--host-maddrs", f"/ip4/{site.public}/tcp/{DHT}", "--port", str(EXCHANGE)

    try:
        wishes = ("--ticket-file", str(ticket), "--min-peers", str(given.peers), "--no-check")
        await start(bootstrap, hosts["node"], "bootstrap", str(manifest), *at(sites[0]), *wishes)
        async with asyncio.timeout(READY_S):
            while not ticket.exists():
                assert bootstrap.running, bootstrap.log_tail()
                await asyncio.sleep(LOOK_S)
        shown = ticket.read_text().strip()
        for site in sites:
            if (daemon := peers.get(site.name)) is not None:
                await start(daemon, hosts[site.name], "join", shown, *at(site), *PACE)
        async with asyncio.timeout(READY_S + 2 * given.round_seconds):
            while not all([(await exchanged(daemon)) >= 1 for daemon in peers.values()]):
                await asyncio.sleep(LOOK_S)
        before = [await sight(daemon, hosts[name]) for name, daemon in peers.items()]
        print(f"counting for {given.rounds} rounds", flush=True)
        await asyncio.sleep(given.rounds * given.round_seconds)
        after = [await sight(daemon, hosts[name]) for name, daemon in peers.items()]
        await start(late, hosts["late"], "join", shown, *at(sites[1]), *PACE)
        known_s = await until_known(list(peers.values()), late)
        return Seen(list(zip(before, after, strict=True)), known_s)
    finally:
        for daemon in (late, *peers.values(), bootstrap):
            await daemon.stop(10.0)


async def until_known(peers: Sequence[Daemon], late: Daemon) -> float:
    """Return the seconds from the newcomer's first answer until all peers list it."""
    began: float | None = None
    async with asyncio.timeout(READY_S):
        while True:
            assert late.running, late.log_tail()
            if began is None and (told := await late.status()) is not None:
                began, newcomer = time.monotonic(), told["peer_id"]
            if began is not None and all([newcomer in await listed(daemon) for daemon in peers]):
                return time.monotonic() - began
            await asyncio.sleep(0.5)


async def listed(daemon: Daemon) -> set[str]:
    """Return the names of the peers that a daemon lists."""
    status = await daemon.status()
    return set() if status is None else {peer["peer_id"] for peer in status["peers"]}


async def exchanged(daemon: Daemon) -> int:
    assert daemon.running, daemon.log_tail()
    status = await daemon.status()
    return 0 if status is None else int(status.get("rounds", {}).get("exchanged", 0))


def by_purpose(before: Sight, after: Sight) -> dict[str, int]:
    """Return purpose -> bytes that one peer sent and received between two readings, without payload frames."""
    grown = {
        purpose: after.sent[purpose] - before.sent[purpose] + after.received[purpose] - before.received[purpose]
        for purpose in PURPOSES
    }
    wire = {name: after.wire[name] - before.wire[name] for name in before.wire}
    exchange, directory = (wire[f"{port}_sent"] + wire[f"{port}_received"] for port in ("exchange", "directory"))
    calls = sum(nbytes for purpose, nbytes in grown.items() if purpose != Purpose.DIRECTORY)
    return {
        **{purpose: nbytes for purpose, nbytes in grown.items() if nbytes},
        "connections of the exchange": exchange - calls - (after.payload - before.payload),
        "connections of the directory": directory - grown[Purpose.DIRECTORY],
    }


def show(given: argparse.Namespace, seen: Seen) -> bool:
    looks = seen.looks
    a_day = DAY_S / (given.rounds * given.round_seconds) / 1e6
    peers = [by_purpose(before, after) for before, after in looks]
    names = sorted({name for peer in peers for name in peer}, key=lambda name: -max(p.get(name, 0) for p in peers))
    rows = [[name, *(peer.get(name, 0) * a_day for peer in peers)] for name in names]
    rounds = [after.exchanged - before.exchanged for before, after in looks]
    sent = [
        sum(after.wire[name] - before.wire[name] for name in before.wire if name.endswith("_sent"))
        for before, after in looks
    ]
    off = [
        abs((after.line[way] - before.line[way]) / wire - 1)
        for before, after in looks
        for way, suffix in enumerate(("_sent", "_received"))
        if (wire := sum(after.wire[name] - before.wire[name] for name in before.wire if name.endswith(suffix)))
    ]
    bound = None if given.round_seconds != ROUND_S else MOST_MB
    figures = [
        Figure("control, of the peer that has most", "MB/day", max(sum(p.values()) for p in peers) * a_day, bound),
        Figure("sent by it at most, payloads included", "MB/day", max(sent) * a_day),
        Figure("the peers' own count of the line, most off", "%", 100 * max(off), MOST_OFF),
        Figure("rounds that every peer exchanged meanwhile", "", min(rounds), at_least=given.rounds - 1),
        Figure("until all peers list a newcomer", "s", seen.known_s, KNOWN_S),
    ]
    title = f"MB a day of each peer; {given.peers} peers, {given.rounds} rounds counted"
    table = Table(title, ["purpose", *(f"peer {number}" for number in range(1, len(peers) + 1))], rows)
    return publish(
        given,
        ABOUT,
        figures,
        table,
        variant="" if given.round_seconds == ROUND_S else f"{given.round_seconds:g}s",
    )


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--round-seconds", type=float, default=ROUND_S)
    given = parsed(parser, ABOUT)
    names = ["node", "late", *(f"peer-{number}" for number in range(1, given.peers + 1))]
    sites = [Site(name, f"20.{number}.0.1") for number, name in enumerate(names, 1)]
    rules = RULES.replace("EXCHANGE", str(EXCHANGE))
    with tempfile.TemporaryDirectory(prefix="peer-control-") as folder, internet(sites) as hosts:
        for host in hosts.values():
            # nftables counts before segmentation: packets of up to 64 kB, so most headers on the line are missing
            subprocess.run(["ip", "-n", host, "link", "set", "wan", "gso_max_segs", "1"], check=True)
            subprocess.run(["ip", "netns", "exec", host, "nft", "-f", "-"], input=rules, text=True, check=True)
        seen = asyncio.run(measure(Path(folder), given, hosts, sites))
    return 0 if show(given, seen) else 1


if __name__ == "__main__":
    sys.exit(main())
