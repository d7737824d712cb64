"""How far is `peer simulate` from real processes on the same lines?

Bounds: participation within 3 points, the time of a round within 10 %, the bytes on the wire within 5 %, in each of
three settings.

    sudo python -m benchmarks.simulator_error [--settings A,B] [--rounds N] [--json FILE] [--results]

Each setting is played twice: by real daemons, trainers and a real directory, each in a namespace of its own on a line
of `benchmarks.shaped_lines`, and by the simulator with the same links, manifest, steps and kills.

* `pairs`: eight peers on the reference line of 10 Mbit/s up and 100 down, preset `gossip`.
* `unequal`: eight peers on unequal lines with jitter and loss, preset `noloco`, of which two are killed and return.
* `group`: six peers on unequal lines, preset `streaming-diloco`.

The time of a round is counted from the moment at which it is due to its outer step, for rounds that were exchanged.
Bytes are those that peers send each other on the exchange's TCP port, with all headers, acknowledgements and small
calls. The model has 3.3 million
parameters, and a step takes a second, so that the machine is mostly idle. The simulator does not know the time for
encoding, for outer steps and for a busy machine: this is a part of its error. About six minutes a setting."""

from __future__ import annotations

import asyncio
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

if not __package__:  # run as a file: its folder on the path would shadow standard modules
    sys.path[0] = str(Path(__file__).parent.parent)

from benchmarks.nat_swarm import PORT, NatSwarm, Run, complaints, dialled_at
from benchmarks.result import NOT_HERE, Benchmark, Figure, Table, options, parsed, publish
from benchmarks.shaped_lines import Host, shaped_lines, why_not
from peer.lab.sim.fake_trainer import first_params
from peer.lab.sim.faults import Fault
from peer.lab.sim.links import MBIT, PROFILES, Link
from peer.lab.sim.report import report_of
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, fake_trainers
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe.events import Event, RoundDue, RoundEnded
from peer.run.manifest import parse_manifest
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve

MODEL = (
    "model.hidden_size=256",
    "model.intermediate_size=704",
    "model.num_hidden_layers=4",
    "model.max_position_embeddings=32",
    "train.context=32",
    "train.batch=1",
    "train.eval_every=1000",
    "train.eval_windows=8",
)
STEP_S, ROUND_S, ROUNDS = 1.0, 40.0, 10
MOST_POINTS, MOST_TIME, MOST_BYTES = 3.0, 0.10, 0.05
NODE = PROFILES["fibre"]
"""The line of the bootstrap node."""
UNEQUAL = (
    Link("gigabit", 50 * MBIT, 200 * MBIT, 0.004, 0.001, 1e-6),
    Link("fibre", 40 * MBIT, 80 * MBIT, 0.006, 0.001, 1e-6),
    Link("cable", 20 * MBIT, 120 * MBIT, 0.012, 0.004, 1e-5),
    Link("cable", 10 * MBIT, 100 * MBIT, 0.012, 0.004, 1e-5),
    Link("vdsl", 10 * MBIT, 50 * MBIT, 0.010, 0.002, 1e-5),
    Link("lte", 8 * MBIT, 30 * MBIT, 0.030, 0.010, 1e-4),
    Link("dsl", 5 * MBIT, 25 * MBIT, 0.015, 0.005, 1e-4),
    Link("slow dsl", 3 * MBIT, 16 * MBIT, 0.020, 0.005, 1e-4),
)
"""Lines of eight homes. They are slower than most, so that one machine can carry them all."""
ABOUT = Benchmark(
    "simulator_error",
    "How far is `peer simulate` from real processes on the same lines?",
    "bound: 3 points of participation, a tenth of the time of a round, a twentieth of the bytes",
    smallest="--settings pairs --rounds 3",
    needs=("namespaces",),
    is_long=True,
)


