"""Lying donors determine nothing for a newcomer: neither its round, nor which other donors it asks, nor its state. The
decisions themselves are tested in `tests/protocol/policy/test_donors.py`."""

from __future__ import annotations

import asyncio

import pytest
import torch

from peer.errors import StateError
from peer.lab.sim.virtual_clock import run_virtual
from peer.observe.events import StateRefused
from peer.protocol.messages import PeerId, Status
from peer.protocol.policy.donors import MAX_ASKED, NETWORKS
from tests.support.joining import LAYOUT, DonorWorld, same, state_of, virtually

AHEAD = 60


@pytest.mark.parametrize("homes", [True, False])
def test_a_donor_that_names_a_round_ahead_gives_nothing(homes: bool) -> None:
    """`homes`: each donor is in its own address block; otherwise all are in one, and vote by key."""

    async def test() -> None:
        world = DonorWorld()
        for number in range(3):
            world.donor(f"honest {number}", state_of(1), 100 - number, at=f"203.0.{number if homes else 0}.7:4810")
        world.donor("liar", state_of(9), 100 + AHEAD, at="198.51.100.7:4810")
        got = await world.join()
        assert torch.equal(got.outer.params, state_of(1).params)
        assert 98 <= got.round <= 100

    run_virtual(test())


@virtually
async def test_nobody_is_past_round_0_of_a_run_whose_start_nobody_shows() -> None:
    """The liar is ready first, before anyone trains. Its noise has the loss of the first state."""
    world = DonorWorld()
    world.most = 0
    world.donor("liar", state_of(9), AHEAD, at="198.51.100.7:4810")
    world.donor("node", state_of(1), 0, Status.SERVING, at="203.0.113.7:4810")
    assert torch.equal((await world.join()).outer.params, state_of(1).params)


@virtually
async def test_a_donor_whose_round_needs_a_start_shows_it() -> None:
    world = DonorWorld()
    world.most, world.most_by_paper = 0, 101
    world.donor("honest", state_of(1), 100, at="203.0.113.7:4810")
    assert (await world.join()).round == 100


@virtually
async def test_keys_of_many_blocks_do_not_outvote_what_the_operators_node_signed() -> None:
    """The node has signed an older state. It serves that state itself, and is asked although many other donors are
    available."""
    world, lie = DonorWorld(momentum=True), state_of(9)
    for number in range(4 * MAX_ASKED):
        world.donor(f"liar {number}", lie, 31, at=f"198.51.{number}.7:4810")
    world.donor("honest", state_of(1), 31, at="203.0.113.7:4810")
    world.donor("node", state_of(2), 25, Status.SERVING, at="192.0.2.7:4810")
    world.nodes = frozenset({PeerId("node")})
    world.proven = {PeerId("honest")}
    world.sign(25, state_of(2))
    got = await world.join()
    assert same(got.outer, state_of(2))
    assert got.round == 25
    assert (
        "not all donors' states are taken: the donors differ, and this is the newest state that the operator signed"
        in (world.said)
    )


@pytest.mark.parametrize("momentum", [False, True])
def test_no_donor_gives_another_first_state_than_the_one_that_was_signed(momentum: bool) -> None:
    """In round 0 noise has the loss of an untrained model, so the loss does not reveal it."""

    async def test() -> None:
        world = DonorWorld(momentum=momentum)
        for number in range(5):
            world.donor(f"liar {number}", state_of(9), 0, at=f"198.51.{number}.7:4810")
        world.donor("honest", state_of(1), 0, at="203.0.113.7:4810")
        world.sign(0, state_of(1))
        assert torch.equal((await world.join()).outer.params, state_of(1).params)

    run_virtual(test())


@virtually
async def test_many_keys_of_a_block_do_not_crowd_out_the_others() -> None:
    """There are more liars than donors that are asked at once."""
    world, lie = DonorWorld(momentum=True), state_of(9)
    for number in range(8 * MAX_ASKED):
        world.donor(f"liar {number}", lie, 30, at=f"198.51.100.{number % 250}:4810")
    for number in range(NETWORKS):
        world.donor(f"honest {number}", state_of(1), 30, at=f"203.0.{number}.7:4810")
    assert same((await world.join()).outer, state_of(1))
    assert {f"honest {number}" for number in range(NETWORKS)} <= set(world.asked)


@virtually
async def test_addresses_that_records_invent_are_no_networks() -> None:
    """The liars' records claim different address blocks, but all answer from one block. So the joiner asks other donors
    as well."""
    world, lie = DonorWorld(momentum=True), state_of(9)
    for number in range(2 * MAX_ASKED):
        world.donor(f"liar {number}", lie, 30, at=f"198.51.{number}.7:4810")
        world.move(f"liar {number}", "192.0.2.7:4810")
    for number in range(NETWORKS):
        world.donor(f"honest {number}", state_of(1), 30, at=f"203.0.{number}.7:4810")
    assert same((await world.join()).outer, state_of(1))


