"""Chaos plans follow from a seed, leave time to recover, and can be played in the simulator."""

from __future__ import annotations

import pytest

from peer.errors import UsageError
from peer.lab.sim.fault_profiles import EVERYTHING, PROFILES, Profile, chaos_plan, parse_profile
from peer.lab.sim.faults import Fault
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness
from tests.support.seeds import seeds

SIMULATED = Profile({kind: weight for kind, weight in EVERYTHING.items() if kind != "stall_trainer"}, 15.0)


def test_a_profile_is_a_name_and_maybe_a_rate() -> None:
    assert parse_profile("rough") is PROFILES["rough"]
    assert parse_profile("all@20s").every_s == 20
    assert parse_profile("all@7.5").weights == EVERYTHING
    for bad in ("some", "all@", "all@0", "all@nan", "all@-3s"):
        with pytest.raises(UsageError):
            parse_profile(bad)


def test_a_seed_draws_one_plan_and_the_printed_plan_is_the_plan() -> None:
    plan = chaos_plan(parse_profile("all@5s"), 3, 8, 3600, 10)
    assert plan == chaos_plan(parse_profile("all@5s"), 3, 8, 3600, 10)
    assert plan != chaos_plan(parse_profile("all@5s"), 4, 8, 3600, 10)
    assert eval(repr(plan), {"Fault": Fault}) == plan
    assert {fault.kind for fault in plan} == {*EVERYTHING, "restart", "rejoin"}


@pytest.mark.parametrize("peers", [2, 3, 8])
def test_faults_leave_room(peers: int) -> None:
    round_s, duration_s = 10.0, 1800.0
    plan = chaos_plan(parse_profile("all@3s"), 1, peers, duration_s, round_s)
    assert len(plan) > 20
    spans: list[tuple[float, float, frozenset[int]]] = []
    for fault in plan:
        assert fault.at is not None
        if fault.kind == "kill":
            back = [f.at for f in plan if f.kind in ("restart", "rejoin") and f.peer == fault.peer and f.at is not None]
            until = min(at for at in back if at > fault.at)
        else:
            until = fault.at + fault.seconds
        assert until <= duration_s - 3 * round_s + 0.1, "the last recovery can be seen"
        if fault.kind not in ("restart", "rejoin"):
            spans.append((fault.at, until, frozenset((fault.peer,))))
    for at, _, who in spans:
        others = [w for a, u, w in spans if a <= at < u and w != who]
        assert len(others) < max(2, peers // 2)
        assert not [1 for a, u, w in spans if w == who and a < at < u + round_s - 0.1], "one at a time"


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_plan_plays_in_the_simulator(seed: int) -> None:
    method = resolve(SyncSection(preset="noloco", codec="fp32"))
    plan = chaos_plan(SIMULATED, seed, 5, 600, 20.0)

    async def main() -> tuple[SimulatedSwarm, Witness]:
        clock = RoundClock("seconds", 20.0, 1, EPOCH)
        swarm = SimulatedSwarm(5, SwarmSetting(method=method, rounds=clock, total_rounds=30, seed=seed))
        witness = Witness(swarm)
        await swarm.run(plan)
        return swarm, witness

    swarm, witness = run_virtual(main())
    assert witness.broken() == []
    assert [fault for _, fault in swarm.fault_injector.injected] == list(plan)
    last = [event for event in swarm.peers[0].events if isinstance(event, events.RoundEnded)][-1]
    assert last.round == 29


def test_new_kinds_do_what_they_say() -> None:
    method = resolve(SyncSection(preset="noloco", codec="fp32"))

    async def main(*plan: Fault) -> SimulatedSwarm:
        clock = RoundClock("seconds", 20.0, 1, EPOCH)
        swarm = SimulatedSwarm(2, SwarmSetting(method=method, rounds=clock, total_rounds=12, seed=1))
        await swarm.run(plan)
        return swarm

    def exchanged(swarm: SimulatedSwarm) -> set[int]:
        return set(swarm.peers[0].partners())

    severed = run_virtual(main(Fault("sever", 0, at=41.0, seconds=40.0, others=(1,))))
    assert exchanged(severed) == set(range(12)) - {2, 3}
    jumped = run_virtual(main(Fault("clock_jump", 0, at=41.0, seconds=40.0, amount=3600.0)))
    assert exchanged(jumped) == set(range(12))
    full = run_virtual(main(Fault("disk_full", 0, at=1.0, seconds=500.0)))
    assert full.peers[0].disk.checkpoint is None
    assert full.peers[1].disk.checkpoint is not None
    with pytest.raises(UsageError, match="virtual trainer"):
        run_virtual(main(Fault("stall_trainer", 0, at=41.0, seconds=4.0)))
