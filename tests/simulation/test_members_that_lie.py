"""One of eight members of a group sends false contributions. The owners of the shards leave it out of their means, and
the others learn nearly as well as without it. `benchmarks/liars.py` tests all presets for groups."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from peer.lab.attack.liar import liar_of
from peer.lab.attack.lies import BACKDOOR
from peer.lab.sim.setting import SwarmSetting, peer_id_of
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyTrainer, first_params, loss_of, other_targets
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.observe.events import ContributorLeftOut, StandingLowered
from peer.protocol.group.contributor_judge import ContributorJudge
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection
from tests.support.seeds import nightly

REPLICAS, LIAR, SEED = 8, 3, 5
STEPS, ROUNDS = 15, 16


@cache
def played(lie: str | None, replicas: int = REPLICAS, preset: str = "diloco") -> SimulatedSwarm:
    """Return the swarm, in which one peer may lie."""
    method = resolve(SyncSection.model_validate({"preset": preset, "clock": "steps", "sync_every": STEPS}))
    layout = cut(TENSORS, fragments=1, pattern="whole")

    def trainer(number: int, layout: Layout, clock: VirtualClock) -> TinyTrainer:
        targets = other_targets(SEED) if (number, lie) == (LIAR, BACKDOOR) else None
        name = f"peer {number if number < LIAR else number + REPLICAS - replicas}"
        return TinyTrainer(layout, clock, step_seconds=0.1, seed=SEED, data=name, targets=targets)

    async def main() -> SimulatedSwarm:
        setting = SwarmSetting(
            method=method,
            rounds=RoundClock("steps", STEPS, 1, EPOCH),
            total_rounds=ROUNDS,
            seed=SEED,
            layout=layout,
            first=first_params(SEED, layout),
            min_peers=replicas,
        )
        liars = {LIAR: liar_of(lie, SEED)} if lie else {}
        swarm = SimulatedSwarm(replicas, setting, make_trainer=trainer, liars=liars)
        await swarm.run()
        return swarm

    return run_virtual(main())


@pytest.fixture(scope="module", autouse=True)
def _swarms_are_forgotten() -> Iterator[None]:
    yield
    played.cache_clear()


def loss(swarm: SimulatedSwarm, without: int | None = LIAR) -> float:
    """Return the loss of the honest members, in nats per symbol."""
    honest = [peer for peer in swarm.peers if peer.number != without]
    return sum(loss_of(peer.outer.params, swarm.layout, SEED) for peer in honest) / len(honest)


@cache
def alone(preset: str) -> float:
    """Return the loss of the seven honest members without the liar."""
    return loss(played(None, REPLICAS - 1, preset), without=None)


def left_out(swarm: SimulatedSwarm) -> list[tuple[str, str]]:
    """Return (owner, contributor) for each time that an honest owner left out a contributor."""
    honest = [peer for peer in swarm.peers if peer.number != LIAR]
    events = [(peer.peer_id, event) for peer in honest for event in peer.events]
    return [(owner, event.peer) for owner, event in events if isinstance(event, ContributorLeftOut)]


@pytest.mark.parametrize("preset", ["diloco", *nightly(["sparseloco"])])
@pytest.mark.parametrize("lie", ["flip", *nightly(["x-10", "negate", "noise", "drift", BACKDOOR])])
def test_a_lie_costs_the_honest_two_percent_at_most_and_nobody_honest_is_left_out(lie: str, preset: str) -> None:
    print(f"seed {SEED}")
    swarm = played(lie, preset=preset)
    assert loss(swarm) <= 1.02 * alone(preset)
    assert {contributor for _, contributor in left_out(swarm)} <= {peer_id_of(LIAR)}


@pytest.mark.parametrize("lie", ["flip", *nightly(["x-10"])])
def test_each_owner_names_who_works_against_the_others(lie: str) -> None:
    swarm = played(lie)
    honest = {peer.peer_id for peer in swarm.peers if peer.number != LIAR}
    found = left_out(swarm)
    assert {owner for owner, _ in found} == honest
    assert len(found) >= 0.9 * len(honest) * ROUNDS, "from the first rounds on"
    assert not any(isinstance(event, StandingLowered) for peer in swarm.peers for event in peer.events)


@pytest.mark.parametrize("preset", ["diloco", *nightly(["sparseloco"])])
def test_nobody_is_left_out_where_all_are_honest(preset: str) -> None:
    assert not left_out(played(None, preset=preset))


def test_without_the_judge_a_turned_sign_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ContributorJudge, "judge", lambda judge, compared: {})
    assert loss(played.__wrapped__("x-10")) > 1.04 * alone("diloco")


def test_the_liar_itself_leaves_nobody_out() -> None:
    """The liar does not judge contributors, so its judge cannot affect the other tests."""
    assert not any(isinstance(event, ContributorLeftOut) for event in played("flip").peers[LIAR].events)
