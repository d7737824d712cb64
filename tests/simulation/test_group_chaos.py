"""A group under all simulated faults, one every 14 s on average: live members take part, none is held up, and all end
with the same state. In virtual time, with the fault plans and the measurements of the chaos test of real processes."""

from __future__ import annotations

import random

import pytest

from peer.lab.localswarm.attendance import Attendance, attendance
from peer.lab.localswarm.chaos import FaultRecord
from peer.lab.sim.fault_profiles import chaos_plan, parse_profile
from peer.lab.sim.links import PROFILES
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness
from tests.support.seeds import nightly

pytestmark = pytest.mark.nightly

PEERS, SYNC_S, SECONDS, EVERY_S = 8, 10.0, 300.0, 14.0
LEAST = 0.95


def play(seed: int) -> tuple[SimulatedSwarm, Witness]:
    method = resolve(SyncSection(preset="streaming-diloco", clock="seconds", sync_every=SYNC_S))
    plan = chaos_plan(parse_profile(f"all@{EVERY_S}"), seed, PEERS, SECONDS, SYNC_S)
    rng = random.Random(seed)

    async def main() -> tuple[SimulatedSwarm, Witness]:
        swarm = SimulatedSwarm(
            PEERS,
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", SYNC_S, method.fragments, EPOCH),
                total_rounds=int(SECONDS / method.round_length),
                seed=seed,
                layout=layout_of(method, 5 * 128),
            ),
            SwarmWorld(links=PROFILES["lan"]),
            step_seconds={number: rng.uniform(0.05, 0.3) for number in range(PEERS)},
        )
        witness = Witness(swarm)
        await swarm.run(fault for fault in plan if fault.kind != "stall_trainer")
        return swarm, witness

    return run_virtual(main())


def attended(swarm: SimulatedSwarm) -> Attendance:
    journals = [[(EPOCH + at, e) for at, e in zip(p.times, p.events, strict=True)] for p in swarm.peers]
    fault_records = [
        FaultRecord(fault, EPOCH + at, EPOCH + at + fault.seconds) for at, fault in swarm.fault_injector.injected
    ]
    return attendance(journals, fault_records, swarm.rounds, swarm.total_rounds, swarm.method.topology_spec)


@pytest.mark.parametrize("seed", [3, *nightly([5])])
def test_rounds_of_the_living_end_in_time_and_with_one_state(seed: int) -> None:
    print(f"seed {seed}")
    swarm, witness = play(seed)
    seen = attended(swarm)
    assert len(swarm.fault_injector.injected) >= 15
    assert seen.live > 350
    assert seen.participation is not None
    assert seen.ended_in_time is not None
    assert seen.closed_in_time is not None
    assert seen.participation >= LEAST
    assert seen.ended_in_time >= LEAST
    assert seen.closed_in_time >= 0.99, "what is not exchanged is given up in time, by name"
    assert not witness.broken()
    assert [peer.ledger().imbalance for peer in swarm.peers] == [0] * PEERS
    fragments = range(swarm.method.fragments)
    assert len({tuple(peer.outer.digest(fragment) for fragment in fragments) for peer in swarm.peers}) == 1
