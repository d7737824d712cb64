"""Can volunteers of two versions train in one swarm, and does a new version resume an old home?

Promises 2 (the ledger balances), 3 (one truth per group) and 8 (local progress survives a restart), across versions.
Bounds: nothing wrong, 0.95 of each peer's rounds exchanged, ledger 0. About nine minutes for all presets.

    python -m benchmarks.mixed_swarm --old DIR --new DIR [--rounds 20] [--preset noloco ...] [--json FILE] [--results]

DIR is a checkout with `.venv/bin/peer`. Two peers of each go through every preset as real processes on loopback, with a
bootstrap node of either side in turn. Every peer has to end well, exchange in at least `LEAST` of its rounds (with
`none` in none), and meet the other side. Group members have to agree on each digest. At last a swarm of old peers
leaves in the middle, and the new side resumes its homes, the bootstrap node's too.

`across` counts a peer's rounds with somebody of the other side, `pairs` the other side's peers that each peer met."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.checkouts import Failed, Node, Row, Side, called
from benchmarks.result import Benchmark, Figure, Table, options, publish

ABOUT = Benchmark(
    "mixed_swarm",
    "Can volunteers of two versions train in one swarm, and does a new version resume an old home?",
    "2 (conservation), 3 (one truth per group), 8 (local progress survives), across versions",
)
PRESETS = ("noloco", "streaming-noloco", "diloco", "streaming-diloco", "none")
RESUMED = ("noloco", "streaming-diloco")
"""The new side takes over old homes of these presets: between them they hold every kind of state."""
STEP_S = 0.03  # at least, of an inner step: peers which share two cores are then equally fast
LEAST = 0.95  # of its rounds a peer has to exchange; a busy machine may cost it the rest
SWARM_S, POLL_S = 300.0, 0.1
PACE = ("--threads", "1", "--step-seconds", repr(STEP_S), "--checkpoint-every", "5", "--plain", "--yes")
ROUNDS = ("exchanged", "solo", "refused", "missed", "skipped")
COLUMNS = (*ROUNDS, "across", "pairs")
MAGIC, BASE = int.from_bytes(b"peercnt\0", "little"), 7
"""counters.bin holds magic, version, fragments, tokens, steps and two times; then one base for each fragment."""


@dataclass
class Swarm:
    """The processes of one run below one folder, and what is known of its method."""

    folder: Path
    preset: str
    bootstrap: Node
    peers: list[Node]
    total: int
    topology: str
    elements: list[int]
    """The size of each fragment."""
    began: float = field(default_factory=time.monotonic)
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def plan(cls, folder: Path, preset: str, bootstrap: Side, sides: Sequence[Side], rounds: int) -> Swarm:
        """The bootstrap node's side writes a manifest that both read. Peers begin together, so all found a group."""
        node = Node("bootstrap", bootstrap, folder / "bootstrap")
        shown = node.manifest("method.toml", preset, ())
        method, elements = shown["method"], [shown["parameters"]]
        if method["fragments"] > 1:  # a pair sends each fragment whole: with fp32 its bytes tell its size
            cut = [f"sync.{name}={method[name]}" for name in ("fragments", "fragment_layout")]
            sent = node.manifest("cut.toml", "streaming-noloco", [*cut, "sync.codec=fp32"])["cost"]["fragment_bytes"]
            elements = [nbytes // 4 for nbytes in sent]
        total = rounds * method["fragments"]
        founders = [f"sync.founders={len(sides)}"] if method["topology"] == "group" else []
        node.manifest("run.toml", preset, ["format=1", f"train.total_rounds={total}", *founders])
        peers = [Node(f"peer {number}", side, folder / f"peer-{number}") for number, side in enumerate(sides, 1)]
        return cls(folder, preset, node, peers, total, method["topology"], elements)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """All processes, from their start until nobody is left running."""
        ticket, ready = self.folder / "ticket", ("--min-peers", str(len(self.peers)))
        ticket.unlink(missing_ok=True)
        try:
            self.bootstrap.start("bootstrap", str(self.folder / "run.toml"), "--ticket-file", str(ticket), *ready)
            self.wait(lambda _: ticket.exists() and bool(ticket.read_text().strip()), "ticket")
            for peer in self.peers:
                peer.start("join", f"@{ticket}", *PACE, *ready)
            yield
        finally:
            for node in (*self.peers, self.bootstrap):
                if node.process is not None:
                    node.process.terminate()
            for node in (*self.peers, self.bootstrap):
                node.end()

    def wait(self, done: Callable[[Node], bool], what: str) -> None:
        """The script polls until it is done for every peer. Raises Failed when a process fails or the time is over."""
        while not all(done(peer) for peer in self.peers):
            broken = [node for node in (self.bootstrap, *self.peers) if node.code]
            if broken or time.monotonic() > self.began + SWARM_S:
                ends = ", ".join(f"{node.name} ended with {node.code}" for node in broken) or "nobody ended"
                raise Failed(f"no {what} in time: {ends}. See {self.folder}/*/daemon.log")
            time.sleep(POLL_S)

    def ask_each(self) -> None:
        """The script notes whose own status does not balance or does not know the others. Raises Failed."""
        for peer in self.peers:
            report = json.loads(called(peer.side.program, "status", "--json", "--home", str(peer.home)))
            known = {peer.peer_id, *(one["peer_id"] for one in report["peers"])}
            if imbalance(report["ledger"]) or {one.peer_id for one in self.peers} - known:
                self.wrong.append(f"{peer.name}: status tells {report['ledger']} and knows {sorted(known)}")

    def result(self, wrong: Sequence[str] = ()) -> Row:
        """The swarm's row of the report, with an account of every peer."""
        sides = {peer.peer_id: peer.side.name for peer in self.peers}
        rows = [account(peer, sides, self.elements) for peer in self.peers]
        return {
            "preset": self.preset,
            "bootstrap": self.bootstrap.side.name,
            "total_rounds": self.total,
            "seconds": round(time.monotonic() - self.began, 1),
            "peers": rows,
            "wrong": [*self.wrong, *wrong, *findings(self, rows, mixed=len(set(sides.values())) > 1)],
        }


def account(peer: Node, sides: dict[str, str], elements: list[int]) -> Row:
    """Tell what one peer left under its home. `sides` tells whose each peer id is."""
    ended = peer.events("round_ended")
    done = {event["round"] for event in ended}
    met = [set(event["partner"].split()) for event in ended if event["outcome"] == "exchanged"]
    partners = Counter(one for some in met for one in some)
    strangers = {one for one, side in sides.items() if side != peer.side.name}
    counts = Counter(event["outcome"] for event in ended)
    missed = {event["round"] for event in peer.events("round_missed", "sat_out")} - done
    left_out = {one for event in peer.events("skipped") for one in range(event["from_round"], event["to_round"])}
    across, pairs = sum(bool(strangers & some) for some in met), len(strangers & partners.keys())
    counts.update(missed=len(missed), skipped=len(left_out - done - missed), across=across, pairs=pairs)
    return {
        "name": peer.name,
        "side": peer.side.name,
        "peer_id": peer.peer_id,
        "exit_code": peer.code,
        "rounds": {name: counts[name] for name in COLUMNS},
        "partners": dict(partners),
        "digests": {f"{event['round']}/{event['fragment']}": event["digest"] for event in ended if event["digest"]},
        "reasons": dict(Counter(event["reason"] for event in ended if event["reason"])),
        "ledger": ledger(peer, elements),
    }


def ledger(peer: Node, elements: list[int]) -> dict[str, int]:
    """The journal gives applied and dropped, the trainer's counters processed, its base counters outstanding.

    A peer writes its journal before a base counter moves, hence the larger of the two. Raises Failed."""
    (path,) = peer.home.glob("runs/*/counters.bin")
    raw = path.read_bytes()
    words = struct.unpack(f"<{len(raw) // 8}Q", raw)
    if words[:3] != (MAGIC, 1, len(elements)) or peer.events("totals"):
        raise Failed(f"{path} or the journal beside it is of a kind that this benchmark cannot count")
    tokens, covered = words[3], list(words[BASE:])
    booked = peer.events("round_ended", "dropped")
    for event in booked:
        covered[event["fragment"]] = max(covered[event["fragment"]], event["upto"])
    return {
        "processed": tokens * sum(elements),
        "applied": sum(event.get("applied", 0) for event in booked),
        "dropped": sum(event["dropped"] for event in booked),
        "outstanding": sum((tokens - upto) * size for upto, size in zip(covered, elements, strict=True)),
    }


def imbalance(book: dict[str, int]) -> int:
    return book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]


