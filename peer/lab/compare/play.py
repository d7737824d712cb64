"""Runs one method of a comparison: as processes on this machine, or in virtual time with the tiny model."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peer.lab.compare.curve import Journal, SwarmCourse, course_of
from peer.lab.compare.entries import Entry
from peer.lab.localswarm.plan import PeerSetups, SwarmPlan, with_founders
from peer.lab.localswarm.run import Swarm, check
from peer.lab.orders import check_orders, unmet_lines
from peer.lab.run_sources import RunSources
from peer.lab.sim.run import SimulationSettings, simulate
from peer.lab.sim.speeds import speeds_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS
from peer.observe.event_codec import read_lines
from peer.observe.totals import rotated_path
from peer.run.home import Home

TINY_PARAMETERS = sum(tensor.elements for tensor in TENSORS)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualPlace:
    """The machines and links of a simulation, as `peer.lab.sim.run.SimulationSettings` takes them."""

    link: str = "cable"
    churn: float = 0.0
    availability: str = ""
    speeds: float | str = 1.0
    step_seconds: float = 1.0

    @property
    def description(self) -> str:
        """A sentence about the settings, for people."""
        more = f", churn {self.churn:g} an hour" if self.churn else ""
        more += f", availability {self.availability}" if self.availability else ""
        more += f", {speeds}" if (speeds := speeds_of(self.speeds).description) else ""
        return f"virtual time: tiny model, {self.link} links, {self.step_seconds:g} s a step{more}"


def play_virtual(entry: Entry, seed: int, place: VirtualPlace) -> SwarmCourse:
    """Simulate a method. The tiny model learns, while its payloads take as long and count as many bytes as those of the
    manifest's model. Raises UsageError for a method that cannot be simulated, OrdersNotCarriedOut if the swarm did not
    finish all rounds or the churn hit no peer."""
    manifest, method = entry.manifest, entry.method
    slowest_step_s = place.step_seconds / speeds_of(place.speeds).slowest(seed, entry.peers)
    seconds = method.round_length * (slowest_step_s if method.clock == "steps" else 1.0)
    seen: list[SimulatedSwarm] = []
    settings = SimulationSettings(
        peers=entry.peers,
        batches=entry.batches,
        manifest=entry.seeded(seed),
        hours=manifest.train.total_rounds * seconds / 3600,
        link=place.link,
        churn=place.churn if entry.peers > 1 else 0.0,  # the only peer cannot depart
        availability=place.availability if entry.peers > 1 else "",
        speeds=place.speeds,
        step_seconds=place.step_seconds,
        trainer="tiny",
        stands_for=manifest.model.parameters,
        eval_every=manifest.train.eval_every,
    )
    check_orders(simulate(settings, seen.append).orders)
    journals = (zip(peer.times, peer.events, strict=True) for swarm in seen for peer in swarm.peers)
    return course_of(journals, manifest.model.parameters / TINY_PARAMETERS)


def play_real(
    entry: Entry,
    seed: int,
    home: Path,
    say: Say,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    *,
    sources: RunSources | None = None,
    setups: PeerSetups | None = None,
) -> SwarmCourse:
    """Run a method as processes, with their homes in a new folder `home`, which is removed on success.

    sources: the files that the manifest names. setups: folders of the peers' own texts, and other settings of peers.

    Raises SwarmFailed if a peer fails, OrdersNotCarriedOut if the swarm did not finish all rounds, KeyboardInterrupt if
    a person stops it."""
    plan = SwarmPlan(
        peers=entry.peers,
        manifest=with_founders(entry.seeded(seed), entry.peers),
        home=home,
        seed=seed,
        sources=sources or RunSources(),
        setups=setups or PeerSetups(),
    )
    swarm = Swarm(plan, say)
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        report = runner.run(swarm.run())
    if swarm.stopped:
        raise KeyboardInterrupt
    check(report, home)
    for line in unmet_lines(report["orders"]):
        say(line)
    check_orders(report["orders"])
    run_id = bytes.fromhex(report["run_id"])
    course = course_of([journal_of(home / f"peer-{number}", run_id) for number in range(1, entry.peers + 1)])
    shutil.rmtree(home)
    return course


def journal_of(home: Path, run_id: bytes) -> Journal:
    """Return the events of a peer's journal, both of its files, with their times."""
    path = Home(home).run(run_id).journal
    lines = [line for part in (rotated_path(path), path) for line in read_lines(part)]
    return [(at, event) for event, at in filter(None, lines)]
