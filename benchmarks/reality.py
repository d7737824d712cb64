"""Does the simulator tell the truth? The same swarm twice: four real processes on loopback under `--max-upload` and
`--max-download`, and then simulated, with the step time that the real ones had and links as wide as their caps. Both
train the real model.

    python benchmarks/reality.py [--presets noloco,diloco,streaming-noloco] [--cap 150000] [--seconds 14] [--rounds 9]

Prints, for either: the median time of an exchange, how long the trainer waited a round (and which part of the time
that is), payload sent, all a peer and round, and the mean validation loss of the peers by rounds; then simulated over
real. The real swarm takes --rounds times --seconds, and half a minute."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from peer.lab.localswarm.plan import SwarmPlan
from peer.lab.localswarm.run import Swarm
from peer.lab.sim.links import Link, capped
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.event_codec import read_lines
from peer.observe.events import Evaluated, Event, RoundDue, RoundEnded, RoundMissed
from peer.ports.trainer import Counters
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.home import Home
from peer.run.manifest import Manifest, default_text, derive, load_signed, parse_manifest
from peer.run.model_layout import layout_for
from peer.run.presets import resolve
from peer.trainer.arena import read_counters
from peer.trainer.model import first_params
from tests.support.real_trainer import ModelTrainer, config_of

PEERS = 4
SPEED = 0.15
"""Part of the time that a real trainer works: four and their daemons share what cores there are."""
SETTINGS = ("sync.clock=seconds", "train.batch=2", "train.eval_every=2", "train.eval_windows=64")
LOOPBACK = Link("loopback", 1e10, 1e10, 0.0001)


@dataclass(frozen=True, slots=True)
class Found:
    """Of one swarm; means over its peers where nothing else is said."""

    exchanged: int
    """Rounds of all peers."""
    solo: int
    exchange_s: float
    """Median."""
    waited_s: float
    """A round."""
    waited: float
    """Part of the time."""
    besides_s: float
    """From a round's due to its outer step, less the exchange: finding each other, encoding, stepping; median."""
    sent: float
    """Bytes of payload a round."""
    steps: float
    step_s: float
    """Seconds between two steps while the trainer did not wait."""
    loss: dict[int, float]
    reasons: dict[str, int]
    """Why a round, or a part of it, was not exchanged, and how often."""


Journal = list[tuple[Event, float]]
"""Events and when they were written."""


def found(told: list[Journal], counters: list[Counters], seconds: float) -> Found:
    """`seconds`: from the first round's begin to the last one's due."""
    journals = [[event for event, _ in journal] for journal in told]
    ended = [event for journal in journals for event in journal if isinstance(event, RoundEnded)]
    exchanged = [event for event in ended if event.outcome == "exchanged"]
    waited, steps = sum(c.seconds_waiting for c in counters), sum(c.steps for c in counters)
    after = waited * len(counters) / len(ended)  # the last round's wait comes after its due
    return Found(
        exchanged=len(exchanged),
        solo=len(ended) - len(exchanged),
        exchange_s=statistics.median(event.seconds for event in exchanged),
        waited_s=waited / len(ended),
        waited=waited / (seconds * len(counters)),
        besides_s=statistics.median(besides for journal in told for besides in besides_of(journal)),
        sent=statistics.mean(event.bytes_sent for event in exchanged),
        steps=steps / len(counters),
        step_s=(seconds * len(counters) + after - waited) / steps,
        loss=losses(journals),
        reasons=reasons(journals),
    )


def besides_of(journal: Journal) -> Iterable[float]:
    """Of each exchanged round of one peer."""
    due = {event.round: at for event, at in journal if isinstance(event, RoundDue)}
    for event, at in journal:
        if isinstance(event, RoundEnded) and event.outcome == "exchanged":
            yield at - due[event.round] - event.seconds


def reasons(journals: Iterable[list[Event]]) -> dict[str, int]:
    """Without what is told of single peers."""
    events = [event for journal in journals for event in journal if isinstance(event, RoundEnded | RoundMissed)]
    return dict(Counter(re.sub(r"12D3Koo\w+|\d+\.\d+", "…", event.reason) for event in events if event.reason))


def losses(journals: Iterable[list[Event]]) -> dict[int, float]:
    """The mean over the peers by round."""
    by_round: dict[int, list[float]] = {}
    for journal in journals:
        for event in journal:
            if isinstance(event, Evaluated):
                by_round.setdefault(event.round, []).append(event.loss)
    return {round_: statistics.mean(values) for round_, values in sorted(by_round.items())}


