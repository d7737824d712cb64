"""An owner signs a false result for its shard, the same for all members. Members that doubt the result leave the shard
out, and the group continues with the state of most members."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from peer.errors import Stale
from peer.exchange.group.member import GroupMean
from peer.lab.sim.setting import SwarmSetting, peer_id_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params, loss_of
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import RoundEnded, StandingLowered
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.simulation.test_groups import ELEMENTS, Member, Party
from tests.support.lying_owner import owners_lie


class Parts(Party):
    """Members whose contributions share one direction, except those from index `along` on, which are slow and have
    other data."""

    along = 8

    def gradient(self, number: int, round_: int = 0) -> Tensor:
        common = torch.randn(self.elements, generator=torch.Generator().manual_seed(77)) * 0.01
        own = super().gradient(number, round_)
        return own + common if number < self.along else own * 0.1

    async def play(
        self, round_: int, who: Sequence[Member] | None = None, late: dict[int, float] | None = None
    ) -> None:
        async with asyncio.TaskGroup() as playing:
            for number, member in enumerate(self.members):
                tokens = 200 if number < self.along else 10
                playing.create_task(member.round(round_, self.gradient(number, round_), tokens))


def lacks(member: Member, round_: int) -> int:
    return ELEMENTS - sum(end - start for start, end in member.got(round_).spans)


@pytest.mark.parametrize("times", [-10.0, -1.0])
def test_everybody_refuses_the_lie_and_the_liar_is_the_one_left_behind(
    times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        party = Parts(8)
        liar, honest = party.members[3], [member for member in party.members if member is not party.members[3]]
        with monkeypatch.context() as lying:
            owners_lie(lying, {liar.me}, lambda mean: mean * times)
            for round_ in range(2):
                await party.play(round_)
                playing = [member for member in honest if isinstance(member.results[round_], GroupMean)]
                assert playing == honest
                assert len({lacks(member, round_) for member in honest}) == 1
                assert len(party.digests(honest)) == 1
                if round_ == 0:
                    assert all(lacks(member, 0) > 0 for member in honest)
                    assert all(f"{liar.me}: refused" in member.got(0).reason for member in honest)
        assert isinstance(liar.results[1], Stale), "it applied what it gave"
        assert not any(member.events for member in honest), "a doubt is no proof: nobody's standing falls"
        await liar.catch_up(1)
        await party.play(2)
        assert len(party.digests()) == 1
        assert all(lacks(member, 2) == 0 for member in party.members)

    run_virtual(scenario())


@pytest.mark.parametrize("along", [6, 5, 4, 3])
def test_where_only_some_can_tell_the_next_rounds_bring_all_together(
    along: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members whose contribution does not agree with the mean accept the reversed result. They may be the majority."""

    async def scenario() -> None:
        party = Parts(8)
        party.along = along
        liar = party.members[0]
        honest = party.members[1:]
        with monkeypatch.context() as lying:
            owners_lie(lying, {liar.me}, lambda mean: -mean)
            await party.play(0)
        refused = [member for member in honest if lacks(member, 0)]
        assert refused == party.members[1:along]
        assert len(party.digests()) == 2
        for round_ in range(1, 4):
            await party.play(round_)
            for member in party.members:
                if isinstance(member.results[round_], Stale):
                    await member.catch_up(round_)
        assert len(party.digests()) == 1
        assert all(len(member.got(3).members) == 8 and not lacks(member, 3) for member in party.members)

    run_virtual(scenario())


REPLICAS, LIAR, STEPS, ROUNDS, SEED = 8, 3, 15, 8, 5


def learnt() -> tuple[float, int, int]:
    """Return the loss of the honest members in nats per symbol, how many results they refused, and how many of them
    have proof."""
    method = resolve(SyncSection(preset="diloco", clock="steps", sync_every=STEPS))
    layout = cut(TENSORS, fragments=1, pattern="whole")

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> TinyTrainer:
        return TinyTrainer(layout, clock, step_seconds=0.1, seed=SEED, data=f"peer {number}")

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(
            method=method,
            rounds=RoundClock("steps", STEPS, 1, EPOCH),
            total_rounds=ROUNDS,
            seed=SEED,
            layout=layout,
            first=first_params(SEED, layout),
            min_peers=REPLICAS,
        )
        swarm = SimulatedSwarm(REPLICAS, setting, make_trainer=trainer)
        await swarm.run()
        return swarm

    honest = [peer for peer in run_virtual(main()).peers if peer.number != LIAR]
    ended = [event for peer in honest for event in peer.events if isinstance(event, RoundEnded)]
    refused = sum("refused, as" in event.reason for event in ended)
    lowered = [event for peer in honest for event in peer.events if isinstance(event, StandingLowered)]
    assert {(event.peer, event.code) for event in lowered} <= {(peer_id_of(LIAR), "false_mean")}
    return statistics.fmean(loss_of(peer.outer.params, layout, SEED) for peer in honest), refused, len(lowered)


def test_an_owner_that_gives_minus_ten_times_the_mean_in_every_round_costs_two_percent_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    print(f"seed {SEED}")
    honest, *nothing = learnt()
    assert nothing == [0, 0]
    with monkeypatch.context() as hiding:
        owners_lie(hiding, {peer_id_of(LIAR)}, lambda mean: mean * -10.0, applied=False, shown=False)
        attacked, refused, proofs = learnt()
    assert refused == (REPLICAS - 1) * ROUNDS, "by every honest member in every round"
    assert proofs == 0, "what is not shown proves nothing"
    assert attacked <= 1.02 * honest
    owners_lie(monkeypatch, {peer_id_of(LIAR)}, lambda mean: mean * -10.0, applied=False)
    attacked, refused, proofs = learnt()
    assert refused == proofs == REPLICAS - 1, "once, and then it is out"
    assert attacked <= 1.02 * honest
