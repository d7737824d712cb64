"""A peer whose upload budget is used trains alone, is no partner meanwhile, and takes part again afterwards."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from peer.errors import PartnerRefused
from peer.lab.sim.machine import SimulatedPeer
from peer.lab.sim.swarm import SimulatedSwarm
from peer.node.upload_quota import UploadQuota
from peer.observe.events import PartnerFailed, RoundEnded, RoundMissed
from peer.protocol.messages import Status
from peer.protocol.policy.upload_quota import UploadLimits
from tests.simulation.test_volunteers_pause import balanced, between, simulate

LIMITED = {1: UploadLimits(day=5 * 10**9)}
USED = "today's upload of 5 GB is used. Next exchange after 00:00"
UNTIL_SEEN_S = 25.0
"""Seconds after which a used budget shows: a little more than a round, because rounds that were open when it was used
up may still end."""


def use_up(quota: UploadQuota, claims: contextlib.ExitStack) -> None:
    """Claim all bytes that the quota still has."""
    for size in (10**number for number in range(10, -1, -1)):
        with contextlib.suppress(PartnerRefused):
            while True:
                claims.enter_context(quota.claim(size, 0, giving=False))


async def used_up_between(swarm: SimulatedSwarm, begin: float, end: float) -> None:
    peer = swarm.peers[1]
    quota = peer.life.quota
    assert isinstance(quota, UploadQuota)
    await asyncio.sleep(begin)
    with contextlib.ExitStack() as claims:
        use_up(quota, claims)
        await asyncio.sleep(end - begin)
        assert peer.round_loop.round_status.status is Status.TRAINING
        assert peer.round_loop.round_status.announced(quota.blocked_reason()) is Status.PAUSED


def ended(peer: SimulatedPeer, begin: float, end: float) -> list[RoundEnded]:
    return [event for event in between(peer, begin, end, RoundEnded) if isinstance(event, RoundEnded)]


@pytest.mark.parametrize("preset", ["noloco", "streaming-noloco"])
def test_a_pair_peer_goes_on_alone(preset: str) -> None:
    swarm = simulate(lambda swarm: used_up_between(swarm, 70, 190), preset, uploads=LIMITED)
    peer, others = swarm.peers[1], [peer for peer in swarm.peers if peer.number != 1]
    alone = ended(peer, 70 + UNTIL_SEEN_S, 190)
    assert len(alone) >= 3
    assert {(event.outcome, event.reason) for event in alone} == {("solo", USED)}
    assert all(event.steps > 0 for event in alone), "it trains"
    assert not between(peer, 70 + UNTIL_SEEN_S, 190, RoundMissed)
    for other in others:
        met = ended(other, 70 + UNTIL_SEEN_S, 190)
        assert {event.outcome for event in met} == {"exchanged"}, "four others are two pairs: nobody waits for it"
        assert all(peer.peer_id not in event.partner for event in met)
        failed = [e for e in between(other, 70, 190, PartnerFailed) if isinstance(e, PartnerFailed)]
        assert all(e.code == "budget" for e in failed), "it says why"
        assert not between(other, 70 + UNTIL_SEEN_S, 190, PartnerFailed)
    assert "exchanged" in {event.outcome for event in ended(peer, 190 + UNTIL_SEEN_S, 1000)}
    balanced(swarm)


def test_a_group_goes_on_without_it_and_takes_it_in_again() -> None:
    swarm = simulate(lambda swarm: used_up_between(swarm, 70, 190), "diloco", uploads=LIMITED)
    peer = swarm.peers[1]
    assert not ended(peer, 70 + UNTIL_SEEN_S, 190)
    missed = between(peer, 70 + UNTIL_SEEN_S, 190, RoundMissed)
    assert {event.reason for event in missed if isinstance(event, RoundMissed)} == {USED}
    for other in swarm.peers:
        if other is not peer:
            met = ended(other, 70 + UNTIL_SEEN_S, 190)
            assert met
            assert all(e.outcome == "exchanged" and len(e.partner.split()) == 3 for e in met)
    again = ended(peer, 190 + UNTIL_SEEN_S, 1000)
    assert [event.outcome for event in again].count("exchanged") >= 1
    balanced(swarm)
