"""How many hours do homes need to a loss, and how many does one machine alone?

The protocol, written before anything was measured:

* **Swarm**: 4, 16 and 64 peers with the preset `gossip`, in the simulator, with the production code of a peer. Each
  trains the real model of `benchmarks.pairs_at_scale` on the same text. A payload on the wire has the size of one of
  110 million parameters, 101 MB.
* **Time**: 100 rounds of 300 s, 8 hours and 20 minutes. A step takes 15 s on each machine. This is assumed: it sets the
  scale of the hours. A trainer that waits for its exchange makes no steps, so that peers make fewer than 20 a round.
* **Lines**: `median` gives every peer the median line of the table `uk-2023`, `drawn` draws a line of this table for
  each peer, and `fast` has no limits (500 Mbit/s), as a control.
* **Rates** are those that `benchmarks.pairs_at_scale` tuned with 4 and with 16 peers; 64 peers have that of 16. Seeds 0
  and 1.
* **Measure**: the mean over the peers of the loss of their last outer params, on 256 windows of the hold-out. One
  machine alone reaches this loss after the hours that its own runs of 2,000 steps and more give, tuned at each length
  (`single` of `benchmarks.pairs_at_scale`), interpolated. It never waits.
* The acceptance is `finite`. No peer leaves or lies. Encoding and outer steps take no time.

    python -m benchmarks.hours_to_loss [--minutes N] [--runs FILE] [--scale-runs FILE] [--json FILE] [--results]

Bound: none. The figures include the number of runs that have been played.

Without minutes the runs that are kept are summed up. With them, runs are played and appended to
results/hours_to_loss/runs.jsonl, and none begins after so many minutes. The longest takes half an hour."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from benchmarks import pairs_at_scale
from benchmarks.large_swarms import MODEL, Record
from benchmarks.methods_loss import NEVER, TextTrainer
from benchmarks.pairs_at_scale import BATCH, GOSSIP, MOST_TUNED, NONE, STEPS, cell, kept, seeds_found, tuned
from benchmarks.result import RESULTS, Benchmark, Figure, Table, options, parsed, product_commit, publish
from benchmarks.worth import DIGEST, by_cell
from benchmarks.worth_runs import CONTEXT, EVAL_WINDOWS, SINGLE
from peer.lab.bench.tables import Cell
from peer.lab.compare.worth import length_for
from peer.lab.sim.home_lines import home_lines, link_of
from peer.lab.sim.links import PROFILES, Link
from peer.lab.sim.report import report_of
from peer.lab.sim.setting import SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import Evaluated
from peer.protocol.model.layout import Layout
from peer.run.manifest import Manifest, default_text, derive, parse_manifest
from peer.run.resolve import resolve
from peer.run.sections import DataSection
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus, load_corpus
from peer.trainer.models.llama import first_params, layout_of

ABOUT = Benchmark(
    "hours_to_loss",
    "How many hours do homes need to a loss, and how many does one machine alone?",
    "none: a study",
    smallest="--minutes 0",
)
RUNS = RESULTS / "hours_to_loss" / "runs.jsonl"
ELEMENTS = 110_000_000
"""Parameters whose payloads cross the lines."""
ROUND_S, STEP_S, ROUNDS = 300.0, 15.0, 100
TABLE = "uk-2023"
LINES, PEERS, SEEDS = ("median", "drawn", "fast"), (4, 16, 64), (0, 1)
HOURS = ROUNDS * ROUND_S / 3600


@dataclass(frozen=True, slots=True)
class HomesRun:
    """One swarm on one kind of lines."""

    peers: int
    line: str
    lr: float
    seed: int
    rounds: int = ROUNDS

    @property
    def manifest(self) -> Manifest:
        settings = {
            "seed": self.seed,
            "model.num_hidden_layers": MODEL.num_hidden_layers,
            "model.intermediate_size": MODEL.intermediate_size,
            "sync.preset": GOSSIP,
            "sync.acceptance": "finite",
            "sync.clock": "seconds",
            "sync.sync_every": ROUND_S,
            "train.context": CONTEXT,
            "train.batch": BATCH,
            "train.total_rounds": self.rounds,
            "train.eval_every": NEVER,
            "train.eval_windows": EVAL_WINDOWS,
            "optimizer.lr": self.lr,
        }
        return parse_manifest(derive(default_text(), [f"{key}={value}" for key, value in settings.items()]).encode())

    def links(self) -> Mapping[int, Link] | Link:
        """Return the link of each peer, or the one of all."""
        if self.line == "fast":
            return PROFILES["fibre"]
        lines = home_lines(TABLE)
        if self.line == "drawn":
            return lines.links(self.seed, range(self.peers))
        assert not isinstance(lines.link, Link)
        return link_of("median", lines.link.at(0.5))


def play(run: HomesRun, corpus: Corpus) -> Record:
    """Play a run and return its record."""
    began = time.process_time()
    manifest = run.manifest
    method, layout = resolve(manifest.sync), layout_of(MODEL)

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> TextTrainer:
        return TextTrainer(TrainerConfig.of(manifest, f"peer-{number}"), layout, clock, corpus, STEP_S)

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            run.peers,
            SwarmSetting(
                method=method,
                rounds=method.round_clock(EPOCH),
                total_rounds=run.rounds,
                seed=run.seed,
                layout=layout,
                eval_every=NEVER,
                first=first_params(MODEL, run.seed),
                min_peers=run.peers,
            ),
            SwarmWorld(links=run.links(), stops=False, weight=ELEMENTS / layout.elements),
            make_trainer=trainer,
        )
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    report = report_of(swarm, run.rounds * ROUND_S / 3600, 0.0)
    last = [e.loss for peer in swarm.peers for e in peer.events if isinstance(e, Evaluated) and e.round == run.rounds]
    assert len(last) == run.peers, last
    loss = statistics.fmean(last)
    return {
        **asdict(run),
        "loss": round(loss, 6) if math.isfinite(loss) else None,
        "worst": round(max(last), 6),
        "steps": statistics.fmean(peer.counters().steps for peer in swarm.peers),
        "computing": round(report.compute_utilization, 4),
        "participation": report.participation,
        "exchange_s": report.exchange_s_median,
        "slow_exchange_s": report.exchange_s_p99,
        "sent_bytes_per_hour": round(report.up_bytes_per_peer_hour),
        "core_seconds": round(time.process_time() - began, 1),
    }


def missing(records: Sequence[Record], scale: Sequence[Record]) -> Iterator[HomesRun]:
    """Yield the runs of the plan that were not played and whose rate is tuned. `scale`: the records of
    `benchmarks.pairs_at_scale`."""
    fields, cells = HomesRun.__dataclass_fields__, by_cell(scale)
    there = {HomesRun(**{name: one[name] for name in fields}) for one in records}
    for seed in SEEDS:
        for peers in PEERS:
            lr = tuned(cells, cell(GOSSIP, peers))
            for line in LINES if lr is not None else ():
                run = HomesRun(peers, line, lr or 0.0, seed)
                if run not in there:
                    yield run


def play_on(minutes: float, runs: Path, scale: Path) -> None:
    """Play runs of the plan and append their records to the file `runs`."""
    ends = time.monotonic() + 60 * minutes
    corpus = load_corpus(DataSection(kind="stdlib", digest=DIGEST), None, CONTEXT)
    runs.parent.mkdir(parents=True, exist_ok=True)
    while time.monotonic() < ends and (run := next(missing(kept(runs), kept(scale)), None)):
        record = {**play(run, corpus), "commit": product_commit()}
        with runs.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(json.dumps(record), flush=True)


def alone_hours(scale: Sequence[Record], loss: float, seed: int) -> float:
    """Return the hours after which one machine alone has this loss. Infinite: more than its longest run. 0: less than
    its shortest one. NaN: no run of it was played."""
    cells, steps = by_cell(scale), list[tuple[float, float]]()
    for of in pairs_at_scale.CELLS:
        if of.method == SINGLE or (of.method, of.peers, of.steps) == (NONE, MOST_TUNED, STEPS):
            found = seeds_found(cells, of).get(seed)
            if found is not None:
                steps.append((of.steps, found["loss"]))
    return length_for(sorted(steps), loss) * STEP_S / 3600 if steps else math.nan


def played(records: Sequence[Record], line: str, peers: int) -> list[Record]:
    return [one for one in records if (one["line"], one["peers"], one["rounds"]) == (line, peers, ROUNDS)]


def hours_alone(records: Sequence[Record], scale: Sequence[Record], line: str, peers: int) -> list[float]:
    """Return for each seed the hours after which one machine alone has the loss of these peers. Seeds for which it is
    not known are left out."""
    found = [
        alone_hours(scale, math.inf if one["loss"] is None else one["loss"], one["seed"])
        for one in played(records, line, peers)
    ]
    return [hours for hours in found if 0 < hours < math.inf]


def rows_of(records: Sequence[Record], scale: Sequence[Record]) -> Iterator[list[Cell]]:
    for line, peers in itertools.product(LINES, PEERS):
        found = played(records, line, peers)
        if not found:
            continue
        loss = statistics.fmean(math.inf if one["loss"] is None else one["loss"] for one in found)
        alone = hours_alone(records, scale, line, peers)
        hours = statistics.fmean(alone) if len(alone) == len(found) else "-"
        means = [statistics.fmean(one[name] for one in found) for name in ("steps", "participation", "exchange_s")]
        sent = statistics.fmean(one["sent_bytes_per_hour"] for one in found) / 1e6
        yield [line, peers, len(found), loss, HOURS, hours, *means, sent]


HEADS = (
    "lines",
    "peers",
    "seeds",
    "loss",
    "hours",
    "hours of one alone",
    "steps",
    "participation",
    "exchange, s",
    "MB sent an hour",
)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after so many")
    parser.add_argument("--runs", type=Path, default=RUNS, metavar="FILE", help="where the records are")
    parser.add_argument(
        "--scale-runs", type=Path, default=pairs_at_scale.RUNS, metavar="FILE", help="of pairs_at_scale"
    )
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    if given.minutes:
        play_on(given.minutes, given.runs, given.scale_runs)
    records, scale = kept(given.runs), kept(given.scale_runs)
    hours = sum(one["core_seconds"] for one in records) / 3600
    figures = [Figure("core hours that the runs took", "h", hours), Figure("runs", "", float(len(records)))]
    publish(given, ABOUT, figures, Table("By lines and peers", HEADS, list(rows_of(records, scale))))


if __name__ == "__main__":
    main()
