"""What does it cost honest partners that each is clipped and checked?

Promise 11: one liar of eight costs the honest at most 2 % of loss. Its checks must not cost the honest peers. Bounds:
at most 5 % of honest exchanges are refused in each row, and the loss is at most .5 % above that of a swarm that accepts
all finite params. Some 10 s a row and seed.

    python -m benchmarks.honest_partners [--preset gossip] [--seeds 8] [--rounds 20] [--rows equal,joiners]
                                         [--set KEY=VALUE] [--json FILE] [--results]

The production peer in virtual time with the tiny trainer: 8 peers that are all honest. Each seed is played with the
three kinds of acceptance, and a loss is compared with that of the same seed. `domains`: each peer learns from its own
eighth of the texts. `speeds`: a step takes from 1 to 20 s. `joiners`: two of the eight come in the middle, with a
donor's state."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.exchange.pair.acceptance import CHECK, CLIP, FINITE
from peer.lab.bench.tables import Cell
from peer.lab.sim.faults import Fault
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import LR, TENSORS, WHOLE, TinyTrainer, first_params, loss_of
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.methods.method import Method
from peer.observe import events
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.run.manifest import default_text, derive, parse_manifest
from peer.run.resolve import resolve

PEERS = 8
REFUSED_PERCENT, MORE_PERCENT = 5.0, 0.5
ABOUT = Benchmark(
    "honest_partners",
    "What does it cost honest partners that each is clipped and checked?",
    "11 (no stranger decides; one liar of eight costs the honest at most 2 % of loss)",
    smallest="--seeds 1 --rounds 3 --rows equal",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HonestSetting:
    """How the peers of a table row differ from eight equal ones."""

    round_s: int = 30
    spread: float = 1.0
    """Seconds of a step of the slowest peer. The fastest takes one second."""
    domains: bool = False
    joiners: tuple[int, ...] = ()
    """Numbers of peers that join in the middle of the run."""
    lr: float = LR
    method: tuple[str, ...] = ()
    """Changes of the manifest, as `key=value`."""


SETTINGS = {
    "equal": HonestSetting(),
    "domains": HonestSetting(domains=True),
    "speeds": HonestSetting(round_s=90, spread=20.0),
    "domains and speeds": HonestSetting(round_s=90, spread=20.0, domains=True),
    "joiners": HonestSetting(joiners=(2, 5)),
    "lr/20": HonestSetting(lr=LR / 20),
    "4 fragments": HonestSetting(method=("sync.preset=streaming-noloco", "sync.fragments=4")),
}


@dataclass(slots=True)
class HonestRun:
    """The last loss of one swarm, and the verdicts of its peers about partners."""

    loss: float
    verdicts: Counter[str] = field(default_factory=Counter)
    refused: list[int] = field(default_factory=list)
    """Round of each refusal."""

    def percent(self, verdict: str) -> float:
        """Return the percentage of judged exchanges with this verdict."""
        return 100 * self.verdicts[verdict] / max(1, self.verdicts.total())


def play(setting: HonestSetting, changes: Sequence[str], seed: int, rounds: int) -> HonestRun:
    """Simulate a swarm. `changes`: of the manifest. `rounds`: number of rounds."""
    sync = (f"sync.sync_every={setting.round_s}", "sync.clock=seconds")
    method = resolve(parse_manifest(derive(default_text(), [*sync, *changes]).encode()).sync)
    pattern = "whole" if method.schedule == "full" else method.fragment_layout
    layout = cut(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart)

    rounds *= method.fragments

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> TinyTrainer:
        return TinyTrainer(
            layout,
            clock,
            step_seconds=setting.spread ** (1 - number / (PEERS - 1)),
            seed=seed,
            data=f"peer {number}",
            domain=(number, PEERS) if setting.domains else WHOLE,
            lr=setting.lr,
        )

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(PEERS, _swarm_setting(method, layout, seed, rounds), make_trainer=trainer)
        await swarm.run(_late(setting, rounds * method.round_clock().round_length))
        return swarm

    swarm = run_virtual(main())
    run = HonestRun(statistics.fmean(loss_of(peer.outer.params, layout, seed) for peer in swarm.peers))
    for judged in (event for peer in swarm.peers for event in peer.events if isinstance(event, events.PartnerJudged)):
        run.verdicts[judged.verdict] += 1
        run.refused += [judged.round] if judged.verdict == "refused" else []
    return run


def _swarm_setting(method: Method, layout: Layout, seed: int, rounds: int) -> SwarmSetting:
    return SwarmSetting(
        method=method,
        rounds=method.round_clock(EPOCH),
        total_rounds=rounds,
        seed=seed,
        layout=layout,
        eval_every=rounds,
        first=first_params(seed, layout),
    )


def _late(setting: HonestSetting, seconds: float) -> list[Fault]:
    """Return faults that keep the late joiners away until the middle of the run."""
    gone = [Fault("kill", number, at=0.5) for number in setting.joiners]
    return gone + [Fault("rejoin", number, at=seconds / 2) for number in setting.joiners]


def summed(name: str, runs: dict[str, list[HonestRun]]) -> tuple[list[Figure], list[Cell]]:
    """Return the figures of a row and its table row. `runs`: acceptance -> runs with the same seeds in the same
    order."""
    verdicts = sum((run.verdicts for run in runs[CHECK]), Counter[str]())
    every = HonestRun(0.0, verdicts)
    plain = runs[FINITE]
    costs = {kind: [over(*both) for both in zip(runs[kind], plain, strict=True)] for kind in (CHECK, CLIP)}
    figures = [
        Figure(f"{name}: honest exchanges refused", "%", every.percent("refused"), REFUSED_PERCENT),
        Figure(f"{name}: honest exchanges clipped", "%", every.percent("clipped")),
        Figure(f"{name}: loss over that without check and clip", "%", statistics.fmean(costs[CHECK]), MORE_PERCENT),
    ]
    row: list[Cell] = [name, len(runs[CHECK]), verdicts.total()]
    for kind in (CHECK, CLIP):
        row += [statistics.fmean(costs[kind]), error(costs[kind]), min(costs[kind]), max(costs[kind])]
    return figures, row


def over(run: HonestRun, without: HonestRun) -> float:
    return 100 * (run.loss / without.loss - 1)


def error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean. None: a single value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--preset", default="gossip", help="of every row but that of fragments")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--rows", default=",".join(SETTINGS))
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    given = parsed(parser, ABOUT)
    torch.set_num_threads(1)
    figures, rows, played = list[Figure](), list[list[Cell]](), list[list[Cell]]()
    for name in given.rows.split(","):
        setting, runs = SETTINGS[name], dict[str, list[HonestRun]]()
        for seed in range(given.seeds):
            for kind in (CHECK, CLIP, FINITE):
                changes = [f"sync.preset={given.preset}", *setting.method, f"sync.acceptance={kind}", *given.settings]
                run = play(setting, changes, seed, given.rounds)
                runs.setdefault(kind, []).append(run)
                when = " ".join(map(str, sorted(run.refused)))
                played.append([name, seed, kind, run.loss, run.percent("refused"), run.percent("clipped"), when])
                print(*played[-1], flush=True)
        more, row = summed(name, runs)
        figures += more
        rows.append(row)
    spread = ["check, %", "error", "least", "most", "clip, %", "error", "least", "most"]
    cost = Table("loss over that without check and clip", ["row", "seeds", "judged", *spread], rows)
    heads = ["row", "seed", "acceptance", "loss", "refused, %", "clipped, %", "rounds of refusals"]
    publish(given, ABOUT, figures, cost, Table("runs", heads, played))


if __name__ == "__main__":
    main()
