"""Eager updates in virtual time with the production round loop: an exchange may take most of a period, and no trainer
waits for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peer.lab.sim.faults import Fault
from peer.lab.sim.links import Link
from peer.lab.sim.setting import MakeTrainer, SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.protocol.model.fragments import cut
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

PEERS, ROUNDS, SEED = 4, 16, 5
LAYOUT = cut(TENSORS, fragments=2, pattern="strided")


def trainers() -> MakeTrainer:
    return lambda number, layout, clock: TinyTrainer(layout, clock, step_seconds=0.5, seed=SEED, data=f"peer {number}")


def play(*faults: Fault, link: Link | None = None, **sync: Any) -> SimulatedSwarm:
    chosen = {"preset": "eager", "clock": "seconds", "sync_every": 20.0, "founders": PEERS}
    method = resolve(SyncSection(**(chosen | sync)))
    print(f"seed {SEED}")

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(
            method=method,
            rounds=method.round_clock(EPOCH),
            total_rounds=ROUNDS,
            seed=SEED,
            layout=LAYOUT,
            first=first_params(SEED, LAYOUT),
            min_peers=PEERS,
        )
        swarm = SimulatedSwarm(PEERS, setting, SwarmWorld(links=link), make_trainer=trainers())
        await swarm.run(faults)
        return swarm

    return run_virtual(main())


def losses(swarm: SimulatedSwarm, number: int = 0) -> list[float]:
    return [event.loss for event in swarm.peers[number].events if isinstance(event, events.Evaluated)]


@pytest.mark.parametrize("clock", [{"clock": "seconds"}, {"clock": "steps", "sync_every": 40}])
def test_all_hold_one_state_learn_and_lose_no_work(clock: dict[str, Any]) -> None:
    swarm = play(**clock)
    for peer in swarm.peers:
        assert torch.equal(peer.outer.params, swarm.peers[0].outer.params)
        book = peer.ledger()
        assert book.imbalance == 0
        assert book.applied > 0.9 * book.processed - 2 * 20 * 16 * LAYOUT.elements
        assert peer.outcomes()["exchanged"] >= ROUNDS - 2
    assert losses(swarm)[-1] < 0.9 * losses(swarm)[0]


def test_nobody_waits_for_an_exchange_of_most_of_a_round() -> None:
    swarm = play(link=Link("thin", up=6000.0, down=60000.0, latency_s=0.02))
    took = [e.seconds for peer in swarm.peers for e in peer.events if isinstance(e, events.RoundEnded) and e.seconds]
    assert sorted(took)[len(took) // 2] > 2.0
    for peer in swarm.peers:
        counters = peer.counters()
        assert counters.seconds_waiting < 0.05 * counters.seconds_training
        assert peer.outcomes()["exchanged"] >= ROUNDS - 4


def test_a_member_that_dies_and_a_joiner_find_the_shared_state() -> None:
    swarm = play(Fault("kill", 1, at=45.0), Fault("rejoin", 1, at=75.0), Fault("kill_trainer", 2, at=62.0))
    for peer in swarm.peers:
        assert torch.equal(peer.outer.params, swarm.peers[0].outer.params)
        assert peer.ledger().imbalance == 0
    assert swarm.peers[1].outcomes()["exchanged"] >= 6


def test_a_member_that_missed_a_round_goes_on_with_the_others_state() -> None:
    swarm = play(Fault("stall", 3, at=58.0, seconds=9.0))
    for peer in swarm.peers:
        assert torch.equal(peer.outer.params, swarm.peers[0].outer.params)
        assert peer.ledger().imbalance == 0
