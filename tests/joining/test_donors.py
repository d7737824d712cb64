"""The first state of a peer comes from several donors or its own checkpoint, and never from the first state of an old
run."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.errors import PartnerRefused, StateError
from peer.joining.resume import Staleness
from peer.lab.sim.virtual_clock import run_virtual
from peer.node.handler import DonatedState, RequestHandler
from peer.node.operator.run_progress import RunProgress
from peer.observe import events
from peer.protocol.messages import PeerId, Status
from peer.protocol.policy.donors import (
    FIRST_ROUNDS,
    MORE_S,
    OFFER_PATIENCE_S,
    OLD_ROUNDS,
    RECRUIT_FIRST_S,
    RESUME_WITHIN,
    first_state_refusal,
)
from peer.protocol.schedule import RoundClock
from peer.state.snapshot import StateSnapshot, copy_of
from tests.support.joining import LAYOUT, DonorWorld, same, state_of, trains, virtually

# -- several donors --------------------------------------------------------------------------------------------------


@virtually
async def test_a_group_s_state_comes_from_all_its_members_bit_for_bit() -> None:
    world = DonorWorld(momentum=True)
    for name in "abc":
        world.donor(name, state_of(1), 30 + ord(name))
    got = await world.join()
    assert same(got.outer, state_of(1))
    assert "3 donors" in got.why
    assert got.transfer.nbytes == 8 * LAYOUT.elements
    fetching = [told for told in world.shown if told[0].startswith("fetching")]
    assert fetching[-1][0].startswith("fetching the state (3 donors: ")
    assert fetching[-1][1:] == (8 * LAYOUT.elements, 8 * LAYOUT.elements, "bytes")


@virtually
async def test_donors_of_another_state_are_not_mixed_in() -> None:
    world = DonorWorld(momentum=True)
    asked = {name: world.donor(name, state_of(seed), 30) for name, seed in (("a", 1), ("b", 2), ("c", 1))}
    given = {name: [] for name in asked}
    for name, donor in asked.items():
        donor.on_piece = partial(_noting, donor.on_piece, given[name])  # type: ignore[method-assign]
    got = await world.join()
    assert same(got.outer, state_of(1))
    assert given["b"] == []
    assert given["a"]
    assert given["c"]


def _noting(on_piece: Any, pieces: list[int], snapshot: str, piece: int) -> Any:
    pieces.append(piece)
    return on_piece(snapshot, piece)


@virtually
async def test_donors_that_were_asked_at_different_times_come_to_one_snapshot() -> None:
    world, outers = DonorWorld(momentum=True), [state_of(1), state_of(1)]
    early = world.donor("a", outers[0], 30)
    world.donor("b", outers[1], 31)
    assert early.on_state() is not None
    for outer in outers:
        with outer.stepping():
            outer.params += 1
            outer.momentum -= 1
    await asyncio.sleep(2)  # the first joiner's snapshot is recent enough to be offered again
    got = await world.join()
    assert same(got.outer, outers[0])
    assert "2 donors" in got.why


@virtually
async def test_a_pair_s_pieces_come_from_any_peer_within_bounds_and_momentum_is_zero() -> None:
    world = DonorWorld()
    states = {"a": state_of(1), "b": state_of(2), "old": state_of(3)}
    world.donor("a", states["a"], 100)
    world.donor("b", states["b"], 100 - OLD_ROUNDS)
    world.donor("old", states["old"], 100 - OLD_ROUNDS - 1)
    world.donor("node", state_of(4), 0, Status.SERVING)
    got = await world.join()
    tensors = [got.outer.params[n * 2**16 : (n + 1) * 2**16] for n in range(12)]
    sources = [
        next(name for name in states if torch.equal(states[name].params[n * 2**16 : (n + 1) * 2**16], tensor))
        for n, tensor in enumerate(tensors)
    ]
    assert set(sources) == {"a", "b"}
    assert not got.outer.momentum.any()
    assert got.round == 100 - OLD_ROUNDS, "the oldest piece"


@virtually
async def test_who_joins_itself_never_donates_and_its_lie_is_of_no_use() -> None:
    world = DonorWorld()
    world.donor("joins", None, 0, Status.TRAINING)
    world.donor("honest", state_of(1), 3)
    assert torch.equal((await world.join()).outer.params, state_of(1).params)


@virtually
async def test_a_donor_that_comes_later_helps() -> None:
    world = DonorWorld()
    world.network.link = replace(world.network.link, up=1e5)
    world.donor("a", state_of(1), 3)
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(6)
    world.donor("b", state_of(1), 3)
    got = await joining
    assert "2 donors" in got.why


@pytest.mark.parametrize("momentum", [True, False])
def test_a_donor_that_is_silent_holds_up_nobody(momentum: bool) -> None:
    async def test() -> None:
        world = DonorWorld(momentum=momentum)
        for name in ("silent", "a", "b"):
            world.donor(name, state_of(1), 3)
        world.network.cut(PeerId("joiner"), PeerId("silent"))
        began = asyncio.get_running_loop().time()
        got = await world.join()
        assert torch.equal(got.outer.params, state_of(1).params)
        assert asyncio.get_running_loop().time() - began < OFFER_PATIENCE_S + MORE_S + 1
        assert "2 donors" in got.why

    run_virtual(test())


@virtually
async def test_a_donor_that_needs_longer_for_its_copy_helps_as_soon_as_it_has_it() -> None:
    world = DonorWorld(momentum=True)
    world.network.link = replace(world.network.link, up=4e5)
    copying, outer = Future[StateSnapshot | None](), state_of(1)
    world.donor("a", state_of(1), 3)
    slow = world.donor("slow", outer, 3, start=lambda make: copying)
    given: list[int] = []
    slow.on_piece = partial(_noting, slow.on_piece, given)  # type: ignore[method-assign]
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(OFFER_PATIENCE_S + 1)
    assert not given
    copying.set_result(copy_of(outer, 3, momentum=True))
    await asyncio.sleep(2 * RECRUIT_FIRST_S + 1)
    assert given
    assert same((await joining).outer, outer)


@virtually
async def test_nobody_to_fetch_from_is_an_error_in_the_end() -> None:
    world = DonorWorld()
    with pytest.raises(StateError):
        await world.join()


# -- interrupted -----------------------------------------------------------------------------------------------------


async def _interrupted(world: DonorWorld, folder: Path, part: float) -> None:
    """Kill a joiner when it has this part of the state."""
    total = (8 if world.momentum else 4) * LAYOUT.elements
    joining = asyncio.create_task(world.join(folder))
    while not any(told[0].startswith("fetching") and told[1] >= part * total for told in world.shown):
        await asyncio.sleep(0.01)
    joining.cancel()
    await asyncio.wait({joining})
    world.shown.clear()


@pytest.mark.parametrize("momentum", [True, False])
def test_after_a_kill_only_the_rest_is_fetched(tmp_path: Path, momentum: bool) -> None:
    async def test() -> None:
        world = DonorWorld(momentum=momentum)
        world.network.link = replace(world.network.link, up=1e6)
        for name in "ab":
            world.donor(name, state_of(1), 30)
        await _interrupted(world, tmp_path, 0.5)
        got = await world.join(tmp_path)
        assert torch.equal(got.outer.params, state_of(1).params)
        assert got.transfer.nbytes <= 0.55 * (8 if momentum else 4) * LAYOUT.elements
        assert any("are here from before" in text for text in world.said)
        assert not (tmp_path / "transfer").exists()

    run_virtual(test())


def test_a_group_that_still_keeps_the_snapshot_gives_its_rest(tmp_path: Path) -> None:
    async def test() -> None:
        world, outer = DonorWorld(momentum=True), state_of(1)
        world.network.link = replace(world.network.link, up=1e6)
        world.donor("a", outer, 30)
        await _interrupted(world, tmp_path, 0.5)
        with outer.stepping():
            outer.params += 1
        await asyncio.sleep(40)  # by now the donor would offer other joiners a new snapshot
        got = await world.join(tmp_path)
        assert same(got.outer, state_of(1))
        assert got.transfer.nbytes <= 0.55 * 8 * LAYOUT.elements

    run_virtual(test())


def test_a_group_that_moved_on_everywhere_starts_over_and_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        world = DonorWorld(momentum=True)
        world.network.link = replace(world.network.link, up=1e6)
        world.donor("a", state_of(1), 30)
        await _interrupted(world, tmp_path, 0.5)
        world.network.kill(PeerId("a"))
        world.records.clear()
        world.donor("b", state_of(2), 31)
        got = await world.join(tmp_path)
        assert same(got.outer, state_of(2))
        assert any("start over" in text for text in world.said)

    run_virtual(test())


@pytest.mark.parametrize(("later", "kept"), [(OLD_ROUNDS, True), (OLD_ROUNDS + 1, False)])
def test_a_pair_keeps_verified_pieces_of_a_donor_that_is_gone(tmp_path: Path, later: int, kept: bool) -> None:
    async def test() -> None:
        world = DonorWorld()
        world.network.link = replace(world.network.link, up=1e6)
        world.donor("a", state_of(1), 30)
        await _interrupted(world, tmp_path, 0.5)
        world.network.kill(PeerId("a"))
        world.records.clear()
        world.donor("b", state_of(2), 30 + later)
        got = await world.join(tmp_path)
        assert (got.transfer.nbytes <= 0.55 * 4 * LAYOUT.elements) is kept
        assert torch.equal(got.outer.params, state_of(2).params) is not kept

    run_virtual(test())


# -- the first state of an old run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("remembers", [True, False])
def test_a_joiner_cut_off_with_the_bootstrap_node_waits_and_says_so(tmp_path: Path, remembers: bool) -> None:
    """`remembers`: the bootstrap node knows the run's round and refuses to donate. Without it (the node lost its home),
    the live records show that the node's state is old."""

    async def test() -> None:
        world = DonorWorld()
        rounds = RoundClock("seconds", 10.0, start=world.clock.now() - 600.0)
        run_round = RunProgress(tmp_path / "run_round", lambda: rounds, world.clock.now)
        trainer = world.donor("trainer", state_of(9), 57)
        if remembers:
            run_round.learn(world.records)
            world.records.clear()
        world.donor(
            "node", state_of(0), 0, Status.SERVING, outdated_reason=lambda: first_state_refusal(run_round.value)
        )
        world.network.cut(PeerId("joiner"), PeerId("trainer"))
        joining = asyncio.create_task(world.join())
        await asyncio.sleep(120)
        assert not joining.done()
        assert any("only the first state" in text and "57" in text for text in world.said)
        assert world.transport._handler.on_state() is None, "and it never donates"
        world.network.mend(PeerId("joiner"), PeerId("trainer"))
        if remembers:
            world.records.append(trains("trainer", 57))
        got = await joining
        assert torch.equal(got.outer.params, state_of(9).params)
        assert trainer.on_state() is not None

    run_virtual(test())


