"""The production round loop in virtual time: pairs form although views differ, all peers meet, and ledgers balance."""

from __future__ import annotations

import itertools

import pytest

from peer.lab.sim.setting import DirectoryViews, SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.methods.method import Method
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

SECONDS = RoundClock("seconds", 20.0, 1, EPOCH)
STEPS = RoundClock("steps", 20, 1)


def noloco() -> Method:
    return resolve(SyncSection(preset="noloco", codec="fp32"))


def simulate(
    count: int,
    total_rounds: int,
    seed: int = 1,
    rounds: RoundClock = SECONDS,
    missing_views: float = 0.0,
    step_seconds: dict[int, float] | float = 0.1,
) -> SimulatedSwarm:
    print(f"seed {seed}")

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            count,
            SwarmSetting(method=noloco(), rounds=rounds, total_rounds=total_rounds, seed=seed),
            SwarmWorld(views=DirectoryViews(missing=missing_views)),
            step_seconds=step_seconds,
        )
        await swarm.run()
        return swarm

    return run_virtual(main())


def paired_rounds(swarm: SimulatedSwarm) -> dict[int, list[frozenset[str]]]:
    """Return the pairs of each round, and assert that partners name each other."""
    by_round: dict[int, list[frozenset[str]]] = {}
    books = {peer.peer_id: peer.partners() for peer in swarm.peers}
    for me, partners in books.items():
        for round_, other in partners.items():
            assert books[other].get(round_) == me, f"round {round_}: {me} exchanged with {other}, not the reverse"
            if me < other:
                by_round.setdefault(round_, []).append(frozenset((me, other)))
    return by_round


@pytest.mark.parametrize(
    ("count", "total_rounds"), [(3, 40), (5, 60), pytest.param(16, 200, marks=pytest.mark.nightly)]
)
def test_pairs_form_although_views_miss_a_tenth_and_everybody_meets(count: int, total_rounds: int) -> None:
    swarm = simulate(count, total_rounds, missing_views=0.1)
    by_round = paired_rounds(swarm)
    possible = (count // 2) * total_rounds
    formed = sum(len(pairs) for pairs in by_round.values())
    assert formed >= 0.95 * possible, f"{formed} of {possible} possible pairs"
    met = {pair for pairs in by_round.values() for pair in pairs}
    everybody = {frozenset(pair) for pair in itertools.combinations([p.peer_id for p in swarm.peers], 2)}
    assert met == everybody, f"{len(everybody - met)} pairs never met"


@pytest.mark.parametrize("rounds", [SECONDS, STEPS], ids=["seconds", "steps"])
def test_the_ledger_balances_and_nobody_waits_long(rounds: RoundClock) -> None:
    swarm = simulate(4, 20, rounds=rounds)
    for peer in swarm.peers:
        book = peer.ledger()
        assert book.processed > 0
        assert book.imbalance == 0
        assert peer.outcomes()["exchanged"] >= 18
        counters = peer.counters()
        assert counters.seconds_waiting < 0.05 * counters.seconds_training


def test_odd_one_out_takes_a_solo_step_at_once() -> None:
    swarm = simulate(3, 20)
    for round_ in range(2, 20):
        assert len(paired_rounds(swarm).get(round_, [])) == 1
    assert sum(peer.outcomes()["solo"] for peer in swarm.peers) >= 18
    for peer in swarm.peers:
        assert peer.counters().seconds_waiting < 0.05 * peer.counters().seconds_training


def test_a_slow_peer_delays_nobody_and_its_work_counts() -> None:
    swarm = simulate(4, 30, step_seconds={0: 0.1, 1: 0.1, 2: 0.1, 3: 1.0})
    for peer in swarm.peers[:3]:
        counters = peer.counters()
        assert counters.seconds_waiting < 0.05 * counters.seconds_training
    slow = swarm.peers[3]
    assert slow.outcomes()["exchanged"] >= 25
    assert slow.ledger().applied > 0


def test_a_run_is_the_same_run_again() -> None:
    one, other = (simulate(5, 12, seed=7, missing_views=0.1) for _ in range(2))
    assert [peer.events for peer in one.peers] == [peer.events for peer in other.peers]
