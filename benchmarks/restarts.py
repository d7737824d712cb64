"""Does a peer that is killed over and over use a torn checkpoint, repeat or leave out a batch, or lose count?

Promises 2 (the ledger balances) and 8 (local progress survives a restart). Bound: no check of a restart fails. About
eight minutes for fifty kills.

    python -m benchmarks.restarts [--kills 50] [--seed 1] [--minutes 60] [--json FILE] [--results]

A bootstrap node and one peer with a tiny model run as real processes. The clock is in inner steps, so that the next
batch is known. A kill is a SIGKILL of the daemon alone. A fifth of them comes while the peer starts, a fifth while it
writes a checkpoint, the rest at a random moment of training. After every tenth kill the peer also leaves cleanly
(SIGTERM) and starts again. Before every tenth start the newest checkpoint is cut in half.

Checked over all lives: each begins with the newest complete checkpoint, at the batch that follows it
(`tests.support.batch_lineage`). Every batch is the one that its round and step name, and the ledger balances."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer import __version__
from peer.identity import load_or_create
from peer.lab.localswarm.processes import LOOPBACK, Daemon, start_bootstrap
from peer.observe.totals import ledger, read_totals
from peer.protocol.sampling import START
from peer.run.home import Home, RunFolder
from peer.run.manifest import SignedManifest, default_text, sign_text
from peer.run.model_layout import layout_for
from peer.run.overrides import apply_overrides
from peer.run.resolve import resolve
from peer.state.checkpoint import CheckpointStore
from peer.state.sealed_state import OUTER
from peer.trainer.arena import PLACE, read_counters
from peer.trainer.batch_log import TRAIL, digest_of, read_batch_log
from peer.trainer.batches import BatchStream
from peer.trainer.checkpoint import data_place
from peer.trainer.data import load_corpus
from peer.trainer.data.tracked import saved_place
from tests.support.batch_lineage import Life, Resumed, line_of

ABOUT = Benchmark(
    "restarts",
    "Does a peer that is killed over and over use a torn checkpoint, repeat or leave out a batch, or lose count?",
    "2 (conservation), 8 (local progress survives a restart)",
    smallest="--kills 1",
    is_long=True,
)
STEPS = 20
SETTINGS = [
    "sync.clock=steps",
    f"sync.sync_every={STEPS}",
    "train.total_rounds=1000000",
    "train.eval_every=1000",
    "train.eval_windows=16",
    "train.batch=2",
]
POLL_S = 0.01
START_S = 300.0
DRAFT_S = 6.0
"""Seconds that a kill waits for a checkpoint to be in progress."""
RESUMED = re.compile(r"state: resumed from own (checkpoint-\d+)")


@dataclass
class Victim:
    """The peer that is killed, its files, and its lives so far."""

    daemon: Daemon
    folder: RunFolder
    signed: SignedManifest
    lives: list[Life] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    starts_s: list[float] = field(default_factory=list)
    """Seconds from each start of the process to its first inner step."""
    torn: set[str] = field(default_factory=set)
    _lines: int = 0
    _log_at: int = 0

    def steps(self) -> int:
        return read_counters(self.folder.path, 1).steps

    def newest(self) -> Resumed | None:
        """Return the newest checkpoint that this benchmark has not damaged."""
        layout = layout_for(self.signed.manifest.model, resolve(self.signed.manifest.sync))
        found, skipped = CheckpointStore(self.folder.checkpoints).latest(self.signed.run_id, layout.digest())
        unexplained = [reason for reason in skipped if reason.split(":")[0] not in self.torn]
        self.wrong += [f"life {len(self.lives)}: a kill left {reason}" for reason in unexplained]
        if found is None:
            return None
        assert found.folder.name not in self.torn, "cut in half, and taken for whole"
        place = json.loads((found.folder / PLACE).read_text())
        where = place["round"], place["step_in_round"]
        facts = int(found.facts["tokens"]), int(found.facts["round"])
        return Resumed(found.folder.name, *facts, where, data_place(found.folder))

    def tear(self) -> None:
        """Truncate the newest checkpoint to half, as a power failure may."""
        names = [path for path in self.folder.checkpoints.glob("checkpoint-*") if path.name not in self.torn]
        if len(names) > 1:
            last = max(names, key=lambda path: int(path.name.split("-")[1])) / OUTER
            os.truncate(last, last.stat().st_size // 2)
            self.torn.add(last.parent.name)

    async def start(self, ticket: str) -> None:
        tokens = read_counters(self.folder.path, 1).tokens
        self.lives.append(Life(tokens, self.newest(), kept=saved_place(self.folder.path) or START))
        self._log_at = self.daemon.log.stat().st_size if self.daemon.log.exists() else 0
        options = ("--checkpoint-every", "1", "--trail", "--plain", "--yes")
        threads = {"OMP_NUM_THREADS": "1"}
        await self.daemon.start("join", ticket, "--host-maddrs", LOOPBACK, "--threads", "1", *options, env=threads)

    async def until_step(self) -> None:
        """Wait for its first inner step. Raises AssertionError if it does not come in time."""
        before, began = self.steps(), time.monotonic()
        while self.steps() == before:
            assert self.daemon.running, self.daemon.log_tail()
            assert time.monotonic() < began + START_S, self.daemon.log_tail()
            await asyncio.sleep(POLL_S)
        self.starts_s.append(time.time() - self.daemon.started_at)

    async def until_draft(self) -> bool:
        """Wait until a checkpoint is being written. Return whether that happened in time."""
        deadline = time.monotonic() + DRAFT_S
        while time.monotonic() < deadline:
            if any(self.folder.checkpoints.glob(".draft-*")):
                return True
            await asyncio.sleep(POLL_S / 10)
        return False

    async def end(self, *, kill: bool) -> None:
        if kill:
            self.daemon.kill()
            await self.daemon.wait()
            await self._children_gone()
        else:
            await self.daemon.stop(20.0)
        self._read()

    async def _children_gone(self) -> None:
        """Wait until the trainer has ended by itself, because it may still take steps until then."""
        deadline, steps = time.monotonic() + 3.0, -1
        while time.monotonic() < deadline and steps != (steps := self.steps()):
            await asyncio.sleep(0.3)

    def _read(self) -> None:
        life, trail = self.lives[-1], self.folder.path / TRAIL
        steps = list(read_batch_log(trail)) if trail.exists() else []
        counted = read_counters(self.folder.path, 1).tokens
        # A step that was killed before it was counted does not count: its batch is due again.
        life.trained = [step for step in steps[self._lines :] if step.tokens < counted]
        self._lines = len(steps)
        with self.daemon.log.open(errors="replace") as log:
            log.seek(self._log_at)
            said = log.read()
        found = RESUMED.search(said)
        expected = None if life.resumed is None else life.resumed.name
        if "trainer: " in said and (found[1] if found else None) != expected:
            self.wrong.append(f"life {len(self.lives) - 1}: began with {found and found[1]}, {expected} was the newest")

    def balance(self) -> tuple[int, int]:
        """(imbalance, outstanding) of the ledger over all lives."""
        counters, totals = read_counters(self.folder.path, 1), read_totals(self.folder.journal)
        book = ledger(totals, counters.tokens, counters.base, [self.elements])
        assert book.processed > 0
        return book.imbalance, book.outstanding

    @property
    def elements(self) -> int:
        return layout_for(self.signed.manifest.model, resolve(self.signed.manifest.sync)).elements


async def play(victim: Victim, ticket: str, kills: int, minutes: float, rng: random.Random) -> dict[str, int]:
    """Kill the peer `kills` times, or until the time is over. Return the number of kills of each kind."""
    until = time.monotonic() + 60 * minutes
    kinds = {"starting": 0, "saving": 0, "training": 0, "left": 0, "torn": 0}
    for number in range(kills):
        if time.monotonic() > until:
            break
        if number % 10 == 9:
            victim.tear()
        await victim.start(ticket)
        kind = await _moment(victim, rng)
        kinds[kind] += 1
        await victim.end(kill=True)
        print(f"kill {number + 1:>3} while {kind:<9} {_place(victim)}", flush=True)
        if number % 10 == 4:
            await victim.start(ticket)
            await victim.until_step()
            await asyncio.sleep(rng.uniform(0.1, 2.0))
            await victim.end(kill=False)
            kinds["left"] += 1
    kinds["torn"] = len(victim.torn)
    await victim.start(ticket)
    await victim.until_step()
    await victim.end(kill=False)
    return kinds


async def _moment(victim: Victim, rng: random.Random) -> str:
    drawn = rng.random()
    if drawn < 0.2:
        await asyncio.sleep(rng.uniform(0.3, 8.0))
        return "starting"
    await victim.until_step()
    if drawn < 0.4 and await victim.until_draft():
        await asyncio.sleep(rng.uniform(0.0, 0.03))
        return "saving"
    await asyncio.sleep(rng.uniform(0.0, 3.0))
    return "training"


def _place(victim: Victim) -> str:
    life = victim.lives[-1]
    began = life.begins_at()
    if not life.trained:
        return f"resumed at {began}, no step"
    last = life.trained[-1]
    return f"resumed at {began}{' in its middle' if life.exact else ''}, came to {(last.round, last.step)}"


def strange_batches(victim: Victim, peer_id: str) -> list[str]:
    """Return the steps whose batch is not the one determined by run, peer and cursor."""
    manifest = victim.signed.manifest
    train = manifest.train
    corpus = load_corpus(manifest.data, None, train.context)
    stream = BatchStream(corpus, seed=manifest.seed, peer_id=peer_id, context=train.context, batch=train.batch)
    wrong = []
    for number, life in enumerate(victim.lives):
        for step in life.trained:
            stream.move_to(step.begin)
            batch = stream.next()
            if (digest_of(batch.windows), batch.end) != (step.batch, step.end):
                wrong.append(f"life {number}: another batch than that of {step.begin}")
    return wrong


async def measure(home: Path, kills: int, seed: int, minutes: float = 60.0) -> dict[str, Any]:
    """Run the whole benchmark. No process is left running."""
    node, daemon = Daemon("bootstrap", home / "b"), Daemon("peer", home / "p")
    operator = load_or_create(Home(node.home).identity)
    signed = sign_text(apply_overrides(default_text(), SETTINGS), operator, home / "run.toml")
    peer_id = load_or_create(Home(daemon.home).identity).peer_id
    victim = Victim(daemon, Home(daemon.home).run(signed.run_id), signed)
    began = time.monotonic()
    try:
        ticket = await start_bootstrap(node, home / "run.toml", 1)
        kinds = await play(victim, ticket, kills, minutes, random.Random(seed))
    finally:
        await daemon.stop(10.0)
        await node.stop(10.0)
    return _report(victim, peer_id, kinds, seed, time.monotonic() - began)


def _report(victim: Victim, peer_id: str, kinds: dict[str, int], seed: int, seconds: float) -> dict[str, Any]:
    line, wrong = line_of(victim.lives, STEPS)
    wrong += victim.wrong + strange_batches(victim, peer_id)
    imbalance, outstanding = victim.balance()
    last = victim.newest()
    if imbalance:
        wrong.append(f"the ledger is off by {imbalance}")
    if last is None or last.tokens != read_counters(victim.folder.path, 1).tokens:
        wrong.append("after a clean leave the last checkpoint does not hold all the work")
    return {
        "version": __version__,
        "seed": seed,
        "seconds": round(seconds, 1),
        "load": os.getloadavg()[1],
        "lives": len(victim.lives),
        "ends": kinds,
        "exact_resumes": sum(life.exact for life in victim.lives),
        "steps_trained": sum(len(life.trained) for life in victim.lives),
        "steps_in_the_line": len(line),
        "line_digest": blake3("".join(step.batch for step in line).encode()).hexdigest(8),
        "first_step_s": {
            "measured": len(victim.starts_s),
            "median": round(statistics.median(victim.starts_s), 2),
            "max": round(max(victim.starts_s), 2),
        },
        "ledger_imbalance": imbalance,
        "outstanding_in_the_checkpoint": outstanding,
        "wrong": wrong,
    }


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="No new kill after this.")
    arguments = parsed(parser, ABOUT)
    with tempfile.TemporaryDirectory(prefix="restarts-") as folder:
        report = asyncio.run(measure(Path(folder), arguments.kills, arguments.seed, arguments.minutes))
    for name, value in report.items():
        print(f"{name:>30}  {value}")
    figures = [
        Figure("things wrong", "", len(report["wrong"]), 0),
        Figure("ledger, off by", "", abs(report["ledger_imbalance"]), 0),
        Figure("first inner step after a start, median", "s", report["first_step_s"]["median"]),
        Figure("first inner step after a start, worst", "s", report["first_step_s"]["max"]),
    ]
    lives = [[what, report[what]] for what in ("lives", "exact_resumes", "steps_trained", "steps_in_the_line")]
    ends = [[f"ends: {kind}", times] for kind, times in report["ends"].items()]
    kept = publish(arguments, ABOUT, figures, Table("", ["", "count"], [*lives, *ends]))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
