"""Faults in virtual time: whenever they occur, the ledger balances and the other peers continue."""

from __future__ import annotations

import asyncio
import random

import pytest

from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe.events import Dropped, RoundEnded, TrainerDeath
from peer.protocol.messages import PeerId
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.seeds import seeds

ROUND_S = 20.0


def build(seed: int, total_rounds: int = 15, count: int = 5) -> SimulatedSwarm:
    method = resolve(SyncSection(preset="noloco", codec="fp32"))
    clock = RoundClock("seconds", ROUND_S, 1, EPOCH)
    return SimulatedSwarm(count, SwarmSetting(method=method, rounds=clock, total_rounds=total_rounds, seed=seed))


def no_third_value(peers: list[SimulatedPeer]) -> None:
    """Check promise 1: in each round a peer exchanged with one partner, did a solo step, or kept its values."""
    for peer in peers:
        rounds = [event.round for event in peer.events if isinstance(event, RoundEnded)]
        assert len(rounds) == len(set(rounds))


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_killed_trainers_come_back_and_their_lost_work_is_named(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def main() -> SimulatedSwarm:
        swarm = build(seed)

        async def kill_now_and_then() -> None:
            for _ in range(8):
                await asyncio.sleep(rng.uniform(5, 40))
                rng.choice(swarm.peers).trainer.kill()

        killer = asyncio.create_task(kill_now_and_then())
        await swarm.run()
        killer.cancel()
        return swarm

    swarm = run_virtual(main())
    deaths = sum(isinstance(event, TrainerDeath) for peer in swarm.peers for event in peer.events)
    assert deaths >= 3
    assert any(isinstance(event, Dropped) for peer in swarm.peers for event in peer.events)
    for peer in swarm.peers:
        assert peer.ledger().imbalance == 0
        assert peer.outcomes()["exchanged"] >= 5
    no_third_value(swarm.peers)


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_a_killed_peer_costs_the_others_one_window_at_most(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)

    async def main() -> tuple[SimulatedSwarm, SimulatedPeer]:
        swarm = build(seed)
        victim = rng.choice(swarm.peers)

        async def kill_once() -> None:
            await asyncio.sleep(rng.uniform(2 * ROUND_S, 6 * ROUND_S))
            swarm.kill(victim)

        killer = asyncio.create_task(kill_once())
        await swarm.run()
        await killer
        return swarm, victim

    swarm, victim = run_virtual(main())
    rest = [peer for peer in swarm.peers if peer is not victim]
    for peer in swarm.peers:
        assert peer.ledger().imbalance == 0
    for peer in rest:
        assert peer.outcomes().total() == 15
        assert peer.counters().seconds_waiting < ROUND_S / 4 + 3
    no_third_value(swarm.peers)


@pytest.mark.parametrize("seed", seeds(1, 10))
def test_a_partition_heals_and_each_side_goes_on(seed: int) -> None:
    print(f"seed {seed}")

    async def main() -> tuple[SimulatedSwarm, set[PeerId]]:
        swarm = build(seed, count=6)
        left = {peer.peer_id for peer in swarm.peers[:3]}

        async def cut() -> None:
            await asyncio.sleep(3 * ROUND_S + seed)
            swarm.network.connected = lambda one, other: (one in left) == (other in left)
            await asyncio.sleep(5 * ROUND_S)
            swarm.network.connected = lambda one, other: True

        cutter = asyncio.create_task(cut())
        await swarm.run()
        await cutter
        return swarm, left

    swarm, left = run_virtual(main())
    for peer in swarm.peers:
        assert peer.ledger().imbalance == 0
        assert peer.outcomes().total() == 15
    crossing = [
        round_
        for peer in swarm.peers
        for round_, partner in peer.partners().items()
        if (peer.peer_id in left) != (partner in left)
    ]
    assert min(crossing) < 5
    assert max(crossing) > 9, "the two sides come together again"
    no_third_value(swarm.peers)
