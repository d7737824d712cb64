"""A joiner of a pair run must also use the operator's nodes if their state is close to that of the peers."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch

from peer.lab.sim.links import Link
from peer.protocol.messages import PeerId, Status
from tests.support.joining import LAYOUT, DonorWorld, state_of, virtually

HOME = Link("home", up=20e3, down=1e7, latency_s=0.02)
NODES = ("node 0", "node 1", "node 2")


async def seconds_to_join(world: DonorWorld) -> float:
    began = asyncio.get_running_loop().time()
    await world.join()
    return asyncio.get_running_loop().time() - began


@virtually
async def test_three_nodes_bring_what_one_slow_home_would_take_minutes_for() -> None:
    world = DonorWorld()
    world.donor("home", state_of(1), 40)
    world.network.links[PeerId("home")] = HOME
    for name in NODES:
        world.donor(name, state_of(2), 39, Status.SERVING)
    world.nodes = frozenset(map(PeerId, NODES))
    assert 4 * LAYOUT.elements / HOME.up > 150
    assert await seconds_to_join(world) < 20


@virtually
async def test_who_waits_is_told_percent_rate_and_donors_all_the_time() -> None:
    world = DonorWorld()
    world.donor("home", state_of(1), 40)
    world.network.links[PeerId("home")] = HOME
    await world.join()
    assert world.shown[0] == ("asking who gives the state", 0.0, None, "s")
    fetching = [told for told in world.shown if told[0].startswith("fetching the state (1 donor: home 1")]
    done = [told[1] for told in fetching]
    assert done == sorted(done)
    assert len(set(done)) > LAYOUT.elements * 4 / 2**18, "more often than whole pieces come"
    assert world.shown[-1][0] == "checking the fetched state"


@virtually
async def test_a_wait_for_a_donor_is_no_slow_line() -> None:
    world = DonorWorld()
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(60)
    world.donor("home", state_of(1), 40)
    got = (await joining).transfer
    assert got is not None
    assert got.seconds < 10


@virtually
async def test_a_node_that_copies_its_state_joins_in_when_it_has_it() -> None:
    world = DonorWorld()
    world.donor("home", state_of(1), 40)
    world.network.links[PeerId("home")] = HOME
    world.delay(world.donor("node", state_of(2), 39, Status.SERVING), 5.0)
    world.nodes = frozenset({PeerId("node")})
    assert await seconds_to_join(world) < 40


@virtually
async def test_a_peer_that_comes_later_goes_on_with_what_nodes_began() -> None:
    world = DonorWorld()
    world.network.link = replace(world.network.link, up=2e5)
    world.donor("node", state_of(2), 39, Status.SERVING)
    world.nodes = frozenset({PeerId("node")})
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(4.0)
    world.donor("a", state_of(1), 40)
    assert "2 donors" in (await joining).why


@virtually
async def test_where_peers_are_fast_nothing_older_is_mixed_in() -> None:
    world = DonorWorld()
    world.network.link = replace(world.network.link, up=1e6)
    world.donor("peer", state_of(1), 40)
    world.donor("node", state_of(2), 39, Status.SERVING)
    world.nodes = frozenset({PeerId("node")})
    assert torch.equal((await world.join()).outer.params, state_of(1).params)
