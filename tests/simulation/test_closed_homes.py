"""Swarms in which few peers, or only a node of the operator, can be dialled still exchange."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from peer.lab.sim.links import PROFILES
from peer.lab.sim.swarm import SimulatedSwarm
from peer.observe import events
from peer.protocol.messages import PathKind, PeerId
from peer.protocol.pair.address_quota import PLACES
from tests.simulation.closed import ClosedSwarm, play_closed


def failures(swarm: SimulatedSwarm) -> Counter[str]:
    """Return the codes of failed exchanges."""
    return Counter(e.code for peer in swarm.peers for e in peer.events if isinstance(e, events.PartnerFailed))


def relays_left(swarm: SimulatedSwarm) -> set[str]:
    return {e.relay for peer in swarm.peers for e in peer.events if isinstance(e, events.RelayLeft)}


@pytest.mark.nightly
def test_a_swarm_of_strangers_that_is_nearly_closed_exchanges_from_the_first_round_on() -> None:
    """There are more strangers than places for closed peers without an attested address, and each is relayed."""
    given = ClosedSwarm(seed=1, peers=20, closed=0.9, hours=0.7)
    print(f"seed {given.seed}")
    assert len(given.shut) > PLACES
    seen = list[SimulatedSwarm]()
    play = play_closed(given, seen.append)
    first = [e for peer in seen[0].peers for e in peer.events if isinstance(e, events.RoundEnded) and e.round == 0]
    assert sum(e.outcome == "exchanged" for e in first) >= 0.9 * given.peers
    assert play.exchanged >= 0.95
    assert play.paths[PathKind.RELAYED] > play.paths[PathKind.DIRECT] > 0
    assert play.broken == []
    assert play.report.ledger_imbalance == 0
    told = [e for peer in seen[0].peers for e in peer.events if isinstance(e, events.RoundEnded)]
    assert {e.path for e in told if e.outcome == "exchanged"} == {"relayed", "direct"}


@pytest.mark.parametrize(
    ("nat", "path"),
    [("symmetric", PathKind.RELAYED), ("port-restricted", PathKind.PUNCHED)],
    ids=["relayed", "punched"],
)
def test_nobody_but_the_operators_node_can_be_dialled(nat: str, path: PathKind) -> None:
    given = ClosedSwarm(seed=2, peers=6, closed=1.0, nat=nat, hours=1.0)
    print(f"seed {given.seed}")
    swarms = list[SimulatedSwarm]()
    play = play_closed(given, swarms.append)
    assert play.exchanged >= 0.95
    assert play.paths.keys() == {path}
    assert play.broken == []
    assert [peer.reach.reachable for peer in swarms[0].peers] == [False] * given.peers
    assert bool(play.relayed_bytes[0]) == (path is PathKind.RELAYED)


def test_a_relay_that_dies_in_the_middle_of_swaps_costs_nobody_a_round() -> None:
    """Its peers reserve places at other relays, and the swaps resume there where they broke."""
    given = ClosedSwarm(seed=3, peers=8, closed=1.0, nodes=3, hours=0.7)
    print(f"seed {given.seed}")
    swarms, killed = list[SimulatedSwarm](), list[PeerId]()

    def watch(swarm: SimulatedSwarm) -> None:
        swarms.append(swarm)

        async def kill() -> None:
            await asyncio.sleep(1.5 * given.sync_every)
            while not killed:
                await asyncio.sleep(1.0)
                busy = [node for node in swarm.nodes if swarm.network.paths.busy(node.peer_id)]
                if len(busy) == len(swarm.nodes):
                    killed.append(busy[0].peer_id)
                    await busy[0].close()

        killing.append(asyncio.create_task(kill()))

    killing = list[asyncio.Task[None]]()
    play = play_closed(given, watch)
    assert killed
    assert play.exchanged == 1.0
    assert not failures(swarms[0])
    assert relays_left(swarms[0]) == set(killed)
    assert play.broken == []


def test_without_the_operators_node_those_that_know_each_other_go_on() -> None:
    given = ClosedSwarm(seed=4, peers=8, closed=0.5, hours=1.0)
    print(f"seed {given.seed}")

    def watch(swarm: SimulatedSwarm) -> None:
        async def kill() -> None:
            await asyncio.sleep(1.2 * given.sync_every)
            await swarm.nodes[0].close()

        killing.append(asyncio.create_task(kill()))

    killing = list[asyncio.Task[None]]()
    play = play_closed(given, watch)
    assert play.exchanged >= 0.95
    assert play.broken == []


def test_a_payload_that_no_relay_can_pass_on_in_time_is_not_begun() -> None:
    given = ClosedSwarm(seed=6, peers=8, closed=1.0, parameters=400_000_000, hours=0.7, link=PROFILES["fibre"])
    print(f"seed {given.seed}")
    swarms = list[SimulatedSwarm]()
    play = play_closed(given, swarms.append)
    assert play.report.exchanged == 0
    assert failures(swarms[0]).keys() == {"relay_busy"}
    assert play.relayed_bytes == [0.0]
    assert play.report.compute_utilization > 0.94, "looking for partners takes what is left"
    assert play.broken == []


@pytest.mark.parametrize(
    ("preset", "cap"),
    [
        ("streaming-diloco", 128e3),
        pytest.param("diloco", 1e6, marks=pytest.mark.nightly),
        pytest.param("streaming-noloco", 128e3, marks=pytest.mark.nightly),
    ],
)
def test_other_methods_work_over_relays_too(preset: str, cap: float) -> None:
    """The trainers of `diloco` wait until 4 MB per round are transferred, so the relay has to be faster."""
    given = ClosedSwarm(
        seed=7, peers=6, closed=1.0, cap=cap, hours=0.5, parameters=100_000, preset=preset, sync_every=300.0
    )
    print(f"seed {given.seed}")
    play = play_closed(given)
    assert play.exchanged >= 0.95
    assert play.broken == []
    assert play.report.truths in (None, 1)
