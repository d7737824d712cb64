"""One seed of the promises: a small swarm with its links and faults, all drawn from the seed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from blake3 import blake3

from peer.lab.sim.faults import Fault, random_plan
from peer.lab.sim.links import PROFILES
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.methods.registry import PRESETS as ALL_PRESETS
from peer.observe.event_codec import encode
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness

PRESETS = ("noloco", "streaming-noloco", "diloco", "streaming-diloco", "none")
ELEMENTS = {"pair": 16, "solo": 16, "group": 5 * 128}
"""Elements of a fragment, enough for several shards in groups."""
ROUND_S = 20.0
ROUNDS = 8
RATES = {
    "kill": 6.0,
    "stall": 6.0,
    "kill_trainer": 6.0,
    "partition": 3.0,
    "cut": 3.0,
    "cut_one_way": 3.0,
    "loss_burst": 3.0,
    "slow_link": 3.0,
}
"""Faults per peer and hour, chosen such that each kind occurs in three minutes."""


@dataclass(frozen=True)
class Played:
    seed: int
    preset: str
    peers: int
    plan: tuple[Fault, ...]
    done: int
    outcomes: Counter[str]
    broken: list[str]
    digest: str
    """BLAKE3 of all journals with their times, and of the final outer params of the peers."""

    def __str__(self) -> str:
        plan = "".join(f"\n    {fault!r}," for fault in self.plan)
        broken = "".join(f"\n  BROKEN {sentence}" for sentence in self.broken)
        what = f"{self.peers} peers, {self.done} faults, {dict(self.outcomes)}{broken}"
        return (
            f"seed {self.seed} preset {self.preset}: {what}"
            f"\n  plan = [{plan}\n  ]\n  again: python -m tests.simulation --preset {self.preset} --seed {self.seed}"
        )


def play(seed: int, preset: str) -> Played:
    rng = random.Random(f"scenario {seed}")
    count = rng.randint(3, 8)
    method = resolve(
        SyncSection(
            preset=preset,
            clock="seconds",
            sync_every=ROUND_S * (2 if ALL_PRESETS[preset].method.schedule == "streaming" else 1),
            founders=count if ALL_PRESETS[preset].method.topology == "group" else None,
        )
    )
    plan = random_plan(seed, count, ROUNDS * ROUND_S, RATES, round_s=ROUND_S)  # type: ignore[arg-type]
    names = [name for name in PROFILES if name != "lan"]

    async def main() -> tuple[SimulatedSwarm, Witness]:
        speeds = {number: rng.uniform(0.1, 2.0) for number in range(count)}
        links = {number: PROFILES[rng.choice(names)] for number in range(count)}
        swarm = SimulatedSwarm(
            count,
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", method.sync_every, method.fragments, EPOCH),
                total_rounds=ROUNDS,
                seed=seed,
                layout=layout_of(method, ELEMENTS[method.topology]),
            ),
            SwarmWorld(links=links),
            step_seconds=speeds,
        )
        witness = Witness(swarm)
        await swarm.run(plan)
        return swarm, witness

    swarm, witness = run_virtual(main())
    outcomes = sum((peer.outcomes() for peer in swarm.peers), Counter[str]())
    return Played(
        seed, preset, count, plan, len(swarm.fault_injector.injected), outcomes, witness.broken(), digest_of(swarm)
    )


def digest_of(swarm: SimulatedSwarm) -> str:
    hasher = blake3()
    for peer in swarm.peers:
        for event, at in zip(peer.events, peer.times, strict=True):
            hasher.update(encode(event, at))
        if peer.life.outer is not None:
            hasher.update(peer.outer.params.numpy().tobytes())
    return hasher.hexdigest(16)
