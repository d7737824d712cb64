"""Liars send what their kind of attack defines. They lie only on the wire: their own state stays honest."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from peer.codec.registry import EVERY
from peer.errors import BadPayload
from peer.exchange.build import MakeStrategy
from peer.exchange.validation import check_partner
from peer.lab.attack.liar import OWNERS_FACTOR, LyingCodec, liar_of
from peer.lab.attack.lies import BACKDOOR, DONOR, KINDS, LIES
from peer.lab.sim.setting import SwarmSetting
from peer.lab.sim.swarm import SimulatedSwarm
from peer.lab.sim.tiny_model import TENSORS, TinyLoop, first_params, loss_of, other_targets
from peer.lab.sim.virtual_clock import EPOCH, run_virtual
from peer.protocol.messages import RoundKey
from peer.protocol.model.fragments import cut
from peer.protocol.schedule import RoundClock
from peer.run.resolve import resolve
from peer.run.sections import SyncSection

KEY, SEED = RoundKey(3, 0), 7
OUTER = torch.randn(5000, generator=torch.Generator().manual_seed(1))
OWN = OUTER + 0.1 * torch.randn(5000, generator=torch.Generator().manual_seed(2))
WORK = OWN - OUTER


def said(kind: str, key: RoundKey = KEY, own: Tensor = OWN) -> Tensor:
    return LIES[kind](SEED)(key, own, OUTER)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("flip", OUTER - WORK),
        ("x-10", OUTER - 10 * WORK),
        ("x9.9", OUTER + 9.9 * WORK),
        ("negate", -OWN),
        ("zero", 0 * OWN),
        ("freeride", OUTER),
        ("stuck", OWN),
    ],
)
def test_a_lie_is_what_its_name_says(kind: str, expected: Tensor) -> None:
    own, outer = OWN.clone(), OUTER.clone()
    torch.testing.assert_close(said(kind), expected)
    assert torch.equal(own, OWN)
    assert torch.equal(outer, OUTER)


def test_the_far_one_stays_just_inside_the_distance_that_is_taken() -> None:
    victim = OUTER + 0.1 * torch.randn(5000, generator=torch.Generator().manual_seed(3))
    lie = said("far")
    check_partner(lie, victim)
    with pytest.raises(BadPayload):
        check_partner(OWN + 1.05 * (lie - OWN), victim)
    assert not torch.equal(lie, said("far", RoundKey(4, 0))), "noise of its own in every round"


def test_noise_is_as_long_as_the_work_and_another_in_each_round() -> None:
    noise, other = said("noise") - OUTER, said("noise", RoundKey(4, 0)) - OUTER
    assert noise.norm() == pytest.approx(float(WORK.norm()), rel=1e-3)
    assert abs(float(torch.dot(noise, other))) < 0.1 * float(noise.norm() ** 2)


def test_the_stuck_one_repeats_its_first_params() -> None:
    lie = LIES["stuck"](SEED)
    first = lie(KEY, OWN, OUTER)
    assert torch.equal(lie(RoundKey(9, 0), 2 * OWN, OUTER), first)
    assert torch.equal(lie(RoundKey(9, 1), 2 * OWN, OUTER), 2 * OWN), "each fragment has its own"


def test_colluders_drift_in_one_direction_as_far_as_their_work() -> None:
    pushed, other = said("drift") - OWN, said("drift", RoundKey(8, 0), OUTER + 2 * WORK) - (OUTER + 2 * WORK)
    assert pushed.norm() == pytest.approx(float(WORK.norm()), rel=1e-3)
    torch.testing.assert_close(other, 2 * pushed, rtol=1e-3, atol=1e-4)
    elsewhere = said("drift", RoundKey(3, 1)) - OWN
    assert abs(float(torch.dot(pushed, elsewhere))) < 0.1 * float(pushed.norm() ** 2)


def test_a_lying_owner_encodes_another_mean_and_decodes_as_ever() -> None:
    honest = EVERY["fp32"]
    liar = LyingCodec(honest, OWNERS_FACTOR)
    assert torch.equal(honest.decode(liar.encode(OWN), OWN.numel()), -10 * OWN)
    assert torch.equal(liar.decode(honest.encode(OWN), OWN.numel()), OWN)


def test_a_poisoned_trainer_learns_other_targets() -> None:
    layout = cut(TENSORS, fragments=1, pattern="whole")
    first, targets = first_params(SEED, layout), other_targets(SEED)
    assert sorted(targets) == list(range(len(targets)))
    assert all(targets != range(len(targets)))
    honest = TinyLoop(layout, first, seed=SEED, data="a")
    poisoned = TinyLoop(layout, first, seed=SEED, data="a", targets=targets)
    for _ in range(150):
        honest.step(), poisoned.step()
    assert loss_of(honest.params, layout, SEED) < loss_of(first, layout, SEED)
    assert loss_of(poisoned.params, layout, SEED) > loss_of(honest.params, layout, SEED) + 0.2


def after_one_round(codec: str, liar: MakeStrategy | None) -> list[Tensor]:
    """Return the outer_params of two peers after one exchange. `liar`: makes the strategy of the second; None: it is
    honest."""
    method = resolve(SyncSection(preset="noloco", clock="steps", sync_every=5, codec=codec))

    async def main() -> SimulatedSwarm:
        rounds = RoundClock("steps", 5, 1, EPOCH)
        setting = SwarmSetting(method=method, rounds=rounds, total_rounds=1, seed=SEED, min_peers=2)
        swarm = SimulatedSwarm(2, setting, liars={} if liar is None else {1: liar})
        await swarm.run()
        return swarm

    peers = run_virtual(main()).peers
    assert [peer.outcomes() for peer in peers] == [{"exchanged": 1}] * 2
    return [peer.outer.params for peer in peers]


@pytest.mark.parametrize("codec", ["bf16", "modulo7"])
@pytest.mark.parametrize("kind", ["freeride", "flip"])
def test_a_liar_lies_on_the_wire_alone(codec: str, kind: str) -> None:
    honest, lied_to = after_one_round(codec, None), after_one_round(codec, liar_of(kind, SEED))
    assert torch.equal(lied_to[1], honest[1]), "its own state goes on honestly"
    assert not torch.equal(lied_to[0], honest[0])


def test_every_kind_but_the_trained_one_and_the_donor_says_something_else() -> None:
    assert [kind for kind in KINDS if not isinstance(liar_of(kind, SEED), partial)] == [BACKDOOR, DONOR]
