"""How much does a daemon cost, by the number of peers and by the size of the fragment? Linux only.

Promise 8: local progress. Bound: every due round of a calm swarm is exchanged. Processor seconds are reported without a
bound. About ten minutes with all sizes. Twenty-four peers need 12 GB of memory.

    python -m benchmarks.growth [--peers 2,4,8,16] [--sizes 0.9,20,100] [--rounds 6] [--round-s 10] [--json FILE]
                                [--results]

Swarms of real processes on loopback run one after the other: a bootstrap node and the peers, whose trainers are slow.
Counted are the processor seconds of each daemon in the length of a round. Figures are medians over rounds and peers.
Its trainer and its directory helper (p2pd) have columns of their own. So has what all three need until the last peer
is ready."""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.identity import load_or_create
from peer.lab.bench.machine import cpu_seconds
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.run.home import Home
from peer.run.manifest import default_text, derive, sign_text
from peer.run.schema import parse_manifest

READY_S = 400.0
EXCHANGED = 0.99
"""Least share of due rounds that are exchanged. Below 1, because a round due at the end is not counted by all peers."""
ABOUT = Benchmark(
    "growth",
    "How much does a daemon cost, by the number of peers and by the size of the fragment?",
    "8 (local progress: every due round of a calm swarm is exchanged)",
    smallest="--peers 2 --sizes= --rounds 1 --round-s 5",
    is_long=True,
)
SPEED = 0.03
"""Share of the time in which trainers may work, so that sixteen of them fit on this machine."""
KINDS = ("daemon", "trainer", "p2pd")
READY = ("training", "finished")
SHAPES = {
    0.9: (64, 176, 4),
    5.0: (128, 352, 6),
    20.0: (256, 704, 6),
    100.0: (512, 1408, 8),
    200.0: (640, 1760, 10),
}
"""Approximate MB of fp32 -> hidden size, intermediate size, layers."""


def manifest_of(shape: tuple[int, int, int], round_s: float) -> str:
    hidden, inner, layers = shape
    settings = {
        "model.hidden_size": hidden,
        "model.intermediate_size": inner,
        "model.num_hidden_layers": layers,
        "train.batch": 1,
        "train.total_rounds": 100_000,
        "train.eval_every": 1000,
        "sync.sync_every": round_s,
    }
    return derive(default_text(), [f"{key}={value}" for key, value in settings.items()])


async def swarm(folder: Path, text: str, peers: int, rounds: int, round_s: float) -> dict[str, Any]:
    manifest = folder / "run.toml"
    bootstrap = Daemon("bootstrap", folder / "bootstrap")
    own = Home(bootstrap.home)
    sign_text(text, load_or_create(own.identity), manifest)  # with the operator's key the node may sign the run's start
    daemons = [Daemon(f"peer-{number}", folder / f"peer-{number}") for number in range(peers)]
    try:
        ticket = await start_bootstrap(bootstrap, manifest, peers)
        began = time.monotonic()
        for daemon in daemons:
            await start_peer(daemon, ticket, threads=1, speed=SPEED, min_peers=peers)
        await all_ready(daemons)
        ready_s, start = time.monotonic() - began, [used(daemon) for daemon in daemons]
        await all_exchanged(daemons)
        before, used_before = [await counts(daemon) for daemon in daemons], [used(daemon) for daemon in daemons]
        costs = await asyncio.gather(*(rounds_of(daemon, rounds, round_s) for daemon in daemons))
        used_after, after = [used(daemon) for daemon in daemons], [await counts(daemon) for daemon in daemons]
    finally:
        await asyncio.gather(*(daemon.stop(15.0) for daemon in [*daemons, bootstrap]))
    each = [cost for daemon in costs for cost in daemon]
    return {
        "cpu_s": statistics.median(each),
        "least": min(each),
        "most": max(each),
        "daemon_rounds": len(each),
        "exchanged": _more(before, after, "exchanged") / max(1, _more(before, after, "due")),
        "ready_s": ready_s,
        **{f"start, {kind}": statistics.median(one[kind] for one in start) for kind in KINDS},
        **{
            f"a round, {kind}": statistics.median(
                (late[kind] - early[kind]) / rounds for early, late in zip(used_before, used_after, strict=True)
            )
            for kind in KINDS[1:]
        },
    }


