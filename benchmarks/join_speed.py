"""How long does it take from `peer join` to the first inner step, while four peers train on this machine?

    python benchmarks/join_speed.py [--peers 4] [--joins 5] [--set KEY=VALUE] [--out join.json]

One newcomer after the other joins by loopback, takes part in its first round and leaves again. Prints a line for each,
then the medians: all of it, measured from outside, and each phase as the newcomer's journal tells it; and how many had
their first exchange in the first round due after one worked `sync_every`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from peer.identity import load_or_create
from peer.join.report import BESIDE, PHASES
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.run.manifest import default_text, derive, sign_text

SETTINGS = ("sync.clock=seconds", "sync.sync_every=10", "train.total_rounds=100000", "train.eval_every=1000")
READY_S, JOIN_S, FIRST_ROUND_S = 240.0, 240.0, 240.0
TOGETHER_S = 15.0
"""The peers train so long before the first newcomer comes."""


async def trains(daemon: Daemon) -> bool:
    status = await daemon.status()
    return bool(status and status.get("steps", 0) > 0)


async def all_train(daemons: list[Daemon]) -> None:
    async with asyncio.timeout(READY_S):
        while not all([await trains(daemon) for daemon in daemons]):
            await asyncio.sleep(0.5)


def first_event(home: Path, kind: str) -> dict[str, Any] | None:
    """Of the newcomer's journal."""
    for journal in home.glob("runs/*/journal.jsonl"):
        for line in journal.read_text().splitlines():
            if f'"kind":"{kind}"' in line:
                event: dict[str, Any] = json.loads(line)
                return event
    return None


async def told(daemon: Daemon, kind: str, timeout_s: float) -> dict[str, Any]:
    """`first_event`, waited for."""
    async with asyncio.timeout(timeout_s):
        while (event := first_event(daemon.home, kind)) is None:
            assert daemon.running, daemon.last_words()
            await asyncio.sleep(0.1)
        return event


async def join(daemon: Daemon, ticket: str) -> dict[str, Any]:
    """One join: seconds until the first inner step, its phases, and what became of the first round."""
    began, load = time.time(), os.getloadavg()[0]
    await start_peer(daemon, ticket, threads=1, speed=1.0, min_peers=1)
    try:
        joined = await told(daemon, "joined", JOIN_S)
        due = await told(daemon, "round_due", FIRST_ROUND_S)
        ended = await told(daemon, "round_ended", FIRST_ROUND_S)
        planned = await told(daemon, "training_began", FIRST_ROUND_S)
    finally:
        await daemon.stop(15.0)
    return {
        "seconds": joined["t"] - began,
        "load": load,
        "phases": {phase: joined[phase] for phase in (*PHASES, *BESIDE)},
        "due_after_s": due["t"] - planned["t"],
        "in_time": planned["round"] == ended["round"] and ended["outcome"] == "exchanged",
    }


async def measure(folder: Path, peers: int, joins: int, settings: tuple[str, ...]) -> list[dict[str, Any]]:
    manifest = folder / "run.toml"
    sign_text(derive(default_text(), [*SETTINGS, *settings]), load_or_create(folder / "operator.key"), manifest)
    bootstrap = Daemon("bootstrap", folder / "bootstrap")
    daemons = [Daemon(f"peer-{number}", folder / f"peer-{number}") for number in range(peers)]
    try:
        ticket = await start_bootstrap(bootstrap, manifest, peers)
        for daemon in daemons:
            await start_peer(daemon, ticket, threads=1, speed=1.0, min_peers=peers)
        await all_train(daemons)
        await asyncio.sleep(TOGETHER_S)
        rows = []
        for number in range(joins):
            row = await join(Daemon(f"newcomer-{number}", folder / f"newcomer-{number}"), ticket)
            parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in row["phases"].items())
            first = f"round due after {row['due_after_s']:.1f} s, {'' if row['in_time'] else 'NOT '}exchanged"
            print(f"join {number}: {row['seconds']:.1f} s at load {row['load']:.1f}: {parts}; {first}", flush=True)
            rows.append(row)
        return rows
    finally:
        await asyncio.gather(*(daemon.stop(15.0) for daemon in [*daemons, bootstrap]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--joins", type=int, default=5)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="peer-join-speed-") as name:
        rows = asyncio.run(measure(Path(name), options.peers, options.joins, tuple(options.settings)))
    print(f"\n{'phase':<32} {'median s':>9}")
    for phase in dict.fromkeys(phase for row in rows for phase in row["phases"]):
        seconds = statistics.median(row["phases"].get(phase, 0.0) for row in rows)
        print(f"{phase:<32} {seconds:>9.2f}")
    print(f"{'to the first inner step':<32} {statistics.median(row['seconds'] for row in rows):>9.2f}")
    print(f"first exchange in its round: {sum(row['in_time'] for row in rows)} of {len(rows)}")
    if options.out:
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
