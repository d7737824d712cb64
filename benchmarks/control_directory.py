"""How many bytes does the directory of a larger swarm cost each peer? Linux, as root.

No bound. About five minutes and `--minutes`; what else the machine does matters little.

    sudo python -m benchmarks.control_directory [--peers 64] [--minutes 10] [--gone] [--json FILE] [--results]

The directories are real, each with a p2pd of its own in a network namespace of its own, and with the looks and
announcements of rounds of 300 s (`peer.membership.peer_table`). Nothing is trained or exchanged, and one process runs
all of them. The bytes are those of the interface of each p2pd, IP headers included. Five minutes
have no search for nodes in them, and ten have one, which a settled peer makes once an hour: see the model for its cost.
The first peer is the node of the ticket, which is told apart, for it is the operator's."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

from benchmarks.control_model import UnitCosts, modelled, relays_in_record, unit_costs
from benchmarks.nat_network import Site, internet, run
from benchmarks.result import Benchmark, Figure, Table, options, publish
from peer.clock.run_clock import RunClock
from peer.discovery.dht_node import process
from peer.discovery.directory import DhtDirectory
from peer.errors import DirectoryFailed
from peer.identity import load_or_create
from peer.membership.failure_detector import FailureDetector
from peer.membership.own_record import OwnRecord
from peer.membership.peer_table import PeerTable, lifetime, pace
from peer.node.open import NODE_LIMITS
from peer.observe.control_bytes import DIRECTORY
from peer.protocol.messages import WIRE_VERSION, PeerId, PeerRecord, RunId, Status
from peer.python_child import run_python

ABOUT = Benchmark(
    "control_directory",
    "How many bytes does the directory of a larger swarm cost each peer?",
    "no bound",
)
ROUND_S, DAY_S = 300.0, 86_400.0
SETTLE_S = 240.0
"""Seconds after the last start in which looks become rare."""
RUN_OUT_S = 60.0
"""Seconds after the node's end in which peers notice it."""
RUN = RunId(b"control directory".ljust(32, b"."))
PORT = 4811
STARTS = 5
MODELLED = (4, 24, 64, 1000)
ETHERNET = 14
IN_NAMESPACE = """#!/bin/sh
for given in "$@"; do
  case "$given" in -hostAddrs=/ip4/*) host="${given#*/ip4/}"; host="${host%%/*}" ;; esac
done
exec IP netns exec "peer-$host-TAG" P2PD "$@"
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
            status=Status.TRAINING if number else Status.SERVING,
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
            limits=None if number else NODE_LIMITS,
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


def counted(peers: int) -> list[int]:
    """Return the bytes at the port of each peer so far, without the headers of Ethernet."""
    return [_told(number, "bytes") - ETHERNET * _told(number, "packets") for number in range(peers)]


def _told(number: int, what: str) -> int:
    of = Path(f"/sys/class/net/to{number}/statistics")
    return sum(int((of / f"{way}_{what}").read_text()) for way in ("rx", "tx"))


async def measure(given: argparse.Namespace, home: Path) -> tuple[list[list[float]], UnitCosts]:
    """Return a row of each peer: MB a day on its interface, MB a day of messages, connections, and peers it lists. And
    what single things cost in this swarm."""
    members, duties, ticket = list[Member](), list[asyncio.Task[None]](), list[str]()
    try:
        for number in range(given.peers):
            members.append(await member(number, home, ticket))
            duties.append(asyncio.create_task(members[-1].view.run()))
            ticket = ticket or [one for one in members[0].directory.addresses() if address(0) in one]
        await asyncio.sleep(SETTLE_S)
        one, node = members[1], members[0]
        unit = await unit_costs(one.directory, node.directory, RUN, lambda: counted(2)[1], one.view.announce)
        if given.gone:
            await node.directory.close()
            await asyncio.sleep(RUN_OUT_S)
        began, wire, said = time.monotonic(), counted(given.peers), [one.messages() for one in members]
        print(f"{given.peers} peers are up; counting for {given.minutes:g} minutes", flush=True)
        await asyncio.sleep(60.0 * given.minutes)
        now, a_day = counted(given.peers), DAY_S / (time.monotonic() - began) / 1e6
        rows = [
            [
                (now[one.number] - wire[one.number]) * a_day,
                (one.messages() - before) * a_day,
                len(await connections(one)),
                len(one.view.peers),
            ]
            for one, before in zip(members, said, strict=True)
        ]
        return rows, unit
    finally:
        for duty in duties:
            duty.cancel()
        await asyncio.wait(duties)
        await asyncio.gather(*(one.directory.close() for one in members))


async def connections(one: Member) -> dict[bytes, list[str]]:
    node = one.directory._helper.node
    return {} if node is None else await node._process.connections(5.0)


def show(given: argparse.Namespace, rows: list[list[float]], unit: UnitCosts) -> bool:
    node, *peers = rows
    peers.sort()
    kinds = {"least": peers[0], "median": peers[len(peers) // 2], "most": peers[-1], "the ticket's node": node}
    listed = given.peers - (2 if given.gone else 1)
    mean = statistics.mean(wire for wire, *_ in peers)
    figures = [
        Figure("the directory, mean of the peers", "MB/day", mean),
        Figure("the directory, of the peer that has most", "MB/day", peers[-1][0]),
        Figure("peers that the peer with the fewest lists", "", min(row[3] for row in peers), at_least=listed),
    ]
    heads = ["peer", "MB a day", "of it messages", "connections at the end", "peers listed"]
    table = Table(
        f"{given.peers} peers, {given.minutes:g} minutes", heads, [[name, *row] for name, row in kinds.items()]
    )
    single = Table("one of each, bytes at the peer", ["what", "bytes"], [[n, v] for n, v in asdict(unit).items()])
    look_s = pace(ROUND_S)
    renewal_s, relayed = lifetime(look_s) / 3, relays_in_record()
    models = {f"{n}, all open": modelled(n, unit, look_s, renewal_s) for n in MODELLED}
    models |= {f"{n}, all behind relays": modelled(n, unit, look_s, renewal_s, relayed) for n in MODELLED[-2:]}
    model = Table(
        "MODELLED from these, not measured: MB a day of a peer",
        ["peers", *models[f"{MODELLED[0]}, all open"]],
        [[name, *days.values()] for name, days in models.items()],
    )
    variant = f"{given.peers}-gone" if given.gone else str(given.peers)
    return publish(given, ABOUT, figures, table, single, model, variant=variant)


@contextlib.contextmanager
def network(peers: int) -> Iterator[tuple[str, str]]:
    """Make a namespace for each peer, all of them at one router. Yield the router's, and the end of all names."""
    with internet([Site(address(number), address(number)) for number in range(peers)]) as made:
        tag = made[address(0)].rpartition("-")[2]
        core = f"peer-core-{tag}"
        # Each start asks there whether its port is free.
        run("ip", "netns", "exec", core, "sysctl", "-qw", "net.ipv4.ip_nonlocal_bind=1")
        for number in range(peers):
            host = made[address(number)]
            run("ip", "netns", "exec", host, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
            for space, device in ((core, f"to{number}"), (host, "wan")):  # a packet is to be one of the wire
                run("ip", "-n", space, "link", "set", device, "gso_max_segs", "1")
        yield core, tag


def in_namespace(folder: Path, tag: str) -> Path:
    """Write a program that starts p2pd in the namespace of the address that it is told to listen at."""
    words = {"IP": shutil.which("ip") or "ip", "TAG": tag, "P2PD": str(files("hivemind.hivemind_cli") / "p2pd")}
    program, path = IN_NAMESPACE, folder / "p2pd"
    for word, meant in words.items():
        program = program.replace(word, meant)
    path.write_text(program)
    path.chmod(0o700)
    return path


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--peers", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--gone", action="store_true", help="count when the operator's node is gone")
    parser.add_argument("--inside", default="", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not given.inside:
        with network(given.peers) as (core, tag):
            again = ("benchmarks.control_directory", *sys.argv[1:], "--inside", tag)
            return run_python(*again, prefix=("ip", "netns", "exec", core), check=False).returncode
    del sys.argv[-2:]
    with tempfile.TemporaryDirectory(prefix="peer-directory-") as folder:
        process.BINARY = in_namespace(Path(folder), given.inside)
        return 0 if show(given, *asyncio.run(measure(given, Path(folder)))) else 1


if __name__ == "__main__":
    sys.exit(main())
