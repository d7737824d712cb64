"""Machines that differ twentyfold meet without waiting for each other; one whose steps are longer than a round takes
part when it can, and its work counts."""

from __future__ import annotations

import pytest

from peer.observe.events import RoundEnded, SatOut
from peer.protocol.roundclock import RoundClock
from peer.run.presets import resolve
from peer.run.sections import SyncSection
from peer.testing.clock import EPOCH, run_virtual
from peer.testing.swarm import SimulatedSwarm

ROUNDS = RoundClock("seconds", 20.0, 1, EPOCH)
TOTAL = 24


def simulate(step_seconds: dict[int, float]) -> SimulatedSwarm:
    async def main() -> SimulatedSwarm:
        method = resolve(SyncSection(preset="noloco", codec="fp32"))
        count = len(step_seconds)
        swarm = SimulatedSwarm(
            count, method=method, rounds=ROUNDS, total_rounds=TOTAL, seed=4, step_seconds=step_seconds
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


def test_a_step_longer_than_a_round_is_done_and_exchanged_and_delays_nobody() -> None:
    """25 s in rounds of 20 s: a step, then an exchange at the next moment that a round is due."""
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
