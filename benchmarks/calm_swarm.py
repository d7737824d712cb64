"""Does a calm swarm pay for the bounds that keep strangers from deciding?

Bounds: a newcomer's first exchange comes at most a second later, and peers exchange in as many rounds but 2 %. About
four minutes a pair of swarms.

    python -m benchmarks.calm_swarm --old DIR --new DIR [--repeats 5] [--json FILE] [--results]

DIR is a checkout with `.venv/bin/peer`. Swarms of the old and the new side take turns, all real processes on loopback.
Three peers train by the round clock. When they have exchanged a few rounds, a fourth one joins. Its time runs from the
start of its process to the first round that it exchanged."""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.checkouts import Failed, Node, Row, Side
from benchmarks.result import Benchmark, Figure, Table, options, publish

ABOUT = Benchmark(
    "calm_swarm",
    "Does a calm swarm pay for the bounds that keep strangers from deciding?",
    "bound: first exchange at most 1 s later, participation within 2 %",
)
EVERY_S = 4.0
PACE = ("--threads", "1", "--step-seconds", "0.03", "--checkpoint-every", "5", "--plain", "--yes")
SETTINGS = ("sync.clock=seconds", f"sync.sync_every={EVERY_S:g}", "train.total_rounds=10000")
BEFORE, AFTER = 3, 16
"""Rounds that each of the first peers has exchanged when the newcomer starts, and that the newcomer then exchanges."""
WAIT_S, POLL_S = 240.0, 0.1


def rounds(peer: Node, outcome: str = "") -> list[Row]:
    return [event for event in peer.events("round_ended", "round_missed") if event.get("outcome", "") == outcome]


def wait(nodes: list[Node], done: Callable[[], bool], what: str) -> None:
    """Poll until it is done. Raises Failed when a process ends or the time is over."""
    until = time.monotonic() + WAIT_S
    while not done():
        ended = [node.name for node in nodes if node.code is not None]
        if ended or time.monotonic() > until:
            raise Failed(f"no {what}: {ended or 'nobody'} ended. See {nodes[0].home.parent}/*/daemon.log")
        time.sleep(POLL_S)


def play(side: Side, folder: Path) -> Row:
    """Play one swarm and measure its newcomer and its participation. Raises Failed."""
    bootstrap = Node("bootstrap", side, folder / "bootstrap")
    bootstrap.manifest("run.toml", "noloco", SETTINGS)
    ticket = folder / "ticket"
    first = [Node(f"peer {number}", side, folder / f"peer-{number}") for number in range(3)]
    newcomer, nodes = Node("newcomer", side, folder / "newcomer"), [bootstrap, *first]
    try:
        bootstrap.start("bootstrap", str(folder / "run.toml"), "--ticket-file", str(ticket))
        wait(nodes, lambda: ticket.exists() and bool(ticket.read_text().strip()), "ticket")
        for peer in first:
            peer.start("join", f"@{ticket}", *PACE)
        wait(nodes, lambda: all(len(rounds(peer, "exchanged")) >= BEFORE for peer in first), "first exchanges")
        began = time.time()
        newcomer.start("join", f"@{ticket}", *PACE)
        nodes.append(newcomer)
        wait(nodes, lambda: len(rounds(newcomer, "exchanged")) >= AFTER, "exchanges of the newcomer")
        exchanged, ended = 0, 0
        joined = rounds(newcomer, "exchanged")[0]["t"]
        for peer in nodes[1:]:
            late = [event for event in peer.events("round_ended", "round_missed") if event["t"] > joined]
            exchanged += sum(event.get("outcome") == "exchanged" for event in late)
            ended += len(late)
        return {"side": side.name, "first_exchange_s": joined - began, "participation": exchanged / ended}
    finally:
        for node in nodes:
            if node.process is not None:
                node.process.terminate()
        for node in nodes:
            node.end()


def show(given: argparse.Namespace, sides: tuple[Side, Side], rows: list[Row]) -> bool:
    def median(side: str, name: str) -> float:
        return statistics.median(row[name] for row in rows if row["side"] == side)

    later = median("new", "first_exchange_s") - median("old", "first_exchange_s")
    lost = 100 * (median("old", "participation") - median("new", "participation"))
    figures = [
        Figure("first exchange of a newcomer, old", "s", median("old", "first_exchange_s")),
        Figure("first exchange of a newcomer, new", "s", median("new", "first_exchange_s")),
        Figure("that much later", "s", later, at_most=1.0),
        Figure("participation, old", "", median("old", "participation")),
        Figure("participation, new", "", median("new", "participation")),
        Figure("participation lost", "%", lost, at_most=2.0),
    ]
    title = f"old: {sides[0].commit}, new: {sides[1].commit}; a round lasts {EVERY_S:g} s"
    table = [[row["side"], row["first_exchange_s"], row["participation"]] for row in rows]
    publish(given, ABOUT, figures, Table(title, ["side", "first exchange, s", "participation"], table))
    return all(figure.holds is not False for figure in figures)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--old", type=Path, required=True, metavar="DIR", help="a checkout with .venv/bin/peer")
    parser.add_argument("--new", type=Path, required=True, metavar="DIR", help="another one")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    sides = Side.of("old", given.old), Side.of("new", given.new)
    rows = []
    for number in range(given.repeats):
        for side in sides if number % 2 == 0 else sides[::-1]:
            folder = Path(tempfile.mkdtemp(prefix="calm-swarm-"))
            rows.append(play(side, folder))
            print(rows[-1], flush=True)
            shutil.rmtree(folder)
    return 0 if show(given, sides, rows) else 1


if __name__ == "__main__":
    sys.exit(main())
