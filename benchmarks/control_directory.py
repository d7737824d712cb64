"""How many bytes does the directory of a larger swarm cost each peer? Linux, as root, with nftables.

No bound: what p2pd keeps its connections alive with cannot be turned off. About five minutes and `--minutes`, on a
machine that does nothing else.

    sudo python -m benchmarks.control_directory [--peers 64] [--minutes 10] [--json FILE] [--results]

The directories are real, each with a p2pd of its own, an address of its own on the loopback of one network namespace,
and the looks and announcements of rounds of 300 s (`peer.membership.peer_table`). All of them run in one process, and
nothing is trained or exchanged. nftables counts the packets of each address, IP headers included. Count for ten minutes
at least: then searches that p2pd makes for itself are in it. The first peer is the node of the ticket, which is told
apart, for it is the operator's."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.nat_network import Namespaces
from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.clock.run_clock import RunClock
from peer.discovery.directory import DhtDirectory
from peer.errors import DirectoryFailed
from peer.identity import load_or_create
from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import PeerTable, lifetime, pace
from peer.observe.control_bytes import DIRECTORY
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status

ABOUT = Benchmark(
    "control_directory",
    "How many bytes does the directory of a larger swarm cost each peer?",
    "no bound",
)
ROUND_S, DAY_S = 300.0, 86_400.0
SETTLE_S = 240.0
"""Seconds after the last start in which looks become rare."""
RUN = RunId(b"control directory".ljust(32, b"."))
PORT = 4811
STARTS = 5
RULES = """
table inet count {
  set bytes { type ipv4_addr; flags dynamic; size 4096; counter; }
  chain in {
    type filter hook input priority 0
    update @bytes { ip saddr }
    update @bytes { ip daddr }
  }
}
"""


def address(number: int) -> str:
    return f"20.0.{number // 200 + 1}.{number % 200 + 1}"


@dataclass
class Member:
    """One peer of the swarm: its directory, and what looks into it and announces."""

    number: int
    directory: DhtDirectory
    view: PeerTable

    def messages(self) -> int:
        control = self.directory.control
        return control.sent[DIRECTORY] + control.received[DIRECTORY]


async def member(number: int, home: Path, ticket: list[str]) -> Member:
    """Start one."""
    path, clock, life_s = home / f"{number}.key", RunClock(), lifetime(pace(ROUND_S))
    identity, host = load_or_create(path), address(number)

    def describe() -> PeerRecord:
        now = clock.now()
        return PeerRecord(
            peer_id=PeerId(identity.peer_id),
            run_id=RUN,
            endpoints=(f"{host}:4810",),
            reachable=True,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            round=1,
            tokens_per_s=1000.0,
            status=Status.TRAINING,
            issued_at=now,
            expires_at=now + life_s,
        )

    async def start() -> DhtDirectory:
        return await DhtDirectory.start(
            identity=identity,
            identity_path=path,
            run_id=RUN,
            initial_peers=ticket,
            host_maddrs=(f"/ip4/{host}/tcp/{PORT}",),
            cache_path=home / f"{number}.json",
        )

    for _ in range(STARTS):
        with contextlib.suppress(DirectoryFailed):  # a loaded machine may not answer in time
            directory = await start()
            break
    else:
        directory = await start()
    watch = FailureDetector(clock.now, life_s, pace(ROUND_S))
    own = OwnRecord(describe, describe)
    view = PeerTable(directory, clock, random.Random(number), own, watch, pace(ROUND_S))
    return Member(number, directory, view)


def counted() -> dict[str, int]:
    """Return the bytes of each address so far."""
    command = ["nft", "-j", "list", "set", "inet", "count", "bytes"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
    sets = [entry["set"] for entry in json.loads(told)["nftables"] if "set" in entry]
    return {one["elem"]["val"]: one["elem"]["counter"]["bytes"] for one in sets[0].get("elem", [])}


async def measure(given: argparse.Namespace, home: Path) -> list[list[float]]:
    """Return a row of each peer: MB a day on its interface, MB a day of messages, connections, and peers it lists."""
    members, duties, ticket = list[Member](), list[asyncio.Task[None]](), list[str]()
    try:
        for number in range(given.peers):
            members.append(await member(number, home, ticket))
            duties.append(asyncio.create_task(members[-1].view.run()))
            ticket = ticket or [one for one in members[0].directory.addresses() if address(0) in one]
        await asyncio.sleep(SETTLE_S)
        began, wire, said = time.monotonic(), counted(), [one.messages() for one in members]
        print(f"{given.peers} peers are up; counting for {given.minutes:g} minutes", flush=True)
        await asyncio.sleep(60.0 * given.minutes)
        now, a_day = counted(), DAY_S / (time.monotonic() - began) / 1e6
        return [
            [
                (now.get(host, 0) - wire.get(host, 0)) * a_day,
                (one.messages() - before) * a_day,
                len(await connections(one)),
                len(one.view.peers),
            ]
            for one, before in zip(members, said, strict=True)
            for host in [address(one.number)]
        ]
    finally:
        for duty in duties:
            duty.cancel()
        await asyncio.wait(duties)
        await asyncio.gather(*(one.directory.close() for one in members))


async def connections(one: Member) -> dict[bytes, list[str]]:
    node = one.directory._helper.node
    return {} if node is None else await node._process.connections(5.0)


def show(given: argparse.Namespace, rows: list[list[float]]) -> bool:
    node, *peers = rows
    peers.sort()
    kinds = {"least": peers[0], "median": peers[len(peers) // 2], "most": peers[-1], "the ticket's node": node}
    mean = statistics.mean(wire for wire, *_ in peers)
    figures = [
        Figure("the directory, mean of the peers", "MB/day", mean),
        Figure("the directory, of the peer that has most", "MB/day", peers[-1][0]),
        Figure("peers that the peer with the fewest lists", "", min(row[3] for row in peers), at_least=given.peers - 1),
    ]
    heads = ["peer", "MB a day", "of it messages", "connections at the end", "peers listed"]
    table = Table(
        f"{given.peers} peers, {given.minutes:g} minutes", heads, [[name, *row] for name, row in kinds.items()]
    )
    return publish(given, ABOUT, figures, table, variant=str(given.peers))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--peers", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        made = Namespaces()
        try:
            network = made.add("directory")
            made.ip(network, "address", "add", "20.0.0.1/16", "dev", "lo")
            made.ip(network, "link", "set", "lo", "mtu", "1500")
            made.within(network, "nft", "-f", "-", given=RULES)
            again = [sys.executable, "-m", "benchmarks.control_directory", *sys.argv[1:], "--inside"]
            return subprocess.run(["ip", "netns", "exec", network, *again], check=False).returncode
        finally:
            made.close()
    sys.argv.remove("--inside")
    with tempfile.TemporaryDirectory(prefix="peer-directory-") as folder:
        return 0 if show(given, asyncio.run(measure(given, Path(folder)))) else 1


if __name__ == "__main__":
    sys.exit(main())