@virtually
async def test_in_the_first_rounds_the_first_state_is_good() -> None:
    world = DonorWorld()
    world.donor("node", state_of(0), 0, Status.SERVING)
    world.records.append(trains("gone", FIRST_ROUNDS))
    assert torch.equal((await world.join()).outer.params, state_of(0).params)


# -- an own checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "resumes"), [(RESUME_WITHIN, True), (RESUME_WITHIN + 1, False)])
def test_a_recent_checkpoint_is_resumed_an_old_one_is_not(behind: int, resumes: bool) -> None:
    async def test() -> None:
        world = DonorWorld()
        world.disk.save(state_of(5), 40, 1234)
        world.donor("a", state_of(1), 40 + behind)
        got = await world.join()
        assert same(got.outer, state_of(5)) is resumes
        assert ("resumed from own checkpoint-40 of round 40" in got.why) is resumes
        assert got.stale_reason == ""
        if resumes:
            assert f"the run is in round {40 + behind}" in got.why
            assert got.checkpoint_tokens == 1234
        else:
            assert got.why.startswith("fetched from a ")
            assert f"{behind} rounds behind, more than {RESUME_WITHIN}" in got.why

    run_virtual(test())


@virtually
async def test_alone_a_checkpoint_is_resumed_at_once() -> None:
    world = DonorWorld()
    world.disk.save(state_of(5), 40, 0)
    began = asyncio.get_running_loop().time()
    got = await world.join()
    assert same(got.outer, state_of(5))
    assert "nobody else is known to train" in got.why
    assert asyncio.get_running_loop().time() - began < 5
    assert got.stale_reason == ""


@virtually
async def test_an_old_checkpoint_that_nobody_can_replace_is_resumed_and_not_given_away() -> None:
    world = DonorWorld()
    world.disk.save(state_of(5), 40, 0)
    world.donor("a", None, 400)
    got = await world.join()
    assert same(got.outer, state_of(5))
    assert "although" in got.why
    staleness, donor = Staleness(got.stale_reason), RequestHandler()
    state = DonatedState(got.outer, lambda: 40, world.clock.now, outdated_reason=lambda: staleness.why)
    donor.register(state=state)
    with pytest.raises(PartnerRefused) as refusal:
        donor.on_state()
    assert refusal.value.code == "outdated"
    staleness.on_event(_ended("solo"), 0.0)
    assert staleness.why
    staleness.on_event(_ended("exchanged"), 0.0)
    assert donor.on_state() is not None


def _ended(outcome: Any) -> events.RoundEnded:
    event = object.__new__(events.RoundEnded)
    object.__setattr__(event, "outcome", outcome)
    return event
