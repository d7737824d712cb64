"""Growing rounds in virtual time with the production round loop: peers meet in each round, joiners compute the same
rounds, and no work is lost."""

from __future__ import annotations

from typing import Any

import pytest

from peer.lab.sim.faults import Fault
from peer.lab.sim.setting import SwarmSetting, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe import events
from peer.protocol.round_lengths import round_of, slots_of
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

SLOTS = 24
GROWTH = [[4, 2], [8, 5], [10, 2]]
ROUNDS = round_of(tuple((first, slots) for first, slots in GROWTH), SLOTS)


def play(*faults: Fault, **sync: Any) -> SimulatedSwarm:
    method = resolve(SyncSection(growth_lr=1.0, growth=GROWTH, **sync))
    print("seed 3")

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(
            method=method,
            rounds=method.round_clock(EPOCH),
            total_rounds=ROUNDS,
            seed=3,
            layout=layout_of(method),
            min_peers=4,
        )
        swarm = SimulatedSwarm(4, setting)
        await swarm.run(faults)
        return swarm

    return run_virtual(main())


def ended(swarm: SimulatedSwarm, number: int) -> dict[int, events.RoundEnded]:
    return {event.round: event for event in swarm.peers[number].events if isinstance(event, events.RoundEnded)}


PAIRS = {"preset": "noloco", "codec": "fp32"}
STREAMS = {"preset": "streaming-diloco", "founders": 4}


@pytest.mark.parametrize("sync", [PAIRS, STREAMS], ids=["pairs", "streaming groups"])
@pytest.mark.parametrize("clock", [{"clock": "steps", "sync_every": 20}, {"clock": "seconds", "sync_every": 20.0}])
def test_all_meet_in_every_round(sync: dict[str, Any], clock: dict[str, Any]) -> None:
    swarm = play(**sync, **clock)
    assert sum(slots_of(swarm.rounds.growth, round_) for round_ in range(ROUNDS)) == SLOTS
    first = swarm.method.fragments - 1 if swarm.rounds.kind == "seconds" else 0  # after one complete sync_every
    for peer in swarm.peers:
        outcomes = [ended(swarm, peer.number)[round_].outcome for round_ in range(first, ROUNDS)]
        assert outcomes == ["exchanged"] * (ROUNDS - first)
        assert peer.ledger().imbalance == 0


def test_the_work_of_a_round_is_as_long_as_the_round() -> None:
    swarm = play(clock="steps", sync_every=20, **PAIRS)
    for peer in swarm.peers:
        steps = [ended(swarm, peer.number)[round_].steps for round_ in range(ROUNDS)]
        assert steps == [20, 20, 20, 20, 40, 40, 40, 40, 100, 100, 40]
        assert not any(event.dropped for event in ended(swarm, peer.number).values())


def test_a_joiner_plays_the_rounds_of_the_others() -> None:
    """It joins three slots before the end of a round of five, and has worked one `sync_every` when that round is
    due."""
    back = Fault("kill", 1, at=30.0), Fault("rejoin", 1, at=270.0)
    swarm = play(*back, clock="seconds", sync_every=20.0, **PAIRS)
    played = ended(swarm, 1)
    assert [round_ for round_ in played if round_ > 1] == [8, 9, 10]
    assert [played[round_].outcome for round_ in (8, 9, 10)] == ["exchanged"] * 3
    assert swarm.peers[1].ledger().imbalance == 0


def test_work_of_two_long_rounds_is_scaled_to_one() -> None:
    """A peer stands still when a round of five slots is due. The work of that round is added to that of the next round
    of five slots, and both are scaled by one half. Compared with one `sync_every` the factor would be one tenth."""
    swarm = play(Fault("stall", 2, at=335.0, seconds=30.0), clock="seconds", sync_every=20.0, **PAIRS)
    assert ended(swarm, 2).get(8) is None
    late = ended(swarm, 2)[9]
    assert late.applied / (late.applied + late.dropped) == pytest.approx(100 / 200, rel=0.05)
    assert swarm.peers[2].ledger().imbalance == 0