@dataclass(frozen=True)
class Setting:
    """A swarm that is played by processes and by the simulator. `links`: one per peer. `kills`: (peer, seconds after
    the start, seconds away)."""

    name: str
    preset: str
    links: Sequence[Link]
    kills: Sequence[tuple[int, float, float]] = ()

    def run(self, rounds: int) -> Run:
        return Run(self.preset, rounds, ROUND_S, model=MODEL, step_s=STEP_S)

    @property
    def names(self) -> list[str]:
        return [f"peer{number}" for number in range(len(self.links))]


SETTINGS = {
    one.name: one
    for one in (
        Setting("pairs", "gossip", [PROFILES["home"]] * 8),
        Setting("unequal", "noloco", UNEQUAL, kills=[(2, 90.0, 60.0), (5, 210.0, 60.0)]),
        Setting("group", "streaming-diloco", UNEQUAL[:6]),
    )
}


PHASES = ("ready_s", "first_byte_s", "arriving_s", "applying_s")


@dataclass(frozen=True)
class Outcome:
    """The measurements of a setting, played by processes or by the simulator. Times in seconds, bytes per exchanged
    peer-round."""

    participation: float
    round_s: float
    slow_round_s: float
    """The nine tenths quantile, where `round_s` is the median."""
    payload_bytes: float
    """Bytes of payload that a peer sent in an exchanged round (mean)."""
    wire_bytes: float
    exchanged: int
    ready_s: float = math.nan
    """Pairs: from the moment at which the round is due until the own payload is ready (median)."""
    first_byte_s: float = math.nan
    """From then until the partner's first byte: offers, encoding."""
    arriving_s: float = math.nan
    """From then until the partner's last byte."""
    applying_s: float = math.nan
    """From then until the end of the outer step."""

    @classmethod
    def of(cls, journals: Iterable[Sequence[tuple[float, Event]]], participation: float, sent: float) -> Outcome:
        """Read the journals of all peers. `sent`: bytes on the wire that all of them sent."""
        took, phases, payloads = list[float](), list[tuple[float, ...]](), list[int]()
        for journal in journals:
            due = {event.round: at for at, event in journal if isinstance(event, RoundDue)}
            for at, event in journal:
                if isinstance(event, RoundEnded) and event.outcome == "exchanged":
                    took.append(at - due[event.round])
                    if event.done_at:
                        moments = (due[event.round], event.ready_at, event.first_byte_at, event.done_at, at)
                        phases.append(tuple(later - earlier for earlier, later in pairwise(moments)))
                    payloads.append(event.bytes_sent)
        took.sort()
        return cls(
            participation=participation,
            round_s=statistics.median(took),
            slow_round_s=took[int(0.9 * (len(took) - 1))],
            **dict(zip(PHASES, map(statistics.median, zip(*phases, strict=True)), strict=False)),
            payload_bytes=statistics.mean(payloads),
            wire_bytes=sent / len(payloads),
            exchanged=len(payloads),
        )


def played(setting: Setting, rounds: int) -> tuple[Outcome, list[str], dict[str, Any]]:
    """Play a setting by real processes. Return the outcome, violations of what every run must keep, and the report."""
    lines = {"bootstrap": NODE, **dict(zip(setting.names, setting.links, strict=True))}
    with tempfile.TemporaryDirectory(prefix="peer-lines-") as folder, shaped_lines(lines) as hosts:
        places = {name: hosts[name].namespace for name in setting.names}
        swarm = NatSwarm(Path(folder), setting.run(rounds), {"bootstrap": hosts["bootstrap"].namespace}, places)
        swarm.let("bootstrap", "--no-keep-latest")  # it would fetch states from peers, which no simulated node does
        for name in setting.names:
            swarm.let(name, *dialled_at())
        before = dict[str, int]()
        try:
            asyncio.run(swarm.play(note_bytes(hosts, setting.names, before), *kills_of(swarm, setting)))
        except BaseException:
            print(swarm.words(), file=sys.stderr)
            raise
        report = swarm.report()
        sent = sum(sent_to_others(hosts[name], setting.names) - before[name] for name in setting.names)
        journals = [swarm.journal(name) for name in setting.names]
    return Outcome.of(journals, report["participation"], sent), complaints(report), report


