"""Peers that cannot be dialled: callable peers wait for their calls, and no round hangs."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from peer.lab.sim.links import PROFILES, Link
from peer.lab.sim.process import OPERATOR
from peer.lab.sim.setting import SwarmSetting, SwarmWorld, layout_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.observe.events import RoundEnded
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.seeds import seeds

METHOD = resolve(SyncSection(preset="noloco", codec="fp32"))
SECONDS = RoundClock("seconds", 20.0, 1, EPOCH)
STEPS = RoundClock("steps", 20, 1)


def simulate(
    count: int,
    behind: set[int],
    total: int,
    rounds: RoundClock,
    seed: int = 3,
    links: Link | None = None,
    one_network: frozenset[int] = frozenset(),
) -> SimulatedSwarm:
    print(f"seed {seed}")

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            count,
            SwarmSetting(
                method=METHOD,
                rounds=rounds,
                total_rounds=total,
                seed=seed,
                layout=None if links is None else layout_of(METHOD, 16),
            ),
            SwarmWorld(only_dial_out=behind, links=links),
        )
        swarm.put_on_one_router(one_network)
        await swarm.run()
        return swarm

    return run_virtual(main())


def pairs(swarm: SimulatedSwarm) -> list[frozenset[str]]:
    return [
        frozenset((peer.peer_id, other))
        for peer in swarm.peers
        for other in peer.partners().values()
        if peer.peer_id < other
    ]


@pytest.mark.parametrize("rounds", [SECONDS, STEPS], ids=["seconds", "steps"])
def test_one_public_peer_and_two_that_only_dial_out(rounds: RoundClock) -> None:
    swarm = simulate(3, {1, 2}, 30, rounds)
    public, one, other = (peer.peer_id for peer in swarm.peers)
    formed = pairs(swarm)
    assert set(formed) == {frozenset((public, one)), frozenset((public, other))}
    assert len(formed) >= 27
    assert min(formed.count(pair) for pair in set(formed)) >= 8  # both pairs get their share of the rounds
    assert [peer.reach.reachable for peer in swarm.peers] == [True, False, False]


@pytest.mark.parametrize("seed", seeds([1], 3))
def test_every_pair_that_can_form_forms(seed: int) -> None:
    behind = {0, 3, 5}
    swarm = simulate(8, behind, 40, SECONDS, seed)
    formed = set(pairs(swarm))
    for one, other in itertools.combinations(range(8), 2):
        pair = frozenset((swarm.peers[one].peer_id, swarm.peers[other].peer_id))
        assert (pair in formed) == (not {one, other} <= behind)
    assert len(pairs(swarm)) >= 0.95 * 4 * 40


def test_where_half_only_dial_out_hardly_anybody_is_left_over() -> None:
    """Two callable peers do not pair while an uncallable one is free: otherwise two uncallable peers would be left
    over."""
    count = 12
    swarm = simulate(count, set(range(0, count, 2)), 20, SECONDS, links=PROFILES["home"])
    assert len(pairs(swarm)) >= 0.9 * count / 2 * 20


@pytest.mark.parametrize("seed", seeds([1], 2))
def test_who_is_only_called_learns_that_its_line_is_full_and_waits_for_its_callers(seed: int) -> None:
    swarm = simulate(8, {0, 1, 2, 3, 4, 5}, 20, RoundClock("seconds", 30.0, 1, EPOCH), seed, PROFILES["full"])
    assert len(pairs(swarm)) > 0.75 * 2 * 20, "the two that can be dialled, with one of the others each"


def test_two_that_cannot_be_dialled_go_on_alone() -> None:
    swarm = simulate(3, {0, 1, 2}, 10, SECONDS)
    assert pairs(swarm) == []
    assert all(peer.outcomes()["solo"] == 10 for peer in swarm.peers)


def test_homes_on_one_router_meet_although_nobody_outside_can_dial_them() -> None:
    homes = frozenset(range(5))
    swarm = simulate(6, set(homes), 40, SECONDS, one_network=homes)
    formed = pairs(swarm)
    assert {frozenset(pair) for pair in itertools.combinations([peer.peer_id for peer in swarm.peers], 2)} == set(
        formed
    )
    assert len(formed) >= 0.95 * 3 * 40
    assert [peer.reach.reachable for peer in swarm.peers] == [False] * 5 + [True]


def test_homes_hear_the_signed_start_from_the_one_node_that_can_be_dialled() -> None:
    ready_s, soon_s = 30.0, 8.0

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(method=METHOD, rounds=RoundClock("seconds", 20.0, 1, 0.0), total_rounds=10, seed=3)
        swarm = SimulatedSwarm(5, setting, SwarmWorld(only_dial_out={1, 2, 3, 4}))
        node = swarm.peers[0].statements

        async def sign() -> None:
            await asyncio.sleep(ready_s)
            begins = EPOCH + ready_s + soon_s
            node.add_own([node.log.sign_start(OPERATOR, begins, EPOCH + ready_s)])

        async with asyncio.timeout(3600.0), asyncio.TaskGroup() as group:
            group.create_task(sign())
            group.create_task(swarm.run())
        return swarm

    for peer in run_virtual(main()).peers:
        ended = [event.round for event in peer.events if isinstance(event, RoundEnded)]
        assert ended == list(range(10)), "nobody waits for ever, and nobody begins late"
