"""Swarms without faults, in settings where limits against strangers could affect honest peers: few peers, few networks,
no proven peers, and no operator."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from peer.lab.sim.directory import MemoryDirectory
from peer.lab.sim.faults import Fault
from peer.lab.sim.process import RUN
from peer.lab.sim.setting import SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

PARTICIPATION = 0.95
"""Minimum fraction of rounds with an exchange, of those for which a peer is present."""
HOUR_S, DAY_S = 3600.0, 86400.0
NODE = PeerId("sim-999")


def play(
    addresses: Sequence[str],
    round_s: float,
    rounds: int,
    faults: Sequence[Fault] = (),
    *,
    seed: int = 1,
    node_until_s: float = 0.0,
) -> SimulatedSwarm:
    """Let peers at these addresses do `rounds` rounds. `node_until_s`: how long the operator's node announces its
    record."""
    print(f"seed {seed}")

    async def main() -> SimulatedSwarm:
        method = resolve(SyncSection(preset="noloco", codec="fp32", sync_every=round_s))
        world = SwarmWorld(stops=False, nodes=frozenset({NODE}))
        clock = RoundClock("seconds", round_s, 1, EPOCH)
        setting = SwarmSetting(method=method, rounds=clock, total_rounds=rounds, seed=seed)
        swarm = SimulatedSwarm(len(addresses), setting, world, step_seconds=round_s / 20)
        at = {peer.peer_id: addresses[peer.number] for peer in swarm.peers}
        swarm.network.address = lambda peer: at.get(peer, "192.0.2.1:1")
        serving = asyncio.create_task(serve(swarm, node_until_s))
        try:
            await swarm.run(faults)
        finally:
            serving.cancel()
            await asyncio.wait({serving})
        return swarm

    return run_virtual(main())


async def serve(swarm: SimulatedSwarm, until_s: float) -> None:
    """Announce the operator's node in the directory for this many seconds."""
    directory, now = MemoryDirectory(swarm.hub, NODE, RUN), swarm.hub.now
    record = PeerRecord(NODE, RUN, ("192.0.2.1:1",), True, 1, 1, 0, 0.0, Status.SERVING, 0.0, 0.0)
    while now() < EPOCH + until_s:
        await directory.announce(replace(record, issued_at=now(), expires_at=now() + 45.0))
        await asyncio.sleep(15.0)


def check(swarm: SimulatedSwarm, rounds: int, there: Mapping[int, float] = {}) -> None:
    """Check that every peer exchanged in nearly all rounds for which it was present (the fraction `there`), and that no
    work was lost."""
    shares = [peer.outcomes()["exchanged"] / rounds / there.get(peer.number, 1.0) for peer in swarm.peers]
    print("participation", [round(share, 3) for share in shares])
    assert min(shares) >= PARTICIPATION, shares
    assert [peer.ledger().imbalance for peer in swarm.peers] == [0] * len(swarm.peers)


def test_two_peers_alone() -> None:
    check(play(["198.51.100.1:1", "203.0.113.1:1"], 20.0, 100), 100)


@pytest.mark.nightly
def test_five_homes_behind_one_address() -> None:
    homes = [f"198.51.100.7:{port}" for port in range(1, 6)]
    others = [f"203.0.{number}.1:1" for number in range(3)]
    check(play([*homes, *others], 60.0, 100), 100)


@pytest.mark.nightly
def test_a_laboratory_in_one_network() -> None:
    check(play([f"198.51.100.{host}:1" for host in range(1, 17)], 60.0, 60), 60)


@pytest.mark.nightly
def test_a_run_whose_operator_is_gone_for_a_day() -> None:
    """One peer returns meanwhile without any state, and fetches it from the others."""
    round_s, away_s = 300.0, 2 * HOUR_S
    rounds = int(DAY_S / round_s)
    faults = [Fault("kill", 3, at=8 * HOUR_S), Fault("rejoin", 3, at=8 * HOUR_S + away_s)]
    addresses = [f"203.0.{number}.1:1" for number in range(8)]
    swarm = play(addresses, round_s, rounds, faults, node_until_s=600.0)
    odd = 1 - away_s / DAY_S / 7  # while one of eight is away, one of the remaining seven has no partner
    check(swarm, rounds, dict.fromkeys(range(8), odd) | {3: 1 - away_s / DAY_S})
    assert len(swarm.peers[3].lives) == 2


@pytest.mark.nightly
def test_a_first_hour_in_which_everybody_is_a_stranger() -> None:
    check(play([f"203.0.{number}.1:1" for number in range(16)], 60.0, 60), 60)
