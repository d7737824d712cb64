"""A group of eight with one lying shard owner: all honest members refuse its result, and no other owner's."""

from __future__ import annotations

from functools import cache

import pytest

from peer.lab.attack.liar import liar_of
from peer.lab.attack.lies import OWNER_LIE
from peer.lab.attack.report import Excluded, excluded
from peer.lab.sim.setting import SwarmSetting, peer_id_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params, loss_of
from peer.lab.sim.virtual_clock import run_virtual
from peer.observe.events import ResultRefused, StandingLowered
from peer.protocol.model.fragments import cut
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

HONEST, SEED, ROUNDS = 7, 3, 10
LIAR = HONEST
"""The number of the lying peer, which is the last."""


@cache
def played(*, liar: bool) -> SimulatedSwarm:
    """Run the seven honest peers, with or without the liar as the eighth."""
    method = resolve(SyncSection(preset="diloco", clock="steps", sync_every=20))
    layout = cut(TENSORS, fragments=1, pattern="whole")
    peers = HONEST + liar

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(
            method=method,
            rounds=method.round_clock(),
            total_rounds=ROUNDS,
            seed=SEED,
            layout=layout,
            first=first_params(SEED, layout),
            min_peers=peers,
        )
        swarm = SimulatedSwarm(
            peers,
            setting,
            make_trainer=lambda number, layout, clock: TinyTrainer(
                layout, clock, step_seconds=0.1, seed=SEED, data=str(number)
            ),
            liars={LIAR: liar_of(OWNER_LIE, SEED)} if liar else {},
        )
        await swarm.run()
        return swarm

    return run_virtual(main())


def honest_loss(swarm: SimulatedSwarm) -> float:
    return sum(loss_of(peer.outer.params, swarm.layout, SEED) for peer in swarm.peers[:HONEST]) / HONEST


def test_all_honest_members_refuse_the_lie_and_no_other_result() -> None:
    honest = played(liar=True).peers[:HONEST]
    refused = [[event for event in peer.events if isinstance(event, ResultRefused)] for peer in honest]
    assert all(refused)
    assert {event.peer for events in refused for event in events} == {peer_id_of(LIAR)}
    assert {(event.code, event.fragment) for events in refused for event in events} == {("implausible", 0)}
    assert all(event.reason for events in refused for event in events)


def test_the_lie_is_proved_and_costs_nobody_else_its_standing() -> None:
    lowered = [event for peer in played(liar=True).peers[:HONEST] for event in peer.events]
    blamed = {(event.peer, event.code) for event in lowered if isinstance(event, StandingLowered)}
    assert blamed == {(peer_id_of(LIAR), "false_mean")}


def test_the_report_counts_the_refusals() -> None:
    journals = [peer.events for peer in played(liar=True).peers[:HONEST]]
    found = excluded(journals, {peer_id_of(LIAR)})
    assert found.honest == 0
    assert found.liars >= HONEST
    assert excluded((peer.events for peer in played(liar=False).peers), ()) == Excluded(0, 0)


def test_the_lie_costs_the_honest_next_to_nothing() -> None:
    alone = honest_loss(played(liar=False))
    assert honest_loss(played(liar=True)) == pytest.approx(alone, rel=0.02)
