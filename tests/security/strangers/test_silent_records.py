"""Records that never answer do not prevent honest peers from exchanging. In virtual time and without addresses, so the
effect of the budget of dials is not included."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from peer.lab.sim.process import RUN
from peer.lab.sim.setting import DirectoryViews, SwarmSetting, SwarmWorld
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

PEERS, SILENT = 4, 40
ROUND_S, ROUNDS = 20.0, 20
LIFE_S = 60.0
METHOD = resolve(SyncSection(preset="noloco", codec="fp32", clock="seconds", sync_every=ROUND_S))
Name = Callable[[int, int], str]


def same_keys(era: int, number: int) -> str:
    return f"silent-{number:03d}"


def new_keys(era: int, number: int) -> str:
    return f"silent-{1000 * (era + 1) + number}"


async def announce(swarm: SimulatedSwarm, name: Name) -> None:
    """Announce the silent records during the run under `name`, and count how often they were read."""
    for era in range(int(ROUNDS * ROUND_S / LIFE_S) + 1):
        now = swarm.hub.now()
        for number in range(SILENT):
            peer = PeerId(name(era, number))
            record = PeerRecord(
                peer, RUN, (f"203.0.{number}.9:1",), True, 1, 1, 0, 0.0, Status.TRAINING, now, now + LIFE_S
            )
            swarm.hub.store_unsigned(record)
        await asyncio.sleep(LIFE_S)


def exchanged(name: Name | None) -> list[int]:
    """Run the swarm. Return the number of exchanges per round."""

    async def main() -> SimulatedSwarm:
        swarm = SimulatedSwarm(
            PEERS,
            SwarmSetting(
                method=METHOD,
                rounds=RoundClock("seconds", METHOD.sync_every, METHOD.fragments, EPOCH),
                total_rounds=ROUNDS,
                seed=4,
            ),
            SwarmWorld(views=DirectoryViews(look=1000)),
        )
        swarm.network.dialable = lambda peer: not peer.startswith("silent")
        showing = None if name is None else asyncio.create_task(announce(swarm, name))
        await swarm.run()
        if showing is not None:
            showing.cancel()
        return swarm

    swarm = run_virtual(main())
    met = [round_ for peer in swarm.peers for round_ in peer.partners()]
    return [met.count(round_) for round_ in range(ROUNDS)]


@pytest.mark.parametrize("name", [same_keys, new_keys])
def test_honest_peers_go_on_meeting_among_records_that_never_answer(name: Name) -> None:
    assert sum(exchanged(None)) == PEERS * ROUNDS
    met = exchanged(name)
    assert sum(met) >= 0.9 * PEERS * ROUNDS
