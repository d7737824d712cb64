"""Swarms of closed homes: peers behind routers that let nothing in, relays with a cap, and sites that share one line.
Everything is drawn from the seed."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.links import PROFILES, Link
from peer.lab.sim.nat import NATS
from peer.lab.sim.report import Report, report_of
from peer.lab.sim.setting import ClosedHomes, MakeTrainer, Sites, SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe import events
from peer.protocol.messages import PathKind
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness

HELD = 1024
"""Elements that each peer has. On the wire they stand for all parameters."""
FAR = 10.0
"""Size of the first params. It is large compared with the distance between partners, as in real models, so that the
codec of pairs sends no block twice."""


@dataclass(frozen=True, kw_only=True)
class ClosedSwarm:
    """Settings of a swarm."""

    seed: int = 1
    peers: int = 64
    closed: float = 0.9
    """Fraction of the peers that cannot be dialled."""
    nat: str = "symmetric"
    cap: float = 128e3
    """Bytes per second that each relay forwards. Every peer that is not closed is a relay."""
    nodes: int = 1
    """Number of nodes of the operator, which are relays too."""
    hours: float = 24.0
    sync_every: float = 600.0
    parameters: int = 4_000_000
    preset: str = "noloco"
    link: Link = PROFILES["home"]
    step_seconds: float = 2.0
    tiny: bool = False
    """Whether a small model is really trained."""
    sites: Sites | None = None

    @property
    def shut(self) -> list[int]:
        """Indices of the closed peers."""
        rng = random.Random(f"closed {self.seed}")
        return sorted(rng.sample(range(self.peers), round(self.peers * self.closed)))


@dataclass(frozen=True)
class ClosedPlay:
    """Results of playing a swarm."""

    report: Report
    paths: Counter[PathKind]
    """Paths of the swaps, counted once for each side."""
    broken: list[str]
    """Descriptions of broken promises."""
    why_not: Counter[str]
    """Reasons of rounds without an exchange, with their counts."""
    relayed_bytes: list[float]
    """Bytes that each relay forwarded."""
    processor_s: float
    relays: int = field(default=0)

    @property
    def exchanged(self) -> float:
        """Fraction of the due rounds with an exchange that ended before the next round."""
        return self.report.exchanged / self.report.due


def play_closed(given: ClosedSwarm, watch: Callable[[SimulatedSwarm], None] = lambda swarm: None) -> ClosedPlay:
    """Play a swarm to its end. `watch` is called with it before the first round."""
    sync = {"preset": given.preset, "clock": "seconds", "sync_every": given.sync_every}
    method = resolve(SyncSection.model_validate(sync))
    pattern = "whole" if method.schedule == "full" else method.fragment_layout
    tiny = cut(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart)
    layout = tiny if given.tiny else layout_of(method, HELD // method.fragments)
    drawn = FAR * torch.randn(layout.elements, generator=torch.Generator().manual_seed(given.seed))
    shut, rounds = given.shut, int(given.hours * 3600 / method.round_length)
    homes = ClosedHomes(
        nats=dict.fromkeys(shut, NATS[given.nat]), relay_cap=given.cap, nodes=given.nodes, sites=given.sites
    )
    witnesses, began = list[Witness](), time.process_time()

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            given.peers,
            SwarmSetting(
                method=method,
                rounds=method.round_clock(EPOCH),
                total_rounds=rounds,
                seed=given.seed,
                layout=layout,
                first=first_params(given.seed, layout) if given.tiny else drawn,
            ),
            SwarmWorld(
                links=given.link,
                stops=False,
                weight=given.parameters / layout.elements,
                closed=homes,
            ),
            make_trainer=_trainers(given),
        )
        witnesses.append(Witness(swarm))
        watch(swarm)
        await swarm.run()
        return swarm

    swarm = run_virtual(main())
    seconds = time.process_time() - began
    ended = [event for peer in swarm.peers for event in peer.events if isinstance(event, events.RoundEnded)]
    relays = [node.peer_id for node in swarm.nodes]
    relays += [peer.peer_id for peer in swarm.peers if peer.number not in shut]
    return ClosedPlay(
        report_of(swarm, given.hours, seconds),
        swarm.network.swap_paths,
        witnesses[0].broken(),
        Counter(_short(event.reason) for event in ended if event.outcome != "exchanged"),
        [swarm.network.load(relay).relayed for relay in relays],
        seconds,
        len(relays),
    )


def _trainers(given: ClosedSwarm) -> MakeTrainer:
    def make(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        if given.tiny:
            return TinyTrainer(layout, clock, step_seconds=given.step_seconds, seed=given.seed, data=f"peer {number}")
        return FakeTrainer(layout, clock, step_seconds=given.step_seconds, seed=given.seed * 1000 + number)

    return make


def _short(reason: str) -> str:
    """Return the most common outcome in a reason, without its count."""
    fate = reason.partition(": ")[2].partition(",")[0]
    return fate.partition(" ")[2] or reason
