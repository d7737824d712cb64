"""How much can a partner spoil that lies, among real processes with the real model?

Promise 11: no stranger decides; one liar of eight costs the honest at most 2 % of loss. Bounds: 2 % over the loss of
seven honest peers alone, for each lie. Of their exchanges with each other, honest peers refuse at most 5 %. Every
ledger balances, and no peer ends badly. A swarm takes some two minutes on two free cores.

    python -m benchmarks.lying_processes [--attacks negate,x-10,zero] [--peers 8] [--rounds 10] [--steps 50] [--seed 0]
                                         [--set KEY=VALUE] [--json FILE] [--results]

The default manifest's model and preset, on the source of the standard library. The last peer lies, or does not come, or
is as honest as the others. Rounds count inner steps, so that the machine's load does not change the losses: the mean of
the honest peers' last evaluations of `outer_params`. `--set sync.acceptance=finite` shows the lies without any defence.

The homes of a swarm that fails stay where its error says."""

from __future__ import annotations

import asyncio
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.cli.run import say
from peer.lab.attack.report import excluded, mean_last_loss
from peer.lab.bench.tables import Cell
from peer.lab.localswarm.plan import PeerSetups, SwarmPlan, attacks_of, derive_manifest
from peer.lab.localswarm.report import journal_events
from peer.lab.localswarm.run import Swarm, check
from peer.observe.events import Event, PartnerJudged
from peer.run.home import Home
from peer.run.manifest import default_text, parse_manifest

PEERS, MOST_PERCENT = 8, 2.0
"""Number of peers with one liar, and the largest accepted increase of the loss in percent. With fewer peers, which meet
the liar more often, there is no bound."""
MOST_REFUSED_PERCENT = 5.0
"""Largest accepted percentage of refused exchanges between honest peers."""
ALONE, HONEST = "without it", "honest"
"""Names of the two control swarms: without the last peer, and with an honest last peer."""
SETTINGS = ("sync.clock=steps", "train.eval_every=10", "train.eval_windows=512")
"""Settings of all swarms. The batch stays the default, because the number of windows of a check depends on it."""
ABOUT = Benchmark(
    "lying_processes",
    "How much can a partner spoil that lies, among real processes with the real model?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--attacks negate --peers 3 --rounds 2 --steps 5",
    is_long=True,
)


@dataclass(frozen=True, slots=True)
class Judgements:
    """How many partners' params honest peers took, clipped and refused."""

    taken: int = 0
    clipped: int = 0
    refused: int = 0

    @property
    def all(self) -> int:
        return self.taken + self.clipped + self.refused

    @classmethod
    def of(cls, judged: Iterable[PartnerJudged], refused: int) -> Judgements:
        """Count the verdicts. `refused`: including params that were refused before the check."""
        found = Counter(event.verdict for event in judged)
        return cls(found["taken"], found["clipped"], refused)


@dataclass(frozen=True, slots=True)
class PlayedSwarm:
    """The numbers of one swarm, from the journals of its honest peers."""

    loss: float
    """Mean last loss. NaN: a peer has none."""
    of_liar: Judgements
    of_honest: Judgements
    unchecked: Counter[str]
    failed: int
    """Rounds of honest peers that failed because of the partner or the connection."""
    off: int
    """Sum of the ledgers' imbalances."""
    seconds: float

    def percent_over(self, alone: PlayedSwarm) -> float:
        """Return by how many percent the loss is higher. Infinite: unknown."""
        percent = 100 * (self.loss / alone.loss - 1)
        return percent if math.isfinite(percent) else math.inf


@dataclass(frozen=True, slots=True)
class LyingSwarms:
    """The swarms of one run of the benchmark."""

    peers: int
    rounds: int
    steps: int
    seed: int
    settings: tuple[str, ...] = ()
    played: dict[str, PlayedSwarm] = field(default_factory=dict)

    def plan(self, part: str, home: Path) -> SwarmPlan:
        """Return the plan of a swarm whose last peer has this role."""
        text = derive_manifest(
            default_text(),
            preset=None,
            settings=(*SETTINGS, f"sync.sync_every={self.steps}", *self.settings),
            rounds=self.rounds,
            steps=None,
            minutes=None,
            seed=self.seed,
            own_default=False,
        )
        lies = [] if part in (ALONE, HONEST) else [f"{self.peers}@{part}"]
        attacks = attacks_of(lies, parse_manifest(text.encode()), self.peers, chaos=False)
        peers = self.peers - 1 if part == ALONE else self.peers
        return SwarmPlan(peers=peers, manifest=text, home=home, seed=self.seed, setups=PeerSetups(attacks=attacks))

    def play(self, part: str) -> None:
        """Run a swarm. Raises SwarmFailed if a peer ends with an error."""
        home, began = Path(tempfile.mkdtemp(prefix="lying-")), time.monotonic()
        plan = self.plan(part, home)
        report = asyncio.run(Swarm(plan, say).run())
        check(report, home)
        self.played[part] = outcome(report, plan, time.monotonic() - began)
        say(f"{part}: {self.played[part]}")
        shutil.rmtree(home)


