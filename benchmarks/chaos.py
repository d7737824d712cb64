"""What do faults cost? The same swarm of real processes twice at the same time, with a seeded plan of faults and
without; both behind relays. Prints the faults with their recoveries, and each measure against its bound:

* participation of the living, and their rounds that ended in time, both counted from outside;
* nobody hung, nobody ended with an error; the ledger's balance; in groups one digest at the end;
* the loss against the control's at the last number of applied tokens that both swarms came to, by interpolation. The
  learning rate follows the rounds, so both have to do about the same in a round: every inner step takes a fixed time,
  which has to be long enough for all trainers of both swarms. What the chaos has applied of what the control has is
  printed; with trainers that only work a part of their time it was .82 to 1.14, and the loss went with it.

    python benchmarks/chaos.py --minutes 10 --peers 8 --every 20 --preset noloco --json chaos.json
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import math
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from peer.cli.run import say
from peer.lab.localswarm.plan import SwarmPlan, derive_manifest, founded_by
from peer.lab.localswarm.report import table, was_killed
from peer.lab.localswarm.run import Swarm
from peer.lab.sim.fault_profiles import chaos_plan, parse_profile
from peer.lab.sim.faults import Fault
from peer.observe.event_codec import read_lines
from peer.observe.events import Evaluated, Event, RoundEnded
from peer.run.manifest import default_text, parse_manifest
from peer.run.presets import resolve

LEAST_PARTICIPATION = 0.9
LEAST_IN_TIME = 0.95
MOST_LOSS = 1.02
Curve = list[tuple[float, float]]
"""(tokens x elements applied by the swarm, mean validation loss), by tokens."""


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
    return founded_by(text, given.peers)


async def play(text: str, faults: tuple[Fault, ...], given: argparse.Namespace, home: Path) -> dict[str, Any]:
    plan = SwarmPlan(
        peers=given.peers,
        manifest=text,
        minutes=None,
        kills=(),
        joins=(),
        speeds={},
        join_options=("--step-seconds", repr(given.step_seconds)),
        home=home,
        seed=given.seed,
        faults=faults,
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
    """Of the swarm below this folder."""
    folders = home.glob("peer-*/runs/*")
    return curve_of(event for folder in folders for event, _ in read_lines(folder / "journal.jsonl"))


def curve_of(journals: Iterable[Event]) -> Curve:
    """The swarm's loss at the work it had applied: the mean over the peers that evaluated before a round, where more
    than half did, at the tokens x elements that all of them together had applied up to there. Counted by rounds, for
    clocks jump here; by the swarm's work and not a peer's own, for who comes back takes over what others trained."""
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
    """Between two points; None beyond them."""
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= tokens <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)
    return None


def verdicts(chaos: dict[str, Any], control: dict[str, Any] | None, group: bool) -> list[tuple[str, str, bool]]:
    """(measure, value, whether it keeps its bound)."""
    swarm, book = chaos["swarm"], chaos["swarm"]["ledger"]
    balance = book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]
    bad = [n for n, p in enumerate(chaos["peers"]) if p["exit_code"] != 0 and not was_killed(p)]
    found = [
        ("participation", f"{swarm['participation']:.3f}", swarm["participation"] >= LEAST_PARTICIPATION),
        ("ended in time", f"{swarm['rounds_ended_in_time']:.3f}", swarm["rounds_ended_in_time"] >= LEAST_IN_TIME),
        ("hung", str(chaos["hung"]), not chaos["hung"]),
        ("ended badly", str(bad), not bad),
        ("ledger", str(balance), balance == 0),
    ]
    if group:
        digests = {peer["outer_digest"] for peer in chaos["peers"]}
        found.append(("digests", str(len(digests)), len(digests) == 1 and None not in digests))
    if control is not None:
        tokens = min(curve[-1][0] for curve in (chaos["curve"], control["curve"]))
        ours, theirs = loss_at(chaos["curve"], tokens), loss_at(control["curve"], tokens)
        assert ours is not None
        assert theirs is not None
        last, its_last = chaos["curve"][-1][1], control["curve"][-1][1]
        found.append(("loss", f"{ours:.4f} at {tokens:.3g}, control {theirs:.4f}", ours <= MOST_LOSS * theirs))
        part = chaos["curve"][-1][0] / control["curve"][-1][0]
        found.append(("at the end", f"{last:.4f}, control {its_last:.4f}; {part:.1%} of its tokens", True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
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
    print()
    for measure, value, kept in verdicts(chaos, control, method.topology == "group"):
        print(f"{measure:<14} {value:<48} {'kept' if kept else 'BROKEN'}")
    if given.json is not None:
        given.json.write_text(json.dumps({"chaos": chaos, "control": control}))


if __name__ == "__main__":
    main()