async def note_bytes(hosts: Mapping[str, Host], names: Iterable[str], before: dict[str, int]) -> None:
    """Record what each peer had sent when all of them train, so that the start does not count."""
    before |= {name: sent_to_others(hosts[name], names) for name in names}


def sent_to_others(host: Host, names: Iterable[str]) -> int:
    """Return the bytes that a peer has sent to other peers on the exchange's port."""
    return sum(host.sent.get((other, PORT), 0) for other in names)


def kills_of(swarm: NatSwarm, setting: Setting) -> list[Any]:
    async def kill(name: str, at: float, away_s: float) -> None:
        await asyncio.sleep(at)
        await swarm.peers[name].kill_and_restart(away_s)

    return [kill(setting.names[number], at, away_s) for number, at, away_s in setting.kills]


def simulated(setting: Setting, rounds: int) -> Outcome:
    """Play a setting by the simulator."""
    manifest = parse_manifest(setting.run(rounds).manifest(len(setting.links)).encode())
    method = resolve(manifest.sync)
    layout = layout_for(manifest.model, method)
    faults = [
        fault
        for number, at, away_s in setting.kills
        for fault in (Fault("kill", number, at=at), Fault("restart", number, at=at + away_s))
    ]

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            len(setting.links),
            SwarmSetting(
                method=method,
                rounds=method.round_clock(EPOCH),
                total_rounds=manifest.rounds,
                seed=manifest.seed,
                layout=layout,
                eval_every=1000,
                first=first_params(manifest.seed, layout),
            ),
            SwarmWorld(links=dict(enumerate(setting.links)), stops=False),
            make_trainer=fake_trainers(manifest.seed, STEP_S),
        )
        await swarm.run(faults)
        return swarm

    swarm = run_virtual(main())
    report = report_of(swarm, manifest.rounds * method.round_length / 3600, 0.0, learns=False)
    journals = [
        [(EPOCH + at, event) for at, event in zip(peer.times, peer.events, strict=True)] for peer in swarm.peers
    ]
    sent = sum(load.up for load in swarm.network.link_loads.values())
    return Outcome.of(journals, report.participation or 0.0, sent)


def figures(name: str, real: Outcome, virtual: Outcome, wrong: Sequence[str]) -> list[Figure]:
    """Return the errors of the simulator in one setting."""
    time_error = virtual.round_s / real.round_s - 1
    bytes_error = virtual.wire_bytes / real.wire_bytes - 1
    points = 100 * (virtual.participation - real.participation)
    return [
        Figure(f"{name}: participation, simulated less real", "points", points, MOST_POINTS, -MOST_POINTS),
        Figure(f"{name}: median time of a round, simulated over real less 1", "", time_error, MOST_TIME, -MOST_TIME),
        Figure(f"{name}: bytes, simulated over real less 1", "", bytes_error, MOST_BYTES, -MOST_BYTES),
        Figure(f"{name}: complaints about the real run", "", len(wrong), 0),
    ]


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--settings", default=",".join(SETTINGS), help="some of the settings, with commas")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parsed(parser, ABOUT)
    if reason := why_not():
        print(f"{ABOUT.name} cannot run here: {reason}", file=sys.stderr)
        sys.exit(NOT_HERE)
    found, rows = list[Figure](), list[list[Any]]()
    for name in given.settings.split(","):
        setting = SETTINGS[name]
        virtual = simulated(setting, given.rounds)
        real, wrong, report = played(setting, given.rounds)
        print(json.dumps(report, indent=1), file=sys.stderr)
        print("\n".join(wrong), file=sys.stderr)
        found += figures(name, real, virtual, wrong)
        for played_by, outcome in (("processes", real), ("simulator", virtual)):
            cells = (getattr(outcome, field) for field in Outcome.__dataclass_fields__)
            rows.append([name, played_by, *("-" if math.isnan(cell) else cell for cell in cells)])
    table = Table("", ["setting", "played by", *Outcome.__dataclass_fields__], rows)
    sys.exit(not publish(given, ABOUT, found, table))


if __name__ == "__main__":
    main()
