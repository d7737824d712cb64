"""Where a peer's first state comes from: several donors, an own checkpoint, and never the first state of an old run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from peer.errors import PartnerRefused, StateError
from peer.join.context import JoinContext
from peer.join.donors import FIRST_ROUNDS, KEPT_ROUNDS, OLD_ROUNDS, PATIENCE_S
from peer.join.resume import RESUME_WITHIN, JoinedState, Staleness
from peer.join.state import RECRUIT_FIRST_S, obtain_state
from peer.lab.sim.machine import KeptStates
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.node.handler import DonatedState, RequestHandler, ServedParts
from peer.node.operator.run_progress import ALONE_S, RunProgress
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.home import RunFolder
from peer.state.checkpoint import CheckpointStore
from peer.state.snapshot import StateSnapshot, copy_of

RUN = RunId(b"r" * 32)
LAYOUT = Layout.whole([TensorSpec(f"t{n}", (2**16,)) for n in range(12)])


def virtually(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__name__ = test.__name__
    return run


def state_of(seed: int) -> OuterState:
    generator = torch.Generator().manual_seed(seed)
    return OuterState(LAYOUT, *(torch.randn(LAYOUT.elements, generator=generator) for _ in range(2)))


class World:
    """Donors and a joiner on one network; `records` is what the directory shows."""

    def __init__(self, *, momentum: bool = False) -> None:
        self.network, self.clock, self.momentum = Network(), VirtualClock(), momentum
        self.records: list[PeerRecord] = []
        self.said: list[str] = []
        self.shown: list[tuple[Any, ...]] = []
        self.kept = KeptStates()
        self.transport = MemoryTransport(self.network, PeerId("joiner"), RequestHandler(), self.clock)

    def donor(
        self, name: str, outer: OuterState | None, round_: int, status: Status = Status.TRAINING, **give: Any
    ) -> RequestHandler:
        donor = RequestHandler()
        if outer is not None:
            state = DonatedState(outer, lambda: round_, self.clock.now, momentum=self.momentum, **give)
            donor.serve(ServedParts(state=state))
        MemoryTransport(self.network, PeerId(name), donor, self.clock)
        self.records.append(PeerRecord(PeerId(name), RUN, (), True, 1, 1, round_, 1.0, status, 0.0, 1e12))
        return donor

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {record.peer_id: record for record in self.records}

    def contact(self) -> DialReport:
        return DialReport()

    async def join(self, folder: Path | None = None) -> JoinedState:
        context = JoinContext(
            run_id=RUN,
            me=PeerId("joiner"),
            directory=cast(Any, self),
            transport=self.transport,
            clock=self.clock,
            say=self.said.append,
            folder=None if folder is None else RunFolder(folder),
            rng=random.Random(0),
        )
        kept = cast(CheckpointStore, self.kept)
        shown: Callable[..., None] = lambda *told: self.shown.append(told)  # noqa: E731
        return await obtain_state(context, LAYOUT, kept, momentum=self.momentum, progress=shown)


def trains(name: str, round_: int) -> PeerRecord:
    return PeerRecord(PeerId(name), RUN, (), True, 1, 1, round_, 1.0, Status.TRAINING, 0.0, 1e12)


def same(one: OuterState, other: OuterState) -> bool:
    return torch.equal(one.params, other.params) and torch.equal(one.momentum, other.momentum)


# -- several donors --------------------------------------------------------------------------------------------------


@virtually
async def test_a_group_s_state_comes_from_all_its_members_bit_for_bit() -> None:
    world = World(momentum=True)
    for name in "abc":
        world.donor(name, state_of(1), 30 + ord(name))
    got = await world.join()
    assert same(got.outer, state_of(1))
    assert "3 donors" in got.why
    assert got.fetched.nbytes == 8 * LAYOUT.elements
    fetching = [told for told in world.shown if told[0].startswith("fetching")]
    assert fetching[-1] == ("fetching the state (3 donors)", 8 * LAYOUT.elements, 8 * LAYOUT.elements, "bytes")


@virtually
async def test_donors_of_another_state_are_not_mixed_in() -> None:
    world = World(momentum=True)
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
    world, outers = World(momentum=True), [state_of(1), state_of(1)]
    early = world.donor("a", outers[0], 30)
    world.donor("b", outers[1], 31)
    assert early.on_state() is not None
    for outer in outers:
        with outer.stepping():
            outer.params += 1
            outer.momentum -= 1
    await asyncio.sleep(2)  # the early one's snapshot is young enough to be offered again
    got = await world.join()
    assert same(got.outer, outers[0])
    assert "2 donors" in got.why


@virtually
async def test_a_pair_s_pieces_come_from_any_peer_within_bounds_and_momentum_is_zero() -> None:
    world = World()
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
    world = World()
    world.donor("joins", None, 0, Status.TRAINING)
    world.donor("honest", state_of(1), 3)
    assert torch.equal((await world.join()).outer.params, state_of(1).params)


@virtually
async def test_a_donor_that_comes_later_helps() -> None:
    world = World()
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
        world = World(momentum=momentum)
        for name in ("silent", "a", "b"):
            world.donor(name, state_of(1), 3)
        world.network.cut(PeerId("joiner"), PeerId("silent"))
        began = asyncio.get_running_loop().time()
        got = await world.join()
        assert torch.equal(got.outer.params, state_of(1).params)
        assert asyncio.get_running_loop().time() - began < PATIENCE_S + 1
        assert "2 donors" in got.why

    run_virtual(test())


@virtually
async def test_a_donor_that_needs_longer_for_its_copy_helps_as_soon_as_it_has_it() -> None:
    world = World(momentum=True)
    world.network.link = replace(world.network.link, up=4e5)
    copying, outer = Future[StateSnapshot | None](), state_of(1)
    world.donor("a", state_of(1), 3)
    slow = world.donor("slow", outer, 3, start=lambda make: copying)
    given: list[int] = []
    slow.on_piece = partial(_noting, slow.on_piece, given)  # type: ignore[method-assign]
    joining = asyncio.create_task(world.join())
    await asyncio.sleep(PATIENCE_S + 1)
    assert not given
    copying.set_result(copy_of(outer, 3, momentum=True))
    await asyncio.sleep(2 * RECRUIT_FIRST_S + 1)
    assert given
    assert same((await joining).outer, outer)


@virtually
async def test_nobody_to_fetch_from_is_an_error_in_the_end() -> None:
    world = World()
    with pytest.raises(StateError):
        await world.join()


# -- interrupted -----------------------------------------------------------------------------------------------------


async def _interrupted(world: World, folder: Path, part: float) -> None:
    """A joiner dies when it has this part."""
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
        world = World(momentum=momentum)
        world.network.link = replace(world.network.link, up=1e6)
        for name in "ab":
            world.donor(name, state_of(1), 30)
        await _interrupted(world, tmp_path, 0.5)
        got = await world.join(tmp_path)
        assert torch.equal(got.outer.params, state_of(1).params)
        assert got.fetched.nbytes <= 0.55 * (8 if momentum else 4) * LAYOUT.elements
        assert any("are here from before" in text for text in world.said)
        assert not (tmp_path / "transfer").exists()

    run_virtual(test())


def test_a_group_that_still_keeps_the_snapshot_gives_its_rest(tmp_path: Path) -> None:
    async def test() -> None:
        world, outer = World(momentum=True), state_of(1)
        world.network.link = replace(world.network.link, up=1e6)
        world.donor("a", outer, 30)
        await _interrupted(world, tmp_path, 0.5)
        with outer.stepping():
            outer.params += 1
        await asyncio.sleep(40)  # by now others would be offered a fresh one
        got = await world.join(tmp_path)
        assert same(got.outer, state_of(1))
        assert got.fetched.nbytes <= 0.55 * 8 * LAYOUT.elements

    run_virtual(test())


def test_a_group_that_moved_on_everywhere_starts_over_and_says_so(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(momentum=True)
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
        world = World()
        world.network.link = replace(world.network.link, up=1e6)
        world.donor("a", state_of(1), 30)
        await _interrupted(world, tmp_path, 0.5)
        world.network.kill(PeerId("a"))
        world.records.clear()
        world.donor("b", state_of(2), 30 + later)
        got = await world.join(tmp_path)
        assert (got.fetched.nbytes <= 0.55 * 4 * LAYOUT.elements) is kept
        assert torch.equal(got.outer.params, state_of(2).params) is not kept

    run_virtual(test())


# -- the first state of an old run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("remembers", [True, False])
def test_a_joiner_cut_off_with_the_bootstrap_node_waits_and_says_so(tmp_path: Path, remembers: bool) -> None:
    """With `remembers` the node refuses by itself; without (it lost its home), the live records tell."""

    async def test() -> None:
        world = World()
        run_round = RunProgress(tmp_path / "run_round")
        trainer = world.donor("trainer", state_of(9), 57)
        if remembers:
            run_round.learn(world.records)
            world.records.clear()
        world.donor("node", state_of(0), 0, Status.SERVING, why_not=run_round.why_not_first)
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
    world = World()
    world.donor("node", state_of(0), 0, Status.SERVING)
    world.records.append(trains("gone", FIRST_ROUNDS))
    assert torch.equal((await world.join()).outer.params, state_of(0).params)


@pytest.mark.parametrize("status", [Status.SERVING, Status.ENDED])
@pytest.mark.parametrize(("behind", "taken"), [(KEPT_ROUNDS, True), (KEPT_ROUNDS + 1, False)])
def test_a_kept_state_of_the_node_serves_while_it_is_recent(status: Status, behind: int, taken: bool) -> None:
    async def test() -> None:
        world = World()
        world.donor("node", state_of(4), 7, status)
        world.records.append(trains("cut off", 7 + behind))
        world.network.kill(PeerId("cut off"))
        joining = asyncio.create_task(world.join())
        await asyncio.sleep(60)
        assert joining.done() is taken
        if taken:
            assert torch.equal(joining.result().outer.params, state_of(4).params)
        else:
            assert any("has kept the state of round 7" in text for text in world.said)
            joining.cancel()

    run_virtual(test())


@pytest.mark.parametrize("momentum", [False, True])
def test_peers_that_train_are_preferred_to_the_kept_state_of_nodes(momentum: bool) -> None:
    async def test() -> None:
        world = World(momentum=momentum)
        world.donor("node", state_of(4), 19, Status.SERVING)
        world.donor("second node", state_of(4), 19, Status.SERVING)
        world.donor("a", state_of(1), 20)
        assert torch.equal((await world.join()).outer.params, state_of(1).params)

    run_virtual(test())


@virtually
async def test_in_a_run_that_everybody_left_the_kept_state_is_the_newest() -> None:
    world = World()
    world.donor("node", state_of(4), 7, Status.SERVING)
    world.records[0] = replace(world.records[0], round=7 + 2 * KEPT_ROUNDS)
    assert torch.equal((await world.join()).outer.params, state_of(4).params)


def test_the_node_tells_when_its_kept_state_is_too_old(tmp_path: Path) -> None:
    run_round = RunProgress(tmp_path / "run_round")
    run_round.learn([trains("a", 90)])
    assert run_round.why_not_kept(90 - KEPT_ROUNDS, alone_s=0.0) == ""
    assert "round 90" in run_round.why_not_kept(39, alone_s=0.0)
    assert run_round.why_not_kept(39, alone_s=ALONE_S + 1) == ""


def test_the_node_remembers_over_restarts_and_one_peer_alone_does_not_move_it(tmp_path: Path) -> None:
    run_round = RunProgress(tmp_path / "run_round")
    assert run_round.why_not_first() == ""
    run_round.learn([trains("a", 5), trains("liar", 2**50)])
    assert run_round.value == 5
    run_round.learn([trains("a", 4)])
    again = RunProgress(tmp_path / "run_round")
    assert again.value == 5
    assert "round 5" in again.why_not_first()
    (tmp_path / "run_round").write_text("torn")
    assert RunProgress(tmp_path / "run_round").value == 0


# -- an own checkpoint -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("behind", "resumes"), [(0, True), (RESUME_WITHIN, True), (RESUME_WITHIN + 1, False)])
def test_a_recent_checkpoint_is_resumed_an_old_one_is_not(behind: int, resumes: bool) -> None:
    async def test() -> None:
        world = World()
        world.kept.keep(state_of(5), 40, 1234)
        world.donor("a", state_of(1), 40 + behind)
        got = await world.join()
        assert same(got.outer, state_of(5)) is resumes
        assert ("resumed from own checkpoint-40 of round 40" in got.why) is resumes
        assert got.stale == ""
        if resumes:
            assert f"the run is in round {40 + behind}" in got.why
            assert got.checkpoint_tokens == 1234
        else:
            assert got.why.startswith("fetched from a ")
            assert f"{behind} rounds behind, more than {RESUME_WITHIN}" in got.why

    run_virtual(test())


@virtually
async def test_alone_a_checkpoint_is_resumed_at_once() -> None:
    world = World()
    world.kept.keep(state_of(5), 40, 0)
    began = asyncio.get_running_loop().time()
    got = await world.join()
    assert same(got.outer, state_of(5))
    assert "nobody else is known to train" in got.why
    assert asyncio.get_running_loop().time() - began < 5
    assert got.stale == ""


@virtually
async def test_an_old_checkpoint_that_nobody_can_replace_is_resumed_and_not_given_away() -> None:
    world = World()
    world.kept.keep(state_of(5), 40, 0)
    world.donor("a", None, 400)
    got = await world.join()
    assert same(got.outer, state_of(5))
    assert "although" in got.why
    staleness, donor = Staleness(got.stale), RequestHandler()
    state = DonatedState(got.outer, lambda: 40, world.clock.now, why_not=lambda: staleness.why)
    donor.serve(ServedParts(state=state))
    with pytest.raises(PartnerRefused) as refusal:
        donor.on_state()
    assert refusal.value.code == "outdated"
    staleness.hear(_ended("solo"), 0.0)
    assert staleness.why
    staleness.hear(_ended("exchanged"), 0.0)
    assert donor.on_state() is not None


def _ended(outcome: Any) -> events.RoundEnded:
    event = object.__new__(events.RoundEnded)
    object.__setattr__(event, "outcome", outcome)
    return event
