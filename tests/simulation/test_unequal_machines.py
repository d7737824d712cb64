"""Machines whose speeds differ twentyfold meet without waiting for each other. A machine whose steps are longer than a
round takes part when it can, and its work counts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params
from peer.lab.sim.trainer import VirtualTrainer
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import PartnerFailed, RoundEnded, SatOut, StandingLowered
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.seeds import nightly

ROUNDS = RoundClock("seconds", 20.0, 1, EPOCH)
TOTAL = 24


def simulate(step_seconds: dict[int, float], rounds: RoundClock = ROUNDS, total: int = TOTAL) -> SimulatedSwarm:
    async def main() -> SimulatedSwarm:
        method = resolve(SyncSection(preset="noloco", codec="fp32"))
        count = len(step_seconds)
        swarm = SimulatedSwarm(
            count, SwarmSetting(method=method, rounds=rounds, total_rounds=total, seed=4), step_seconds=step_seconds
        )
        await swarm.run()
        return swarm

    return run_virtual(main())


def test_twentyfold_differences_cost_nobody_a_round() -> None:
    swarm = simulate({0: 0.1, 1: 0.5, 2: 1.0, 3: 2.0})
    for peer in swarm.peers:
        assert peer.outcomes()["exchanged"] >= TOTAL - 3
        assert peer.ledger().imbalance == 0
        counters = peer.counters()
        assert counters.seconds_waiting < 0.1 * counters.seconds_training
    tokens = [peer.counters().tokens for peer in swarm.peers]
    assert tokens[0] / tokens[3] == pytest.approx(20, rel=0.15), "each does the steps it can"


@pytest.mark.parametrize("round_s", [60.0, *nightly([300.0])])
@pytest.mark.parametrize("step_s", [*nightly([4.0, 8.0]), 16.0])
def test_strangers_wait_for_each_others_steps(step_s: float, round_s: float) -> None:
    """Steps of several seconds end at different times, so peers are ready up to one step apart. All are strangers at
    first, and in a larger swarm remain so for long."""
    rng = random.Random(step_s + round_s)
    steps = {number: step_s * rng.uniform(0.7, 1.4) for number in range(7)} | {7: 0.5}
    swarm = simulate(steps, RoundClock("seconds", round_s, 1, EPOCH), 10)
    outcomes = sum((peer.outcomes() for peer in swarm.peers), Counter())
    assert outcomes["exchanged"] >= 0.9 * outcomes.total()
    assert not [event for peer in swarm.peers for event in peer.events if isinstance(event, PartnerFailed)]
    for peer in swarm.peers:
        assert peer.counters().seconds_waiting < 10 * (1.5 * step_s)


def test_a_step_longer_than_a_round_is_done_and_exchanged_and_delays_nobody() -> None:
    """A step takes 25 s in rounds of 20 s: after each step, the peer exchanges at the next due moment."""
    swarm = simulate({0: 0.1, 1: 0.1, 2: 0.1, 3: 25.0})
    slow = swarm.peers[3]
    exchanged = [e for e in slow.events if isinstance(e, RoundEnded) and e.outcome == "exchanged"]
    assert len(exchanged) >= TOTAL // 2 - 4
    assert all(event.steps == 1 for event in exchanged)
    sat_out = [e for e in slow.events if isinstance(e, SatOut)]
    assert sat_out, "the rounds that fall due within a step"
    assert slow.ledger().imbalance == 0
    for peer in swarm.peers[:3]:
        assert peer.counters().seconds_waiting < 0.1 * peer.counters().seconds_training


def group_of(step_seconds: dict[int, float], preset: str) -> SimulatedSwarm:
    """Return a group that really trains. An inner optimizer is slow in its first ten steps, so that a member with sixty
    steps moves five hundred times as far as members with one."""

    async def main() -> SimulatedSwarm:
        method = resolve(SyncSection(preset=preset, codec="fp32"))
        pattern = "whole" if method.schedule == "full" else method.fragment_layout
        layout = cut(TENSORS, fragments=method.fragments, pattern=pattern, apart=method.fragments_apart)

        def make(number: int, layout: Layout, clock: VirtualClock) -> VirtualTrainer:
            return TinyTrainer(layout, clock, step_seconds=step_seconds[number], seed=4, data=f"peer {number}")

        swarm = SimulatedSwarm(
            len(step_seconds),
            SwarmSetting(
                method=method,
                rounds=RoundClock("seconds", 20.0, method.fragments, EPOCH),
                total_rounds=int(TOTAL * 20.0 / method.round_length),
                seed=4,
                layout=layout,
                first=first_params(4, layout),
            ),
            make_trainer=make,
        )
        await swarm.run()
        return swarm

    return run_virtual(main())


@pytest.mark.parametrize("preset", ["diloco", "streaming-diloco"])
@pytest.mark.parametrize("slow", [1, *nightly([4, 7])])
def test_in_a_group_nobody_is_blamed_for_a_machine_that_is_sixty_times_faster(preset: str, slow: int) -> None:
    swarm = group_of({number: 15.0 if number < slow else 0.25 for number in range(8)}, preset)
    blamed = [str(event) for peer in swarm.peers for event in peer.events if isinstance(event, StandingLowered)]
    assert not blamed
    for peer in swarm.peers[slow:]:
        outcomes = peer.outcomes()
        assert outcomes["exchanged"] >= 0.9 * (outcomes.total())
    assert [peer.ledger().imbalance for peer in swarm.peers] == [0] * 8
