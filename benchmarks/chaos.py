"""How much do faults cost a swarm of real processes, and does every peer recover? Linux only.

Promises 2 (the ledger balances), 3 (one truth per group), 8 (local progress survives), 10 (a fault has a reason).
Bounds: live peers have a participation of at least 0.9, and at least 0.95 of their rounds end in time. No peer hangs or
ends badly, the ledger is 0, and a group ends with one digest. The loss is at most 2 % above the control's at equal
work. It takes a few minutes more than `--minutes`.

    python -m benchmarks.chaos [--minutes 10] [--peers 8] [--every 20] [--preset noloco] [--seed 0] [--no-control]
                               [--json FILE] [--results]

The same swarm plays twice at the same time, with a seeded plan of faults and without, both behind relays. Participation
and ends in time are counted from outside. The losses are compared at the last number of applied tokens that both swarms
came to, by interpolation. The learning rate follows the rounds, so both swarms have to do about the same work in a
round. Every inner step takes a fixed time, which has to be long enough for all trainers of both."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.cli.run import say
from peer.lab.localswarm.plan import Churn, PeerSetups, SwarmPlan, derive_manifest, with_founders
from peer.lab.localswarm.report import table, was_killed
from peer.lab.localswarm.run import Swarm
from peer.lab.sim.fault_profiles import chaos_plan, parse_profile
from peer.lab.sim.faults import Fault
from peer.observe.event_codec import read_lines
from peer.observe.events import Evaluated, Event, RoundEnded
from peer.run.manifest import default_text, parse_manifest
from peer.run.resolve import resolve

LEAST_PARTICIPATION = 0.9
LEAST_IN_TIME = 0.95
MOST_LOSS_PERCENT = 2.0
ABOUT = Benchmark(
    "chaos",
    "How much do faults cost a swarm of real processes, and does every peer recover?",
    "2 (conservation), 3 (one truth per group), 8 (local progress survives), 10 (every fault has a reason)",
    smallest="--minutes 0.5 --peers 2 --every 5 --sync-every 5 --no-control",
    is_long=True,
)
Curve = list[tuple[float, float]]
"""(tokens x elements applied by the swarm, mean validation loss), ordered by tokens."""


def manifest_of(given: argparse.Namespace) -> str:
    settings = ("sync.clock=seconds", f"sync.sync_every={given.sync_every}", "train.eval_every=3", *given.set)
    text = derive_manifest(
        default_text(),
        preset=given.preset,
        settings=settings,
        rounds=None,
        steps=None,
        minutes=given.minutes,
        seed=given.seed,
        own_default=False,
    )
    return with_founders(text, given.peers)


async def play(text: str, faults: tuple[Fault, ...], given: argparse.Namespace, home: Path) -> dict[str, Any]:
    plan = SwarmPlan(
        peers=given.peers,
        manifest=text,
        home=home,
        seed=given.seed,
        churn=Churn(faults=faults),
        setups=PeerSetups(join_options=("--step-seconds", repr(given.step_seconds))),
    )
    report = await Swarm(plan, say).run()
    return report | {"curve": curve(home)}


async def both(
    text: str, faults: tuple[Fault, ...], given: argparse.Namespace, home: Path
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    if given.no_control:
        return await play(text, faults, given, home / "chaos"), None
    async with asyncio.TaskGroup() as group:
        chaos = group.create_task(play(text, faults, given, home / "chaos"))
        control = group.create_task(play(text, (), given, home / "control"))
    return chaos.result(), control.result()


def curve(home: Path) -> Curve:
    """Return the curve of the swarm whose homes are in this folder."""
    folders = home.glob("peer-*/runs/*")
    return curve_of(line[0] for folder in folders for line in read_lines(folder / "journal.jsonl") if line is not None)


def curve_of(journals: Iterable[Event]) -> Curve:
    """Return the swarm's loss by applied work, in tokens x elements of all peers together.

    The loss before a round is the mean over the peers that evaluated then, if they are more than half. Points are
    matched by round, not by time, because clocks jump in this benchmark. The whole swarm's work counts, because a peer
    that comes back takes over work of its partners."""
    applied: Counter[int] = Counter()
    losses: defaultdict[int, list[float]] = defaultdict(list)
    for event in journals:
        if isinstance(event, RoundEnded):
            applied[event.round] += event.applied
        elif isinstance(event, Evaluated) and math.isfinite(event.loss):
            losses[event.round].append(event.loss)
    most = max(map(len, losses.values()), default=0)
    return [
        (float(sum(work for ended, work in applied.items() if ended < at)), sum(found) / len(found))
        for at, found in sorted(losses.items())
        if 2 * len(found) > most
    ]


def loss_at(points: Curve, tokens: float) -> float | None:
    """Return the loss interpolated between two points. None: outside the curve."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= tokens <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
    return None


def figures(chaos: dict[str, Any], control: dict[str, Any] | None, group: bool) -> list[Figure]:
    swarm, book = chaos["swarm"], chaos["swarm"]["ledger"]
    balance = book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]
    bad = [n for n, p in enumerate(chaos["peers"]) if p["exit_code"] != 0 and not was_killed(p)]
    found = [
        Figure("participation of the living", "", swarm["participation"], None, LEAST_PARTICIPATION),
        Figure("rounds that ended in time", "", swarm["rounds_ended_in_time"], None, LEAST_IN_TIME),
        Figure("peers that hung", "", len(chaos["hung"]), 0),
        Figure("peers that ended badly", "", len(bad), 0),
        Figure("ledger, off by", "", abs(balance), 0),
    ]
    if group:
        digests = {peer["outer_digest"] for peer in chaos["peers"]}
        found.append(Figure("states at the end of the group", "", len(digests), 1))
        found.append(Figure("members without a state at the end", "", int(None in digests), 0))
    if control is not None:
        tokens = min(curve[-1][0] for curve in (chaos["curve"], control["curve"]))
        ours, theirs = loss_at(chaos["curve"], tokens), loss_at(control["curve"], tokens)
        assert ours is not None
        assert theirs is not None
        found.append(Figure("loss at equal work", "nats a byte", ours))
        found.append(Figure("loss beyond the control's", "%", 100 * (ours / theirs - 1), MOST_LOSS_PERCENT))
        part = chaos["curve"][-1][0] / control["curve"][-1][0]
        found.append(Figure("work, of the control's", "", part))
    return found


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--every", type=float, default=20.0, help="mean seconds between two faults")
    parser.add_argument("--profile", default="all")
    parser.add_argument("--preset", default="noloco")
    parser.add_argument("--sync-every", type=float, default=10.0)
    parser.add_argument("--step-seconds", type=float, default=0.6, help="at least, of an inner step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--no-control", action="store_true")
    given = parsed(parser, ABOUT)
    text = manifest_of(given)
    method = resolve(parse_manifest(text.encode()).sync)
    profile = parse_profile(f"{given.profile}@{given.every}")
    faults = chaos_plan(profile, given.seed, given.peers, given.minutes * 60, given.sync_every)
    home = Path(tempfile.mkdtemp(prefix="peer-chaos-"))
    try:
        chaos, control = asyncio.run(both(text, faults, given, home))
    finally:
        shutil.rmtree(home)
    print(table(chaos))
    if control is not None:
        print(f"\ncontrol:\n{table(control)}")
    kinds = Counter(fault.kind for fault in faults)
    befell = Table(f"{given.peers} peers, seed {given.seed}", ["fault", "times"], [[*one] for one in kinds.items()])
    found = figures(chaos, control, method.topology == "group")
    publish(given, ABOUT, found, befell, variant=given.preset)


if __name__ == "__main__":
    main()
