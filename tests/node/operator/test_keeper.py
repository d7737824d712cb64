"""The keeper of the operator's node: which states it stores, and when it declares the run over."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.errors import JudgeFailed
from peer.identity import Identity
from peer.joining.context import JoinContext
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.virtual_clock import EPOCH, VirtualClock, run_virtual
from peer.node.handler import DonatedState, RequestHandler
from peer.node.operator.collect import StateCollector
from peer.node.operator.judge import NotJudged, StateJudge
from peer.node.operator.keeper import ServableState, StateKeeper, WatchedRun
from peer.node.operator.kept import KeptFacts, StateArchive
from peer.node.operator.run_progress import RunActivity, RunEnd, RunProgress
from peer.observe.status.codec import to_json
from peer.outer.state import OuterState
from peer.ports.directory import DialReport
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.policy.donors import GONE_S, KEEP_AGAIN_S
from peer.protocol.schedule import RoundClock
from peer.run.home import RunFolder
from peer.run.manifest import Manifest
from peer.state.checkpoint import Checkpoint
from peer.state.snapshot import StateSnapshot

RUN = RunId(b"r" * 32)
LAYOUT = Layout.whole([TensorSpec("t", (8,))])
ROUNDS, EVERY_S = 20, 600.0
BEGAN_S = 60.0
"""Seconds for which the run has lasted when a test begins."""
RUN_MANIFEST = Manifest.model_validate(
    {"format": 1, "name": "w", "operator": Identity.generate().peer_id, "train": {"total_rounds": ROUNDS}}
)


def filled(value: float, momentum: float = 0.0) -> OuterState:
    return OuterState(LAYOUT, torch.full((8,), value), torch.full((8,), momentum))


class Judge:
    """Judges by a function of the state's first value, and records the largest number of parallel judgements."""

    def __init__(self, loss: Callable[[float], float], seconds: float = 1.0) -> None:
        self._loss = loss
        self._seconds = seconds
        self.judged: list[Path] = []
        self.starts = True

    async def ensure_starts(self) -> None:
        if not self.starts:
            raise JudgeFailed("the process that evaluates states does not start: no torch")

    async def loss_of(self, state: Path) -> float:
        self.judged.append(state)
        await asyncio.sleep(self._seconds)
        params, _ = Checkpoint(state, {}, 0).load()
        loss = self._loss(float(params[0]))
        if loss < 0:
            raise NotJudged("no hold-out here")
        return loss


class World:
    """The peers of a run, and the operator's node."""

    def __init__(self, folder: Path, *, momentum: bool = False, in_steps: bool = True) -> None:
        self.network, self.clock, self.momentum = Network(), VirtualClock(), momentum
        self.records: dict[PeerId, PeerRecord] = {}
        self.said: list[str] = []
        self.served: list[ServableState] = []
        self.folder = folder
        self.policy = RunPolicy()
        kind = "steps" if in_steps else "seconds"
        self.rounds = RoundClock(cast(Any, kind), 10.0, 1, EPOCH - BEGAN_S)
        self.progress = RunProgress(folder / "run_round", lambda: self.rounds, self.clock.now)
        self.transport = MemoryTransport(self.network, PeerId("node"), RequestHandler(), self.clock)

    def peer(self, name: str, outer: OuterState, round_: int, status: Status = Status.TRAINING) -> None:
        donor = RequestHandler()
        state = DonatedState(outer, lambda: self.records[PeerId(name)].round, self.clock.now, momentum=self.momentum)
        donor.register(state=state)
        MemoryTransport(self.network, PeerId(name), donor, self.clock)
        self.says(name, round_, status)

    def says(self, name: str, round_: int, status: Status = Status.TRAINING) -> None:
        self.records[PeerId(name)] = PeerRecord(PeerId(name), RUN, (), True, 1, 1, round_, 5.0, status, 0.0, 1e12)
        self.progress.learn(self.records.values())

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return dict(self.records)

    def contact(self) -> DialReport:
        return DialReport()

    def keeper(self, judge: Judge | StateJudge | None = None, *, keeps: bool = True) -> StateKeeper:
        context = JoinContext(
            run_id=RUN,
            me=PeerId("node"),
            directory=cast(Any, self),
            transport=self.transport,
            clock=self.clock,
            say=self.said.append,
            rng=random.Random(0),
        )
        view = WatchedRun(
            manifest=RUN_MANIFEST,
            end=RunEnd(lambda: self.rounds, ROUNDS, self.progress),
            progress=self.progress,
            activity=RunActivity(),
            policy=lambda: self.policy,
        )
        states = StateArchive(RunFolder(self.folder), RUN, LAYOUT, self.said.append, momentum=self.momentum)
        collector = StateCollector(context, LAYOUT, self.folder / "fetched", inline, momentum=self.momentum)
        kept = collector if keeps else None
        return StateKeeper(context, view, states, kept, cast(Any, judge), EVERY_S, inline, self.served.append)

    async def during(self, keeper: StateKeeper, work: Coroutine[Any, Any, None]) -> None:
        keeping, looking = asyncio.create_task(keeper.run()), asyncio.create_task(self._look())
        try:
            await work
            assert not keeping.done(), keeping.exception()
        finally:
            keeping.cancel()
            looking.cancel()
            await asyncio.wait({keeping, looking})

    async def _look(self) -> None:
        while True:
            self.progress.learn(self.records.values())
            await asyncio.sleep(3.0)

    @property
    def values(self) -> list[float]:
        return [float(state.outer.params[0]) for state in self.served]


