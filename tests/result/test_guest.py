"""States fetched by a guest: in pairs whole states from several donors, in a group its one state. The guest announces
nothing."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from peer.aio.threads import inline
from peer.errors import SourceError, StateError
from peer.joining.fetch_terms import FetchTerms
from peer.joining.weighing import StateWeighing, WeighedState
from peer.outer.state import OuterState
from peer.protocol.messages import Status
from peer.protocol.policy.donors import StateLosses
from peer.result.model import SourceRequest
from peer.result.remote.fetch import FetchedModel, GuestFetch
from peer.result.remote.judge import HoldOutJudge
from peer.result.source import load_model
from tests.support.joining import LAYOUT, DonorWorld, state_of, virtually
from tests.support.made_home import SMALL, TRAIN, made_home


async def fetched(world: DonorWorld, count: int = 1) -> FetchedModel:
    weighing = StateWeighing(world.terms(), world.said.append, inline)
    return await GuestFetch(world.context(), LAYOUT, inline, group=world.momentum, weighing=weighing).model(count, 60.0)


@virtually
async def test_a_pair_s_state_is_whole_and_of_one_donor() -> None:
    world = DonorWorld()
    for number, name in enumerate("abc"):
        world.donor(name, state_of(number), 30 + number)
    found = await fetched(world)
    assert len(found.donors) == 1
    number = "abc".index(found.donors[0])
    assert torch.equal(found.params, state_of(number).params)
    assert found.rounds == (30 + number,)


@virtually
async def test_several_donors_give_the_mean_of_their_states() -> None:
    world = DonorWorld()
    for number, name in enumerate("abcd"):
        world.donor(name, state_of(number), 30)
    found = await fetched(world, 4)
    assert sorted(found.donors) == ["a", "b", "c", "d"]
    wanted = torch.stack([state_of(number).params for number in range(4)]).mean(0)
    torch.testing.assert_close(found.params, wanted, rtol=0, atol=1e-6)


@virtually
async def test_fewer_donors_than_wanted_are_taken_and_told() -> None:
    world = DonorWorld()
    world.donor("a", state_of(1), 30)
    world.donor("b", None, 30)
    found = await fetched(world, 5)
    assert found.donors == ("a",)
    assert torch.equal(found.params, state_of(1).params)
    assert world.said[-1] == "1 of 5 donors gave their state: no other one offers it"


GOOD = state_of(99).params
"""The point around which the states of honest peers lie."""


def near(seed: int, noise: float) -> OuterState:
    outer = state_of(seed)
    return replace(outer, params=GOOD + noise * outer.params)


class JudgedWorld(DonorWorld):
    """A world in which the loss grows with the distance from `GOOD`, so that the mean of honest states is better than
    each of them."""

    async def weigh(self, params: torch.Tensor, seed: int, within_s: float) -> StateLosses | str:
        away = float((params - GOOD).square().mean())
        return StateLosses(tuple(2.0 + away + 0.01 * n for n in range(8)), math.log(256), "of the test")


@virtually
async def test_honest_states_are_all_in_the_mean() -> None:
    world = JudgedWorld()
    for number, name in enumerate("abcd"):
        world.donor(name, near(number, 0.3), 30)
    found = await fetched(world, 4)
    assert sorted(found.donors) == ["a", "b", "c", "d"]
    assert found.left_out == {}
    wanted = torch.stack([near(number, 0.3).params for number in range(4)]).mean(0)
    torch.testing.assert_close(found.params, wanted, rtol=0, atol=1e-6)


@virtually
async def test_a_liar_s_state_does_not_get_in_and_the_reason_is_told() -> None:
    """Three bad states: NaN, worse than an untrained model, and one that is plausible alone but harms the mean."""
    world = JudgedWorld()
    broken = near(1, 0.3)
    broken.params[5] = float("nan")
    for name, outer in {"nan": broken, "wild": near(2, 3.0), "mild": near(3, 1.2)}.items():
        world.donor(name, outer, 30)
    for number, name in enumerate("ab"):
        world.donor(name, near(10 + number, 0.3), 30)
    found = await fetched(world, 4)
    assert sorted(found.donors) == ["a", "b"]
    torch.testing.assert_close(found.params, (near(10, 0.3).params + near(11, 0.3).params) / 2, rtol=0, atol=1e-6)
    assert found.left_out.keys() == {"nan", "wild", "mild"}
    assert "NaN" in found.left_out["nan"]
    assert "more than an untrained model has" in found.left_out["wild"]
    assert "with it the loss on 8 windows of our own is" in found.left_out["mild"]
    for name, why in found.left_out.items():
        assert f"the state of {name} is not used: {why}" in world.said


@virtually
async def test_a_state_that_nobody_can_evaluate_does_not_get_in_when_it_lies_apart() -> None:
    world = DonorWorld()
    for number, name in enumerate("abc"):
        world.donor(name, near(number, 0.3), 30)
    world.donor("liar", near(9, 8.0), 30)
    found = await fetched(world, 4)
    assert sorted(found.donors) == ["a", "b", "c"]
    assert "it lies" in found.left_out["liar"]
    wanted = torch.stack([near(number, 0.3).params for number in range(3)]).mean(0)
    torch.testing.assert_close(found.params, wanted, rtol=0, atol=1e-6)


@virtually
async def test_a_state_that_does_not_go_with_the_others_is_named() -> None:
    """Its round is either far ahead, as from a dishonest donor, or far behind the others."""
    world = JudgedWorld()
    for number, name in enumerate("abc"):
        world.donor(name, near(number, 0.3), 40 + number)
    world.donor("ahead", near(4, 0.3), 102)
    world.donor("behind", near(5, 0.3), 3)
    world.donor("operator", near(6, 0.3), 38, Status.SERVING)
    found = await fetched(world, 4)
    assert sorted(found.donors) == ["a", "b", "c"]
    assert found.left_out == {
        name: f"it is of round {round_}, and does not go with the state of round 42 of the others"
        for name, round_ in {"ahead": 102, "behind": 3}.items()
    }


@virtually
async def test_a_liar_alone_is_not_believed() -> None:
    world = JudgedWorld()
    world.donor("wild", near(2, 3.0), 30)
    with pytest.raises(SourceError, match="no state that donors give can be used: wild: its loss"):
        await fetched(world, 1)


def test_states_are_judged_on_the_hold_out_of_the_run(tmp_path: Path) -> None:
    home = made_home(tmp_path, *SMALL, *TRAIN)
    first = home.first()
    home.save(first)
    run = load_model([str(home.path)], SourceRequest(scratch=tmp_path), lambda line: None).run
    judge = HoldOutJudge(run, torch.device("cpu"), tmp_path, inline)

    async def weighed(params: torch.Tensor) -> WeighedState:
        return await StateWeighing(FetchTerms(weigh=judge.weigh), lambda line: None, inline).weigh(params, 30)

    honest, wild = (asyncio.run(weighed(params)) for params in (first, first + torch.randn_like(first)))
    assert honest.losses is not None
    assert len(honest.losses.windows) == 64
    assert not honest.impossible
    assert "more than an untrained model has" in wild.impossible


def test_a_run_on_own_texts_says_that_no_loss_is_known(tmp_path: Path) -> None:
    home = made_home(tmp_path, *SMALL, *TRAIN, "data.kind=text")
    home.save(home.first())
    run = load_model([str(home.path)], SourceRequest(scratch=tmp_path), lambda line: None).run
    said = list[str]()
    judge = HoldOutJudge(run, torch.device("cpu"), tmp_path, inline)
    weighing = StateWeighing(FetchTerms(weigh=judge.weigh), said.append, inline)
    found = asyncio.run(weighing.weigh(home.first(), 30))
    assert (found.losses, found.impossible) == (None, "")
    assert "not by its loss: the run trains on its volunteers' own texts" in said[0]


@virtually
async def test_a_group_s_state_is_taken_bit_for_bit_without_its_momentum() -> None:
    world = DonorWorld(momentum=True)
    for name in "abc":
        world.donor(name, state_of(1), 30)
    world.donor("d", state_of(2), 30)
    found = await fetched(world, 9)
    assert torch.equal(found.params, state_of(1).params), "of two states the one that most have"
    assert set(found.donors) <= {"a", "b", "c"}
    assert found.left_out == {"d": "it is of round 30, and does not go with the state of most"}
    assert len(found.rounds) == 1


@virtually
async def test_the_operator_s_node_is_enough_when_all_others_are_gone() -> None:
    world = DonorWorld()
    world.donor("operator", state_of(3), 40, Status.SERVING)
    found = await fetched(world, 2)
    assert torch.equal(found.params, state_of(3).params)


@virtually
async def test_nobody_gives_a_state() -> None:
    world = DonorWorld()
    world.donor("a", None, 30)
    before = world.clock.now()
    with pytest.raises(StateError, match="no donor gave a state within 60 s: a: "):
        await fetched(world)
    assert world.clock.now() - before < 90.0


@virtually
async def test_a_state_that_is_no_number_is_not_used() -> None:
    world = DonorWorld()
    outer = state_of(1)
    outer.params[5] = float("nan")
    world.donor("a", outer, 30)
    with pytest.raises((SourceError, StateError), match="NaN"):
        await fetched(world)