@virtually
async def test_the_first_to_answer_is_not_believed_alone() -> None:
    """The liar answers first. The honest donors have slow lines and answer more than a second later."""
    world = DonorWorld(momentum=True)
    for number in range(NETWORKS):
        slow = world.donor(f"honest {number}", state_of(1), 30, at=f"203.0.{number}.7:4810")
        world.delay(slow, 1.1)
    world.donor("liar", state_of(9), 30, at="198.51.100.7:4810")
    began = asyncio.get_running_loop().time()
    assert same((await world.join()).outer, state_of(1))
    assert asyncio.get_running_loop().time() - began < 4


# -- the state itself ------------------------------------------------------------------------------------------------


def refusals(world: DonorWorld) -> dict[str, str]:
    return {event.donor: event.reason for event in world.journal if isinstance(event, StateRefused)}


@virtually
async def test_a_wild_state_among_the_pieces_gives_way_to_that_of_one_donor() -> None:
    """The liar names the same round as the honest donors, and serves part of the pieces."""
    world = DonorWorld()
    world.good = [state_of(1), state_of(2)]
    world.donor("liar", state_of(9), 100)
    world.donor("a", world.good[0], 100)
    world.donor("b", world.good[1], 100)
    got = await world.join()
    assert any(torch.equal(got.outer.params, one.params) for one in world.good)
    assert "no better than a guess" in refusals(world)["3 donors"]
    assert not {"a", "b"} & set(refusals(world))
    assert got.transfer is not None
    assert got.transfer.donor in ("a", "b")
    told = [(name.partition(" (")[0], unit) for name, _, _, unit in world.shown]
    whose = got.transfer.donor
    assert ("checking the fetched state", "s") in told
    assert (f"fetching the state of {whose} alone", "bytes") in told
    assert (f"checking the state of {whose} alone", "s") in told


@virtually
async def test_calm_donors_are_weighed_once_and_nothing_is_fetched_twice() -> None:
    world = DonorWorld()
    world.good = [state_of(1), state_of(2)]
    world.donor("a", world.good[0], 100)
    world.donor("b", world.good[1], 100)
    got = await world.join()
    assert "2 donors" in got.why
    assert got.transfer.nbytes == 4 * LAYOUT.elements
    assert world.journal == []


@virtually
async def test_of_two_that_pass_the_better_is_taken() -> None:
    world = DonorWorld()
    world.good = [state_of(1)]
    mixed = state_of(1)
    mixed.params[: 2**16] = state_of(9).params[: 2**16]
    for name, outer in (("liar", state_of(9)), ("worse", mixed), ("best", state_of(1))):
        world.donor(name, outer, 100)
    assert torch.equal((await world.join()).outer.params, state_of(1).params)


@virtually
async def test_a_newcomer_that_meets_only_liars_waits_and_says_so() -> None:
    world = DonorWorld()
    world.good = [state_of(1)]
    for number in range(3):
        world.donor(f"liar {number}", state_of(7 + number), 100)
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(30)
    assert not joining.done()
    assert any("no state that donors give passes" in text for text in world.said)
    assert {f"liar {number}" for number in range(3)} <= set(refusals(world))
    world.donor("honest", state_of(1), 100)
    assert torch.equal((await joining).outer.params, state_of(1).params)


@virtually
async def test_newcomers_that_meet_only_liars_give_up_in_the_end() -> None:
    world = DonorWorld()
    world.good = [state_of(1)]
    world.donor("liar", state_of(7), 100)
    with pytest.raises(StateError):
        await world.join()


@virtually
async def test_a_state_no_better_than_a_guess_is_compared_with_others() -> None:
    """Zeros have the loss of a guess, which is implausible in round 100 but not in round 3."""
    for round_, taken in ((100, False), (3, True)):
        world = DonorWorld()
        world.good = [state_of(1)]
        zeros, honest = state_of(1), state_of(1)
        for tensor in range(4):  # enough zero tensors for the loss of a guess
            zeros.params[tensor * 2**16 : (tensor + 1) * 2**16] = 0
        world.donor("liar", zeros, round_)
        world.delay(world.donor("honest", honest, round_), 2.4)
        got = await world.join()
        assert torch.equal(got.outer.params, zeros.params if taken else honest.params)
        assert ("liar" in refusals(world)) is not taken


@virtually
async def test_without_common_text_values_of_absurd_size_are_refused() -> None:
    world = DonorWorld()
    wild = state_of(9)
    wild.params *= 1e6
    world.donor("liar", wild, 100)
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(10)
    assert "root mean square" in refusals(world)["liar"]
    world.donor("honest", state_of(1), 100)
    assert torch.equal((await joining).outer.params, state_of(1).params)
    assert any("not by its loss" in text for text in world.said)