def outcome(report: dict[str, Any], plan: SwarmPlan, seconds: float) -> PlayedSwarm:
    """Return the numbers of a swarm from its honest peers' journals."""
    rows = {number: row for number, row in enumerate(report["peers"], 1) if number not in plan.setups.attacks}
    liars = {row["peer_id"] for number, row in enumerate(report["peers"], 1) if number not in rows}
    run_id = bytes.fromhex(report["run_id"])
    journals = [_journal(plan.home / f"peer-{number}", run_id) for number in rows]
    judged = [event for journal in journals for event in journal if isinstance(event, PartnerJudged)]
    refused = excluded(journals, liars)
    book = report["swarm"]["ledger"]
    loss = mean_last_loss(journals) if all(row["val_loss_last"] is not None for row in rows.values()) else None
    return PlayedSwarm(
        math.nan if loss is None else loss,
        Judgements.of((event for event in judged if event.peer in liars), refused.liars),
        Judgements.of((event for event in judged if event.peer not in liars), refused.honest),
        Counter(event.unchecked for event in judged if event.unchecked),
        sum(row["rounds"]["failed"] for row in rows.values()),
        abs(book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]),
        seconds,
    )


def _journal(home: Path, run_id: bytes) -> list[Event]:
    return [event for _, event in journal_events(Home(home).run(run_id))]


def figures_of(swarms: LyingSwarms) -> list[Figure]:
    """Return the figures with their bounds."""
    played = swarms.played
    alone, honest = played[ALONE], [one.of_honest for one in played.values()]
    more = {part: one.percent_over(alone) for part, one in played.items() if part != ALONE}
    most = MOST_PERCENT if swarms.peers >= PEERS else None
    refused = 100 * sum(one.refused for one in honest) / max(sum(one.all for one in honest), 1)
    return [
        Figure("the others alone", "nats a token", alone.loss),
        *(Figure(part, "% of loss", over, None if part == HONEST else most) for part, over in more.items()),
        Figure("exchanges of the honest refused", "%", refused, MOST_REFUSED_PERCENT),
        Figure("exchanges not checked", "", sum(one.unchecked.total() for one in played.values())),
        Figure("ledger, off by", "", max(one.off for one in played.values()), at_most=0),
    ]


def rows_of(played: dict[str, PlayedSwarm]) -> list[list[Cell]]:
    """Return a row for each swarm."""
    return [
        [
            part,
            one.loss,
            one.percent_over(played[ALONE]),
            *(one.of_liar.taken, one.of_liar.clipped, one.of_liar.refused),
            *(one.of_honest.taken, one.of_honest.clipped, one.of_honest.refused),
            one.failed,
            one.seconds,
        ]
        for part, one in played.items()
    ]


HEADS = (
    "the last peer",
    "loss",
    "% over alone",
    *(f"liar: {verdict}" for verdict in ("taken", "clipped", "refused")),
    *(f"honest: {verdict}" for verdict in ("taken", "clipped", "refused")),
    "failed",
    "seconds",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--attacks", default="negate,x-10,zero")
    parser.add_argument("--peers", type=int, default=PEERS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=50, help="inner steps of a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parsed(parser, ABOUT)
    swarms = LyingSwarms(given.peers, given.rounds, given.steps, given.seed, tuple(given.settings))
    for part in (ALONE, HONEST, *given.attacks.split(",")):
        swarms.play(part)
    reasons = Counter[str]()
    for one in swarms.played.values():
        reasons.update(one.unchecked)
    title = f"{given.peers} peers, {given.rounds} rounds of {given.steps} steps: exchanges as the honest judged them"
    tables = [Table(title, HEADS, rows_of(swarms.played))]
    if reasons:
        tables.append(
            Table(
                "", ["why an exchange was not checked", "exchanges"], [[why, times] for why, times in reasons.items()]
            )
        )
    publish(given, ABOUT, figures_of(swarms), *tables)


if __name__ == "__main__":
    main()