def test_it_keeps_the_mean_of_several_peers_of_a_pair_run(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        for number, value in enumerate([1.0, 2.0, 3.0, 6.0]):
            world.peer(f"p{number}", filled(value, momentum=9.0), 7)
        world.records[PeerId("liar")] = PeerRecord(PeerId("liar"), RUN, (), True, 1, 1, 7, 1.0, Status.ENDED, 0.0, 1e12)
        await world.during(world.keeper(Judge(abs)), asyncio.sleep(60))
        assert world.values == [3.0]
        kept = world.served[0]
        assert torch.equal(kept.outer.momentum, torch.zeros(8))
        assert (kept.facts.round, kept.facts.loss) == (7, 3.0)
        assert kept.facts.donors == ("p0", "p1", "p2", "p3")
        assert not (tmp_path / "fetched").exists()

    run_virtual(test())


def test_in_a_group_it_keeps_the_state_that_most_agree_on_with_its_momentum(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, momentum=True)
        for name, value in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
            world.peer(name, filled(value, momentum=value), 7)
        await world.during(world.keeper(Judge(abs)), asyncio.sleep(60))
        assert world.values == [1.0]
        assert torch.equal(world.served[0].outer.momentum, torch.ones(8))
        snapshot = StateSnapshot(filled(1.0).params, LAYOUT, 7, torch.ones(8))
        assert world.served[0].digest.hex().startswith(snapshot.index.snapshot), "what a joiner compares"

    run_virtual(test())


@pytest.mark.parametrize("momentum", [False, True])
def test_nothing_is_signed_of_an_unchecked_state_or_of_a_pair_s(tmp_path: Path, momentum: bool) -> None:
    async def test() -> None:
        world = World(tmp_path, momentum=momentum)
        world.peer("a", filled(1.0), 7)
        await world.during(world.keeper(None if momentum else Judge(abs)), asyncio.sleep(60))
        assert [state.digest for state in world.served] == [b""]

    run_virtual(test())


def test_it_keeps_the_first_at_once_and_later_ones_at_the_operators_pace(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        world.peer("a", filled(1.0), 3)

        async def go_on() -> None:
            await asyncio.sleep(30)
            assert len(world.served) == 1
            for round_ in range(4, 13):
                world.says("a", round_)
                await asyncio.sleep(100)

        await world.during(world.keeper(Judge(abs)), go_on())
        assert len(world.served) == 2

    run_virtual(test())


@pytest.mark.parametrize(
    ("value", "why"),
    [(float("nan"), "not_finite"), (float("inf"), "not_finite"), (2.3, "0.3000 worse"), (9.0, "worse")],
)
def test_a_bad_state_is_refused_with_a_reason_and_the_kept_one_stays(tmp_path: Path, value: float, why: str) -> None:
    async def test() -> None:
        world = World(tmp_path)
        outer = filled(2.0)
        world.peer("a", outer, 12)

        async def go_bad() -> None:
            await asyncio.sleep(30)
            outer.params.fill_(value)
            world.says("a", 13)
            await asyncio.sleep(EVERY_S + KEEP_AGAIN_S)
            assert any("kept" in line and why in line for line in world.said)
            outer.params.fill_(2.1)
            await asyncio.sleep(2 * KEEP_AGAIN_S)

        await world.during(world.keeper(Judge(lambda first: first)), go_bad())
        assert world.values == pytest.approx([2.0, 2.1])

    run_virtual(test())


def test_in_the_first_rounds_a_worse_state_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        outer = filled(2.0)
        world.peer("a", outer, 3)

        async def rise() -> None:
            await asyncio.sleep(30)
            outer.params.fill_(4.0)
            world.says("a", 4)
            await asyncio.sleep(EVERY_S)

        await world.during(world.keeper(Judge(abs)), rise())
        assert world.values == [2.0, 4.0]

    run_virtual(test())


def test_a_judge_that_does_not_start_stops_the_node(tmp_path: Path) -> None:
    """The node ends with the error of the first of its tasks that fails (`peer.node.operator.bootstrap`)."""

    async def test() -> None:
        world, judge = World(tmp_path), Judge(abs)
        judge.starts = False
        with pytest.raises(JudgeFailed):
            await world.keeper(judge).run()
        await world.during(world.keeper(judge, keeps=False), asyncio.sleep(5))

    run_virtual(test())


def test_one_that_cannot_be_judged_is_kept_unchecked_only_while_none_was_checked(tmp_path: Path) -> None:
    async def test() -> None:
        world, losses = World(tmp_path), itertools.chain([-1.0, 2.0], itertools.repeat(-1.0))
        world.peer("a", filled(1.0), 12)

        async def go_on() -> None:
            for round_ in (12, 13, 14):
                world.says("a", round_)
                await asyncio.sleep(EVERY_S)

        await world.during(world.keeper(Judge(lambda first: next(losses))), go_on())
        assert [(state.facts.round, state.facts.loss) for state in world.served] == [(12, None), (13, 2.0)]
        assert any("kept unchecked: no hold-out here" in line for line in world.said)

    run_virtual(test())


def test_the_node_survives_its_own_restart_with_the_newest_state(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        world.peer("a", filled(1.5), 12)
        await world.during(world.keeper(Judge(abs)), asyncio.sleep(30))
        world.records.clear()
        again = World(tmp_path)
        await again.during(again.keeper(Judge(abs)), asyncio.sleep(5))
        assert again.values == [1.5]
        assert again.served[0].facts.tokens >= 0
        assert again.progress.value == 12

    run_virtual(test())


def test_a_candidate_that_a_kill_left_unjudged_is_judged_at_the_next_start(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        world.peer("a", filled(1.5), 12)
        await world.during(world.keeper(Judge(abs, seconds=1e6)), asyncio.sleep(30))
        assert world.values == []
        again = World(tmp_path)
        await again.during(again.keeper(Judge(abs)), asyncio.sleep(5))
        assert again.values == [1.5]

    run_virtual(test())


def test_a_state_of_before_a_restart_of_the_run_is_not_kept(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        world.policy = RunPolicy(founded=b"f" * 32, founded_round=15)
        world.peer("a", filled(1.5), 12)

        async def refound() -> None:
            await asyncio.sleep(30)
            assert world.values == []
            world.says("a", 15)
            await asyncio.sleep(2 * EVERY_S)

        await world.during(world.keeper(Judge(abs)), refound())
        assert [state.facts.founded for state in world.served] == [(b"f" * 32).hex()]

    run_virtual(test())


# -- the end ---------------------------------------------------------------------------------------------------------


def test_in_steps_the_run_is_over_when_most_have_finished_and_the_last_state_is_kept(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        for name in "abc":
            world.peer(name, filled(1.0), ROUNDS - 1)
        keeper = world.keeper(Judge(abs))

        async def finish() -> None:
            await asyncio.sleep(30)
            world.says("a", ROUNDS, Status.FINISHED)
            await asyncio.sleep(30)
            assert keeper.status is Status.SERVING
            world.says("b", ROUNDS, Status.FINISHED)
            await asyncio.sleep(30)

        await world.during(keeper, finish())
        assert (keeper.status, keeper.round) == (Status.ENDED, ROUNDS)
        assert [state.facts.round for state in world.served] == [ROUNDS - 1, ROUNDS]
        assert world.served[1].facts.donors == ("a", "b")
        assert f"run w ended after {ROUNDS} rounds" in world.said

    run_virtual(test())


def test_the_end_is_said_and_the_only_state_served_before_it_is_judged(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path)
        world.peer("a", filled(1.0), ROUNDS, Status.FINISHED)
        keeper = world.keeper(Judge(abs, seconds=300.0))

        async def wait() -> None:
            await asyncio.sleep(10)
            assert (keeper.status, keeper.round, world.values) == (Status.ENDED, ROUNDS, [1.0])
            assert "served while it is being evaluated" in to_json(keeper.report())["why"]
            world.records.clear()
            await asyncio.sleep(300)

        await world.during(keeper, wait())
        assert (keeper.round, world.values) == (ROUNDS, [1.0, 1.0])
        assert [state.facts.loss for state in world.served] == [None, 1.0]
        assert world.served[0].outer is world.served[1].outer, "a large state is read once"

    run_virtual(test())


def test_in_seconds_the_clock_ends_the_run_and_a_slow_judgement_of_an_earlier_state_is_dropped(tmp_path: Path) -> None:
    async def test() -> None:
        world = World(tmp_path, in_steps=False)
        world.peer("a", filled(1.0), 5)
        judge = Judge(abs, seconds=250.0)
        keeper = world.keeper(judge)

        async def to_the_end() -> None:
            await asyncio.sleep(10.0 * ROUNDS - BEGAN_S - 1)
            assert keeper.status is Status.SERVING
            await asyncio.sleep(6)
            assert keeper.status is Status.SERVING, "nobody has finished yet"
            world.says("a", ROUNDS, Status.FINISHED)
            await asyncio.sleep(6)
            assert (keeper.status, keeper.round) == (Status.ENDED, ROUNDS)
            await asyncio.sleep(300)

        await world.during(keeper, to_the_end())
        assert [(state.facts.round, state.facts.loss) for state in world.served] == [(ROUNDS, None), (ROUNDS, 1.0)]

    run_virtual(test())


@pytest.mark.parametrize("keeps", [True, False])
def test_with_every_volunteer_gone_it_serves_what_it_has_and_still_says_so(tmp_path: Path, keeps: bool) -> None:
    async def test() -> None:
        world = World(tmp_path, in_steps=False)
        world.peer("a", filled(1.0), 5)
        keeper = world.keeper(Judge(abs), keeps=keeps)

        async def vanish() -> None:
            await asyncio.sleep(60)
            world.records.clear()
            await asyncio.sleep(10.0 * ROUNDS - BEGAN_S - 60 + GONE_S + 5)

        await world.during(keeper, vanish())
        assert (keeper.status, keeper.round) == (Status.ENDED, 5 if keeps else 0)
        again = world.keeper(Judge(abs), keeps=keeps)
        await world.during(again, asyncio.sleep(GONE_S + 5))
        assert again.status is Status.ENDED

    run_virtual(test())


def test_facts_of_any_json_are_read() -> None:
    told = KeptFacts(3, 5, None, ("a",), "")
    assert KeptFacts.of(told.to_json()) == told
    assert KeptFacts.of({"round": 1, "tokens": 2, "peer_id": "x"}) == KeptFacts(1, 2, None, (), "")


def test_tokens_are_counted_at_the_speed_that_was_last_reported() -> None:
    activity = RunActivity()
    record = PeerRecord(PeerId("a"), RUN, (), True, 1, 1, 1, 10.0, Status.TRAINING, 0.0, 1e12)
    activity.observe([record], 0.0)
    activity.observe([record], 3.0)
    assert activity.tokens == 0, "a record costs nothing"
    activity.count_work(10.0, 100.0)
    activity.count_work(10.0, 103.0)
    assert activity.tokens == 30
    assert activity.alone_s(3.0) == 0.0
    activity.observe([], 10.0)
    assert activity.alone_s(10.0) == 7.0
