"""States that a guest fetches: whole ones of several donors in pairs, the one state of a group, nothing announced."""

from __future__ import annotations

import pytest
import torch

from peer.aio.threads import inline
from peer.errors import SourceError, StateError
from peer.protocol.messages import Status
from peer.result.remote.fetch import FetchedStates, GuestFetch
from tests.support.joining import LAYOUT, DonorWorld, state_of, virtually


async def fetched(world: DonorWorld, count: int = 1) -> FetchedStates:
    return await GuestFetch(world.context(), LAYOUT, inline, group=world.momentum).states(count, 60.0)


@virtually
async def test_a_pair_s_state_is_whole_and_of_one_donor() -> None:
    world = DonorWorld()
    for number, name in enumerate("abc"):
        world.donor(name, state_of(number), 30 + number)
    found = await fetched(world)
    assert len(found.donors) == 1
    number = "abc".index(found.donors[0])
    assert torch.equal(found.mean(), state_of(number).params)
    assert found.rounds == [30 + number]


@virtually
async def test_several_donors_give_the_mean_of_their_states() -> None:
    world = DonorWorld()
    for number, name in enumerate("abcd"):
        world.donor(name, state_of(number), 30)
    found = await fetched(world, 4)
    assert sorted(found.donors) == ["a", "b", "c", "d"]
    wanted = torch.stack([state_of(number).params for number in range(4)]).mean(0)
    torch.testing.assert_close(found.mean(), wanted, rtol=0, atol=1e-6)


@virtually
async def test_fewer_donors_than_wanted_are_taken_and_told() -> None:
    world = DonorWorld()
    world.donor("a", state_of(1), 30)
    world.donor("b", None, 30)
    found = await fetched(world, 5)
    assert found.donors == ["a"]
    assert torch.equal(found.mean(), state_of(1).params)
    assert world.said == ["1 of 5 donors gave their state: no other one offers it"]


@virtually
async def test_a_group_s_state_is_taken_bit_for_bit_without_its_momentum() -> None:
    world = DonorWorld(momentum=True)
    for name in "abc":
        world.donor(name, state_of(1), 30)
    world.donor("d", state_of(2), 30)
    found = await fetched(world, 9)
    assert torch.equal(found.mean(), state_of(1).params), "of two states the one that most have"
    assert set(found.donors) <= {"a", "b", "c"}
    assert len(found.rounds) == 1


@virtually
async def test_the_operator_s_node_is_enough_when_all_others_are_gone() -> None:
    world = DonorWorld()
    world.donor("operator", state_of(3), 40, Status.SERVING)
    found = await fetched(world, 2)
    assert torch.equal(found.mean(), state_of(3).params)


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