def used(daemon: Daemon) -> dict[str, float]:
    """Return the processor seconds used so far by a daemon, its trainer and its directory helper."""
    assert daemon.process is not None
    own = psutil.Process(daemon.process.pid)
    found = {"daemon": cpu_of(daemon)}
    for child in own.children():
        times = child.cpu_times()
        found["trainer" if "peer.trainer" in child.cmdline() else "p2pd"] = times.user + times.system
    return found


async def all_ready(daemons: list[Daemon]) -> None:
    """Wait until all peers are ready to train. Peers that are ready are not asked again."""
    waiting = list(daemons)
    async with asyncio.timeout(READY_S):
        while waiting:
            await asyncio.sleep(0.5)
            for daemon in list(waiting):
                assert daemon.running, daemon.log_tail()
                if ((await daemon.status()) or {}).get("status") in READY:
                    waiting.remove(daemon)


async def counts(daemon: Daemon) -> dict[str, int]:
    """Return the counts of due rounds and their outcomes."""
    found: dict[str, int] = ((await daemon.status()) or {}).get("rounds") or {}
    return found


def _more(before: list[dict[str, int]], after: list[dict[str, int]], what: str) -> int:
    return sum(late.get(what, 0) - early.get(what, 0) for early, late in zip(before, after, strict=True))


async def all_exchanged(daemons: list[Daemon]) -> None:
    """Wait until each peer has exchanged once, because the first exchange imports modules."""
    async with asyncio.timeout(READY_S):
        for daemon in daemons:
            while not (await counts(daemon)).get("exchanged"):
                assert daemon.running, daemon.log_tail()
                await asyncio.sleep(1.0)


async def rounds_of(daemon: Daemon, rounds: int, round_s: float) -> list[float]:
    """Return the processor seconds of `rounds` intervals of a round's length, each with the work of one round. The
    daemon gets no requests meanwhile."""
    marks, began = [cpu_of(daemon)], time.monotonic()
    for number in range(1, rounds + 1):
        await asyncio.sleep(began + number * round_s - time.monotonic())
        marks.append(cpu_of(daemon))
    return [later - earlier for earlier, later in pairwise(marks)]


def cpu_of(daemon: Daemon) -> float:
    assert daemon.process is not None
    used = cpu_seconds(daemon.process.pid)
    assert used is not None, "not Linux, or the daemon is gone"
    return used


def run(shape: tuple[int, int, int], peers: int, rounds: int, round_s: float) -> dict[str, Any]:
    text = manifest_of(shape, round_s)
    with tempfile.TemporaryDirectory(prefix="peer-growth-") as folder:
        found = asyncio.run(swarm(Path(folder), text, peers, rounds, round_s))
    row = {"peers": peers, "mb": 4 * parse_manifest(text.encode()).model.parameters / 1e6, **found}
    print(row, flush=True)
    return row


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--peers", default="2,4,8,16")
    parser.add_argument("--sizes", default="0.9,20,100", help=f"MB of fp32; known: {', '.join(map(str, SHAPES))}")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--round-s", type=float, default=10.0)
    given = parsed(parser, ABOUT)
    rounds, round_s = given.rounds, given.round_s
    by_peers = [run(SHAPES[0.9], int(peers), rounds, round_s) for peers in given.peers.split(",") if peers]
    by_size = [run(SHAPES[float(size)], 2, rounds, round_s) for size in given.sizes.split(",") if size]
    heads = ["peers", "MB of fp32", "CPU s a round", "least", "most", "daemon rounds", "exchanged", "ready after s"]
    heads += [f"CPU s until all were ready, {kind}" for kind in KINDS]
    heads += [f"CPU s a round, {kind}" for kind in KINDS[1:]]
    figures, rows = [], by_peers + by_size
    for row in rows:
        swarm = f"{row['peers']} peers, {row['mb']:.3g} MB"
        figures.append(Figure(f"processor time a round, {swarm}", "s", row["cpu_s"]))
        start_s = sum(row[f"start, {kind}"] for kind in KINDS)
        figures.append(Figure(f"processor time of a peer's start, {swarm}", "s", start_s))
        figures.append(Figure(f"exchanged of what was due, {swarm}", "", row["exchanged"], None, EXCHANGED))
    publish(given, ABOUT, figures, Table(f"rounds of {round_s:g} s", heads, [list(row.values()) for row in rows]))


if __name__ == "__main__":
    main()