def really(text: str, seconds: float, cap: float, home: Path) -> Found:
    options = ("--max-upload", str(cap), "--max-download", str(cap))
    plan = SwarmPlan(
        peers=PEERS,
        manifest=text,
        minutes=None,
        kills=(),
        joins=(),
        speeds=dict.fromkeys(range(1, PEERS + 1), SPEED),
        home=home,
        seed=0,
        join_options=options,
    )
    asyncio.run(Swarm(plan, lambda line: None).run())
    signed = load_signed(home / "run.toml")
    folders = [Home(home / f"peer-{number}").run(signed.run_id) for number in range(1, PEERS + 1)]
    journals = [[line for line in read_lines(folder.journal) if line is not None] for folder in folders]
    fragments = resolve(signed.manifest.sync).fragments
    return found(journals, [read_counters(folder.path, fragments) for folder in folders], seconds)


def simulated(manifest: Manifest, layout: Layout, seconds: float, cap: float, step_s: float) -> Found:
    method = resolve(manifest.sync)

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> ModelTrainer:
        return ModelTrainer(config_of(manifest, f"peer {number}"), layout, clock, step_seconds=step_s)

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            PEERS,
            method=method,
            rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
            total_rounds=manifest.train.total_rounds,
            seed=manifest.seed,
            layout=layout,
            links=capped(LOOPBACK, cap, cap),
            eval_every=manifest.train.eval_every,
            first=first_params(manifest.model, manifest.seed, layout),
            make_trainer=trainer,
            min_peers=PEERS,
        )
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    return found(
        [list(zip(peer.events, peer.times, strict=True)) for peer in swarm.peers],
        [peer.counters() for peer in swarm.peers],
        seconds,
    )


def compare(preset: str, given: argparse.Namespace, folder: Path) -> dict[str, Found]:
    settings = [*SETTINGS, f"sync.preset={preset}", f"sync.sync_every={given.seconds}", f"train.total_rounds={1}"]
    rounds = given.rounds * resolve(parse_manifest(derive(default_text(), settings).encode()).sync).fragments
    text = derive(default_text(), [*settings[:-1], f"train.total_rounds={rounds}"])
    manifest = parse_manifest(text.encode())
    method = resolve(manifest.sync)
    layout, seconds = layout_for(manifest.model, method), given.rounds * given.seconds
    real = really(text, seconds, given.cap, folder / preset)
    return {"real": real, "simulated": simulated(manifest, layout, seconds, given.cap, real.step_s)}


def show(preset: str, rows: dict[str, Found]) -> None:
    columns = (
        f"{'exchanged':>10}{'solo':>6}{'exchange s':>12}{'besides s':>11}{'waited s':>10}{'of time':>9}{'sent MB':>9}"
    )
    print(f"\n{preset:<18}{columns}  loss")
    for name, row in rows.items():
        curve = " ".join(f"{loss:.3f}" for loss in row.loss.values())
        print(
            f"{name:<18}{row.exchanged:>10}{row.solo:>6}{row.exchange_s:>12.3f}{row.besides_s:>11.3f}{row.waited_s:>10.3f}"
            f"{row.waited:>9.2%}{row.sent / 1e6:>9.4f}  {curve}"
        )
        for reason, count in row.reasons.items():
            print(f"    {count} x {reason}")
    real, other = rows["real"], rows["simulated"]
    waited = f"{other.waited_s / real.waited_s:>10.3f}" if real.waited_s else f"{'-':>10}"
    exchange, sent = other.exchange_s / real.exchange_s, other.sent / real.sent
    print(f"{'over real':<34}{exchange:>12.3f}{'':>11}{waited}{'':>9}{sent:>9.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="noloco,diloco,streaming-noloco")
    parser.add_argument("--cap", type=float, default=150e3, help="bytes per second, each way")
    parser.add_argument("--seconds", type=float, default=14.0, help="sync_every")
    parser.add_argument("--rounds", type=int, default=9, help="of every fragment")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, dict[str, dict[str, object]]] = {}
    with tempfile.TemporaryDirectory(prefix="peer-reality-") as folder:
        for preset in given.presets.split(","):
            pair = compare(preset, given, Path(folder))
            show(preset, pair)
            rows[preset] = {name: asdict(one) for name, one in pair.items()}
            if given.json:
                given.json.write_text(json.dumps({"cap": given.cap, "sync_every": given.seconds, "rows": rows}))


if __name__ == "__main__":
    main()
