"""Swarms in which one peer, or the path between two peers, is slow or stuck, and the findings of every peer.

`python -m tests.simulation.culprits --seeds 20` prints the table of docs/decisions/0009-strangers-and-lines.md. Links
and steps fluctuate (log-normal), so that the culprit is not trivial to find."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from peer.lab.sim.bandwidth import STALL_S
from peer.lab.sim.fake_trainer import FakeTrainer
from peer.lab.sim.links import Link
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.observe.events import DiagnosisChanged
from peer.protocol.diagnosis.outliers import WINDOW, YOU, OutlierFinding
from peer.protocol.messages import PeerId
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

FAULTS = ("none", "slow_uplink", "slow_downlink", "slow_link", "late_trainer", "never_ready", "stalled")
NAMES = {"late_trainer": ("late_trainer", "never_ready")}
"""Findings that are correct for a fault, if several are: an exchange with a peer that is too late is ended before that
peer has begun."""
HOME = Link("home", up=250e3, down=1000e3, latency_s=0.01)
ELEMENTS = 98304
"""384 KiB in fp32: 1.6 s of the uplink."""
STEPS = 20
STEP_S = 0.5
TICK_S = 0.5
STOPS_AFTER_S = 0.7
FLICKER_TICKS = 14
"""Ticks after which every link changes its rate."""
RATE_NOISE = 0.3
STEP_NOISE = 0.1
SLOWER = 5.0
LATER = 1.5


@dataclass(frozen=True)
class Said:
    """The findings of the peers of one swarm at the end, and all changes of findings before."""

    fault: str
    seed: int
    culprits: tuple[PeerId, ...]
    said: dict[PeerId, list[OutlierFinding]]
    changes: dict[PeerId, list[DiagnosisChanged]]

    def accepted(self, speaker: PeerId, what: str, who: str) -> bool:
        """Return whether this finding names the culprit correctly."""
        named = speaker if who == YOU else who
        if self.fault == "slow_link":
            return what == "slow_link" and {speaker, PeerId(named)} == set(self.culprits)
        return what in NAMES.get(self.fault, (self.fault,)) and named in self.culprits

    def confesses(self) -> bool:
        """Return whether every culprit has found itself."""
        return all(
            any(self.accepted(culprit, finding.what, finding.who) for finding in self.said[culprit])
            for culprit in self.culprits
        )

    def witnesses(self) -> int:
        """Return the number of other peers that name the culprit."""
        return sum(
            bool(found) for peer, found in self.said.items() if peer not in self.culprits and not self._wrong(peer)
        )

    def wrong(self) -> list[tuple[PeerId, OutlierFinding]]:
        """Return the present findings that name anything else."""
        return [
            (peer, finding)
            for peer, found in self.said.items()
            for finding in found
            if not self.accepted(peer, finding.what, finding.who)
        ]

    def wrong_ever(self) -> int:
        """Return the number of peers that ever had a wrong finding."""
        return sum(
            any(not self.accepted(peer, change.what, change.who) for change in changes)
            for peer, changes in self.changes.items()
        )

    def _wrong(self, peer: PeerId) -> bool:
        return any(speaker == peer for speaker, _ in self.wrong())


class Unsteady(FakeTrainer):
    """A trainer whose steps have another length in every round."""

    def __init__(self, layout: Layout, clock: VirtualClock, mean_s: float, seed: int) -> None:
        super().__init__(layout, clock, step_seconds=mean_s, seed=seed)
        self._mean_s, self._unsteady = mean_s, random.Random(f"steps {seed}")

    async def work(self, request: Any) -> Any:
        if self._began is None:  # the trainer is idle
            self._step_seconds = self._mean_s * self._unsteady.lognormvariate(0.0, STEP_NOISE)
        return await super().work(request)


def watch(fault: str, seed: int, *, peers: int | None = None, rounds: int = WINDOW) -> Said:
    """Play one swarm with this fault and return its findings."""
    rng = random.Random(f"culprits {fault} {seed}")
    count = peers or rng.choice((8, 8, 10, 12, 16))
    numbers = tuple(rng.sample(range(count), 2 if fault == "slow_link" else 0 if fault == "none" else 1))
    method = resolve(SyncSection(preset="noloco", codec="fp32", clock="steps", sync_every=STEPS))

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
        slow = LATER if fault == "late_trainer" and number in numbers else 1.0
        return Unsteady(layout, clock, STEP_S * slow, seed * 1000 + number)

    async def main() -> Said:
        swarm = SimulatedSwarm(
            count,
            SwarmSetting(
                method=method,
                rounds=RoundClock("steps", STEPS, 1),
                total_rounds=rounds,
                seed=seed,
                layout=layout_of(method, ELEMENTS),
                eval_every=10**6,
                min_peers=count,
            ),
            SwarmWorld(links=HOME),
            make_trainer=trainer,
        )
        culprits = tuple(swarm.peers[number].peer_id for number in numbers)
        _spoil(swarm, fault, culprits)
        flicker = asyncio.create_task(_flicker(swarm, fault, culprits, rng))
        try:
            await swarm.run()
        finally:
            flicker.cancel()
            await asyncio.wait({flicker})
        built = {peer.peer_id: peer.life.parts for peer in swarm.peers}
        return Said(
            fault,
            seed,
            culprits,
            {peer: parts.members.slow_peers.found() for peer, parts in built.items() if parts},
            {
                peer.peer_id: [event for event in peer.events if isinstance(event, DiagnosisChanged)]
                for peer in swarm.peers
            },
        )

    with _one_thread():
        return run_virtual(main())


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread: the computations are small, and more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _spoil(swarm: SimulatedSwarm, fault: str, culprits: tuple[PeerId, ...]) -> None:
    if fault == "slow_link":
        swarm.network.path_rate = lambda one, other: HOME.up / SLOWER if {one, other} == set(culprits) else float("inf")
    if fault == "never_ready":
        swarm.network.is_mute = lambda peer: peer in culprits
    if fault == "stalled":
        swarm.network.flows.open = _Stopping(swarm.network.flows.open, culprits)


class _Stopping:
    """A network in which transfers from or to the culprits begin and then stop."""

    def __init__(self, passes: Callable[[PeerId, PeerId], bool], culprits: tuple[PeerId, ...]) -> None:
        self._passes, self._culprits = passes, culprits
        self._seen: dict[tuple[PeerId, PeerId], tuple[float, float]] = {}

    def __call__(self, one: PeerId, other: PeerId) -> bool:
        if not {one, other} & set(self._culprits):
            return self._passes(one, other)
        now = asyncio.get_running_loop().time()
        began, last = self._seen.get((one, other), (now, now))
        began = now if now - last > STALL_S else began
        self._seen[one, other] = began, now
        return self._passes(one, other) and now - began < STOPS_AFTER_S


async def _flicker(swarm: SimulatedSwarm, fault: str, culprits: tuple[PeerId, ...], rng: random.Random) -> None:
    for tick in itertools.count():
        if tick % FLICKER_TICKS == 0:
            for peer in swarm.peers:
                link = _drawn(rng.lognormvariate(0.0, RATE_NOISE), fault if peer.peer_id in culprits else "none")
                swarm.network.links[peer.peer_id] = link
            swarm.network.changed()
        for culprit in culprits:
            swarm.network.changed(culprit)
        await asyncio.sleep(TICK_S)


def _drawn(factor: float, fault: str) -> Link:
    up = HOME.up / SLOWER if fault == "slow_uplink" else HOME.up
    down = HOME.up / SLOWER if fault == "slow_downlink" else HOME.down
    return replace(HOME, up=up * factor, down=down * factor)


HEAD = """| fault | named by itself | named by others, of all | wrong at the end, of all peers | wrong ever |
| --- | --- | --- | --- | --- |"""


def row(fault: str, seeds: int) -> str:
    """Return a row of the table: results of a fault over several seeds. Prints wrong findings."""
    totals = Counter[str]()
    for seed in range(seeds):
        said = watch(fault, seed)
        totals["confesses"] += said.confesses()
        totals["witnesses"] += said.witnesses()
        totals["others"] += len(said.said) - len(said.culprits)
        totals["peers"] += len(said.said)
        totals["wrong"] += len({peer for peer, _ in said.wrong()})
        totals["ever"] += said.wrong_ever()
        for peer, finding in said.wrong():
            print(f"  {fault} seed {seed} {said.culprits}: {peer} says {finding}", flush=True)
    named = "-" if fault == "none" else f"{totals['confesses']} of {seeds}"
    witnesses = "-" if fault in ("none", "slow_link") else f"{totals['witnesses']} of {totals['others']}"
    return f"| {fault} | {named} | {witnesses} | {totals['wrong']} of {totals['peers']} | {totals['ever']} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    asked = parser.parse_args()
    print(HEAD)
    for fault in asked.faults:
        print(row(fault, asked.seeds), flush=True)


if __name__ == "__main__":
    main()