def findings(swarm: Swarm, rows: list[Row], mixed: bool) -> Iterator[str]:
    """Every sentence that tells what a peer should not have done. `mixed`: peers of both sides were there."""
    exchanging = swarm.topology != "solo"
    for row in rows:
        name, rounds = f"{row['name']} ({row['side']})", row["rounds"]
        if row["exit_code"] != 0:
            yield f"{name} ended with {row['exit_code']}"
        if off := imbalance(row["ledger"]):
            yield f"{name}: the ledger is off by {off}"
        if sum(rounds[name] for name in ROUNDS) != swarm.total:
            yield f"{name} accounts for another number of rounds than {swarm.total}: {rounds}"
        too_few = exchanging and mixed and (rounds["exchanged"] < LEAST * swarm.total or not rounds["across"])
        if too_few or (rounds["exchanged"] and not exchanging):
            yield f"{name} exchanged {rounds['exchanged']} of {swarm.total} rounds: {row['reasons']}"
    digests = {found for row in rows for found in row["digests"].items()}
    if split := [key for key, count in Counter(key for key, _ in digests).items() if count > 1]:
        yield f"members disagree about round/fragment {', '.join(split)}"


def together(folder: Path, preset: str, bootstrap: Side, sides: tuple[Side, Side], rounds: int) -> Row:
    """Four peers, two of each side, train to the end of a run. Raises Failed."""
    swarm = Swarm.plan(folder, preset, bootstrap, (*sides, *sides), rounds)
    with swarm.running():
        swarm.wait(lambda peer: len(peer.events("round_ended")) >= swarm.total // 4, "quarter of the run")
        swarm.ask_each()
        swarm.wait(lambda peer: peer.code is not None, "end")
    return swarm.result()


def taken_over(folder: Path, preset: str, old: Side, new: Side, rounds: int) -> Row:
    """An old swarm leaves in the middle of its run, and the new side goes on under the same homes. Raises Failed.

    Three peers take part: of two in a group that leave a round apart, none would catch up with the other."""
    swarm = Swarm.plan(folder, preset, old, (old, old, old), rounds)
    with swarm.running():
        swarm.wait(lambda peer: len(peer.events("round_ended")) >= swarm.total // 2, "half of the run")
    swarm.wrong += [f"{peer.name} left with {peer.code}" for peer in swarm.peers if peer.code != 0]
    lines = [len(peer.events()) for peer in swarm.peers]
    for node in (swarm.bootstrap, *swarm.peers):
        node.side, node.process = new, None
    with swarm.running():
        swarm.wait(lambda peer: peer.code is not None, "end")
    lives = [resumed(peer, count) for peer, count in zip(swarm.peers, lines, strict=True)]
    return swarm.result([sentence for life in lives for sentence in life["wrong"]]) | {"resumed": lives}


def resumed(peer: Node, lines: int) -> Row:
    """How a peer's second life, which begins after so many lines of its journal, goes on from its first."""
    before, after = peer.events()[:lines], peer.events()[lines:]
    last = max(event["round"] for event in before if event["kind"] == "round_ended")
    first = next(event["round"] for event in after if event["kind"] == "training_began")
    outcomes = Counter(event["outcome"] for event in after if event["kind"] == "round_ended")
    faults = {
        "it did not go on from where it was": not last < first <= last + 2,  # a round under way may be given up
        "it exchanged nothing any more": not outcomes["exchanged"],
        "it fetched a state instead of using its own": any(event["kind"] == "state_fetched" for event in after),
    }
    return {
        "peer": peer.name,
        "last_round": last,
        "went_on_with": first,
        "outcomes_after": dict(outcomes),
        "said": next(event["resumed"] for event in after if event["kind"] == "started"),
        "wrong": [f"{peer.name}: {sentence}" for sentence, holds in faults.items() if holds],
    }


def attempt(play: Callable[..., Row], folder: Path, *given: Any) -> Row:
    """Play a swarm and print its result. A swarm that fails has no peers in it, and its reason under `wrong`."""
    try:
        result = play(folder, *given)
    except (Failed, OSError, ValueError, LookupError, StopIteration) as error:  # also a home that is not as it should
        result = {"preset": folder.name, "bootstrap": "-", "seconds": 0.0, "peers": [], "wrong": [repr(error)]}
    for side in ("old", "new"):
        if rows := [row for row in result["peers"] if row["side"] == side]:
            counts = "".join(f"{sum(row['rounds'][name] for row in rows):>10}" for name in COLUMNS)
            off = sum(abs(imbalance(row["ledger"])) for row in rows)
            line = f"{result['preset']:<17}{result['bootstrap']:<10}{side:<4}{counts}{off:>7}{result['seconds']:>8}"
            print(line, flush=True)
    for life in result.get("resumed", ()):
        print("    {peer}: round {last_round}, then {went_on_with}: {outcomes_after}; {said}".format(**life))
    for sentence in result["wrong"]:
        print(f"    WRONG {folder.name}: {sentence}", flush=True)
    return result


def measure(folder: Path, sides: tuple[Side, Side], presets: Sequence[str], rounds: int) -> Row:
    """The report: the script plays all swarms, one after the other."""
    began, swarms = time.monotonic(), []
    print(f"{'preset':<17}{'bootstrap':<10}side{''.join(f'{name:>10}' for name in COLUMNS)} ledger seconds")
    for preset in presets:
        runs = ((folder / f"{preset}-{bootstrap.name}", preset, bootstrap) for bootstrap in sides)
        swarms += [attempt(together, *one, sides, rounds) for one in runs]
    print("an old swarm leaves in the middle, the new side resumes its homes:")
    again = [preset for preset in presets if preset in RESUMED]
    resumes = [attempt(taken_over, folder / f"{preset}-resumed", preset, *sides, rounds) for preset in again]
    return {
        "commits": {side.name: side.commit for side in sides},
        "rounds": rounds,
        "seconds": round(time.monotonic() - began, 1),
        "swarms": swarms,
        "resumes": resumes,
        "wrong": sum(len(result["wrong"]) for result in (*swarms, *resumes)),
    }


def show(given: argparse.Namespace, report: Row) -> None:
    rows, least = list[list[Any]](), list[float]()
    for swarm in (*report["swarms"], *report["resumes"]):
        for peer in swarm["peers"]:
            counts = [peer["rounds"][name] for name in COLUMNS]
            rows.append([swarm["preset"], swarm["bootstrap"], peer["side"], *counts, imbalance(peer["ledger"])])
        if swarm["preset"] != "none" and swarm in report["swarms"]:  # of three peers that resume one is left over
            least += [peer["rounds"]["exchanged"] / swarm["total_rounds"] for peer in swarm["peers"]]
    figures = [
        Figure("things wrong", "", report["wrong"], 0),
        Figure("least part of a peer's rounds exchanged", "", min(least, default=None), None, LEAST),
        Figure("ledger of a peer, off by at most", "", max((abs(row[-1]) for row in rows), default=None), 0),
    ]
    heads = ["preset", "bootstrap node", "side", *COLUMNS, "ledger off by"]
    title = "old: {old}, new: {new}; a swarm resumed under the new side comes last".format(**report["commits"])
    publish(given, ABOUT, figures, Table(title, heads, rows))


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--old", type=Path, required=True, metavar="DIR", help="a checkout with .venv/bin/peer")
    parser.add_argument("--new", type=Path, required=True, metavar="DIR", help="another one")
    parser.add_argument("--rounds", type=int, default=20, help="exchanges of every fragment")
    parser.add_argument("--preset", choices=PRESETS, nargs="+", default=PRESETS)
    given = parser.parse_args()
    try:
        sides = Side.of("old", given.old), Side.of("new", given.new)
    except Failed as error:
        parser.error(str(error))
    folder = Path(tempfile.mkdtemp(prefix="mixed-swarm-"))
    print("\n".join(f"{side.name}: {side.program} of commit {side.commit}" for side in sides), flush=True)
    report = measure(folder, sides, given.preset, given.rounds)
    print(f"{report['wrong']} things wrong, after {report['seconds']:.0f} s")
    show(given, report)
    if report["wrong"]:
        print(f"The homes are left in {folder}.")
    else:
        shutil.rmtree(folder)
    return min(1, int(report["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
