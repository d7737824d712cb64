"""A newcomer to a pair run takes pieces of the operator's nodes, too, where it is close to the peers' state."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch

from peer.joining.donors import CLOSE_SYNCS, FIRST_ROUNDS, MAX_DONORS, MAX_NODES, SLOW_S, DonorPlaces
from peer.joining.offers import SnapshotOffer
from peer.lab.sim.links import Link
from peer.lab.sim.virtual_clock import run_virtual
from peer.protocol.messages import PeerId, Piece, StateIndex, Status
from tests.support.joining import LAYOUT, DonorWorld, state_of, trains, virtually

HOME = Link("home", up=20e3, down=1e7, latency_s=0.02)
NODES = ("node 0", "node 1", "node 2")


def slow_home(rounds_behind: int = 1, *, told: bool = True, first: int = 40) -> DonorWorld:
    """One home on a slow line, and three nodes on fast ones. `told`: the ticket names the nodes."""
    world = DonorWorld()
    world.donor("home", state_of(1), first)
    world.network.links[PeerId("home")] = HOME
    for name in NODES:
        world.donor(name, state_of(2), first - rounds_behind, Status.SERVING)
    world.nodes = frozenset(map(PeerId, NODES)) if told else frozenset()
    return world


async def seconds_to_join(world: DonorWorld) -> float:
    began = asyncio.get_running_loop().time()
    await world.join()
    return asyncio.get_running_loop().time() - began


@virtually
async def test_three_nodes_bring_what_one_slow_home_would_take_minutes_for() -> None:
    world = slow_home()
    assert 4 * LAYOUT.elements / HOME.up > 150
    assert await seconds_to_join(world) < 20


@pytest.mark.parametrize(
    ("behind", "told", "first"),
    [(CLOSE_SYNCS + 1, True, 40), (1, False, 40), (1, True, FIRST_ROUNDS + 1)],
    ids=["far behind", "a stranger that says it is a node", "the very first state"],
)
def test_pieces_of_another_node_are_not_mixed_in(behind: int, told: bool, first: int) -> None:
    async def test() -> None:
        world = slow_home(behind, told=told, first=first)
        assert torch.equal((await world.join()).outer.params, state_of(1).params)

    run_virtual(test())


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
    got = (await joining).fetched
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


def offer(name: str, round_: int = 40, status: Status = Status.TRAINING) -> SnapshotOffer:
    index = StateIndex("s", round_, b"", (Piece(0, 1, 4, b"d" * 32),))
    return SnapshotOffer(replace(trains(name, round_), status=status), index)


def test_nodes_take_no_place_of_peers_and_peers_none_of_nodes() -> None:
    names = [PeerId(f"node {n}") for n in range(MAX_NODES + 2)]
    places = DonorPlaces(frozenset(names), 1, momentum=False)
    some = [offer(f"peer {n}") for n in range(MAX_DONORS + 2)] + [offer(name, 39, Status.SERVING) for name in names]
    taken = [one.donor.peer_id for one in places.free(places.fitting(some, some[0], 2 * SLOW_S), ())]
    assert [name.startswith("peer") for name in taken] == [True] * MAX_DONORS + [False] * MAX_NODES
    assert places.free(some, taken) == []
    assert places.free(some, taken[1:]) == [some[0]]
    assert not places.left(taken, 2 * SLOW_S)
    peers = taken[:MAX_DONORS]
    assert (places.left(peers, 2 * SLOW_S), places.left(peers, 0.0), places.left(peers[1:], 0.0)) == (True, False, True)


@virtually
async def test_where_peers_are_fast_nothing_older_is_mixed_in() -> None:
    world = DonorWorld()
    world.network.link = replace(world.network.link, up=1e6)
    world.donor("peer", state_of(1), 40)
    world.donor("node", state_of(2), 39, Status.SERVING)
    world.nodes = frozenset({PeerId("node")})
    assert torch.equal((await world.join()).outer.params, state_of(1).params)


def test_rounds_of_a_streaming_run_are_parts_of_a_sync() -> None:
    node, behind = frozenset({PeerId("node")}), 4 * CLOSE_SYNCS
    old = offer("node", 40 - behind, Status.SERVING)
    for fragments, fits in ((1, False), (4, True)):
        places, peer = DonorPlaces(node, fragments, momentum=False), offer("a")
        assert (places.fitting([old], peer, 2 * SLOW_S) == [old]) is fits
        assert places.fitting([old], peer, 0.0) == []
        assert (places.fitting([peer], old, 0.0) == [peer]) is fits, "a peer is welcome at any time"
