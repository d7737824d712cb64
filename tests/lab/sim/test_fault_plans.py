"""Fault plans can be printed and played again, each fault has its effect, and the invariants notice broken promises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest

from peer.lab.sim.faults import RATES, Fault, random_plan
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.invariants import Witness

METHOD = resolve(SyncSection(preset="noloco", codec="fp32"))


def play(faults: Iterable[Fault], rounds: int = 8) -> tuple[SimulatedSwarm, Witness]:
    async def main() -> tuple[SimulatedSwarm, Witness]:
        clock = RoundClock("seconds", 20.0, 1, EPOCH)
        swarm = SimulatedSwarm(4, SwarmSetting(method=METHOD, rounds=clock, total_rounds=rounds, seed=3))
        witness = Witness(swarm)
        await swarm.run(faults)
        return swarm, witness

    return run_virtual(main())


def kinds(swarm: SimulatedSwarm, peer: int) -> list[str]:
    return [event.kind for event in swarm.peers[peer].events]


def test_a_printed_plan_is_the_plan() -> None:
    many = dict.fromkeys(RATES, 20.0)
    plan = random_plan(7, 5, 3600, many, round_s=60)
    assert eval(repr(plan), {"Fault": Fault}) == plan
    assert {fault.kind for fault in plan} == {*RATES, "restart", "rejoin"}
    assert plan == random_plan(7, 5, 3600, many, round_s=60)
    assert plan != random_plan(8, 5, 3600, many, round_s=60)


@pytest.mark.parametrize(("kind", "word"), [("restart", "own checkpoint"), ("rejoin", "fetched from")])
def test_a_killed_machine_comes_back_and_its_ledger_goes_on(kind: str, word: str) -> None:
    swarm, witness = play([Fault("kill", 2, at=70.0), Fault(kind, 2, at=95.0)])  # type: ignore[arg-type]
    (started,) = [event for event in swarm.peers[2].events if isinstance(event, events.Started)]
    assert word in started.resumed
    assert "dropped" in kinds(swarm, 2)
    rounds = [e.round for e in swarm.peers[2].events if isinstance(e, events.RoundEnded)]
    assert max(rounds) == 7
    assert 4 not in rounds
    assert witness.broken() == []


def test_a_kill_comes_in_the_middle_of_what_the_peer_does() -> None:
    swarm, witness = play([Fault("kill", 1, on="round_due", nth=3)])
    assert kinds(swarm, 1)[-1] == "round_due"
    assert swarm.peers[1].killed
    assert witness.broken() == []


def test_a_stopped_machine_notices_nothing_and_goes_on() -> None:
    swarm, witness = play([Fault("stall", 1, at=50.0, seconds=47.0)])
    peer = swarm.peers[1]
    assert not [at for at in peer.times if 50 < at < 97]
    assert [e.round for e in peer.events if isinstance(e, events.RoundEnded)][-1] == 7
    assert witness.broken() == []


def test_the_partitioned_exchange_on_their_side_only() -> None:
    swarm, witness = play([Fault("partition", 0, at=45.0, seconds=80.0, others=(1,))])
    for peer in swarm.peers:
        for round_, partner in peer.partners().items():
            if 3 <= round_ <= 4:
                assert (peer.number < 2) == (partner in ("sim-000", "sim-001"))
    assert witness.broken() == []


def test_faults_that_met_nobody_did_not_happen() -> None:
    swarm, _ = play([Fault("restart", 1, at=30.0), Fault("kill", 2, at=40.0), Fault("stall", 2, at=50.0, seconds=5.0)])
    assert [fault.kind for _, fault in swarm.fault_injector.injected] == ["kill"]


def test_broken_promises_are_seen() -> None:
    async def main() -> list[str]:
        clock = RoundClock("seconds", 20.0, 1, EPOCH)
        swarm = SimulatedSwarm(3, SwarmSetting(method=METHOD, rounds=clock, total_rounds=5, seed=3))
        witness = Witness(swarm)

        async def spoil() -> None:
            await asyncio.sleep(50)
            swarm.peers[0].outer.params += 1.0
            swarm.peers[1].journal(events.Dropped(fragment=0, dropped=64, upto=0, reason="just so"))
            last = next(e for e in reversed(swarm.peers[2].events) if isinstance(e, events.RoundEnded))
            swarm.peers[2].journal(last)
            swarm.network.on_payload_sent(swarm.peers[2].peer_id, None, None)

        task = asyncio.create_task(spoil())
        await swarm.run()
        await task
        swarm.peers[2].life.outer = None
        swarm.network.on_payload_sent(swarm.peers[2].peer_id, None, None)
        return witness.broken()

    broken = " ".join(run_virtual(main()))
    for sentence in (
        "1 no third value: sim-002",
        "2 conservation: sim-001",
        "4 no amnesia: sim-002",
        "8 local progress",
    ):
        assert sentence in broken, broken
