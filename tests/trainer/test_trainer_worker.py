"""The trainer's main loop, run in this process. The test plays the pipe to the daemon."""

from __future__ import annotations

import math
import queue
import shutil
import time
from collections import deque
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.clock.monotonic import boottime
from peer.errors import StateError
from peer.ports.trainer import AT_ONCE, Merge
from peer.protocol.model.layout import Layout
from peer.run.sections import DataSection, LlamaSection, TrainSection
from peer.trainer import checkpoint as saved
from peer.trainer.arena import Arena, read_counters
from peer.trainer.config import TrainerConfig
from peer.trainer.data import BLOCK_BYTES, load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params, layout_of
from peer.trainer.worker import TrainerWorker

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
)
LAYOUT = layout_of(MODEL)
HALVES = ((0, 4), (4, len(LAYOUT.tensors)))
HALVED = Layout(LAYOUT.tensors, HALVES)
TOKENS = 4 * 16
"""Tokens of a step."""


class Idle(Exception):
    """Raised when the session would wait for a command."""


class ScriptedLine:
    """A pipe with given commands. Ends the session's run when it would block, or at a given answer."""

    def __init__(self) -> None:
        self.inbox = self
        self.given_up = 0
        self.waiting: deque[dict[str, Any]] = deque()
        self.answers: dict[int, dict[str, Any]] = {}
        self.stop_at = 0

    def empty(self) -> bool:
        return not self.waiting

    def get(self, timeout: float | None = None) -> dict[str, Any]:
        if not self.waiting:
            raise Idle if timeout is None else queue.Empty
        return self.waiting.popleft()

    def send(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self.answers[message["id"]] = message
            if message["id"] == self.stop_at:
                raise Idle


class Played:
    """A trainer session and its daemon's calls."""

    def __init__(
        self,
        folder: Path,
        texts: Path,
        fragments: tuple[tuple[int, int], ...] = LAYOUT.fragments,
        line: ScriptedLine | None = None,
        **changes: Any,
    ):
        self.folder = folder
        self.model = changes.get("model", MODEL)
        self.arena = Arena(folder, layout_of(self.model), create=True)
        self.line = line or ScriptedLine()
        self.session = TrainerWorker(self.line, self.config(texts, **changes), fragments, folder)  # type: ignore[arg-type]
        self.session.open_data()
        self.session.prepare()
        self.fragments = fragments
        self._id = 0

    @staticmethod
    def config(texts: Path, **changes: Any) -> TrainerConfig:
        given = {
            "model": MODEL,
            "data": DataSection(kind="text"),
            "data_dir": str(texts),
            "train": TrainSection(context=16, batch=4, total_rounds=10, eval_windows=8),
            "sync_every": 10,
            "seed": 1,
            "peer_id": "a",
            "device": "cpu",
        }
        return TrainerConfig.model_validate(given | changes)

    def call_later(self, op: str, **fields: Any) -> None:
        """Make a call without waiting for its answer."""
        self._id += 1
        self.line.waiting.append({"id": self._id, "op": op, **fields})

    def call(self, op: str, **fields: Any) -> dict[str, Any]:
        self.call_later(op, **fields)
        self.line.stop_at = self._id
        with pytest.raises(Idle):
            self.session.run()
        answer = self.line.answers[self._id]
        return answer.get("ok", answer)

    def start(self, params: torch.Tensor | None = None, round_: int = 0, resume: Path | None = None) -> None:
        self.arena.inn.copy_(first_params(self.model, 1) if params is None else params)
        self.call("start", round=round_, resume=str(resume) if resume else None)

    def work(
        self,
        steps: int | None = None,
        until: float | None = None,
        round_: int = 0,
        fragment: int = 0,
        hold: bool = True,
        lr_scale: float = 1.0,
        pause_after: int | None = None,
    ) -> dict[str, Any]:
        where = {"round": round_, "fragment": fragment, "lr_scale": lr_scale, "pause_after": pause_after}
        return self.call("work", steps=steps, until=until, hold=hold, **where)

    def apply(
        self, params: torch.Tensor, base: int, next_round: int, fragment: int = 0, merge: Merge = AT_ONCE
    ) -> None:
        start, end = self.session._layout.fragment_span(fragment)
        self.arena.inn[start:end].copy_(params)
        self.call("apply", fragment=fragment, base=base, next_round=next_round, **asdict(merge))

    def counters(self) -> Any:
        return read_counters(self.folder, len(self.fragments))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes((b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    return folder


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def test_work_is_counted_from_the_last_apply(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    work = played.work(steps=3)
    assert (work["steps"], work["tokens"], work["processed"], work["skipped"]) == (3, 3 * TOKENS, 3 * TOKENS, 0)
    assert 5.0 < work["loss"] < 6.0
    assert played.counters().base == (0,)
    played.apply(played.arena.out.clone(), work["processed"], 1)
    assert played.counters().base == (3 * TOKENS,)
    work = played.work(steps=2, round_=1)
    assert (work["steps"], work["tokens"], work["processed"]) == (2, 2 * TOKENS, 5 * TOKENS)
    assert played.counters().steps == 5
    assert played.counters().seconds_training > 0
    assert played.counters().seconds_waiting > 0


def test_what_is_applied_is_what_trains_on(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    work = played.work(steps=2)
    other = first_params(MODEL, 77)
    played.apply(other, work["processed"], 1)
    assert torch.equal(played.session._loop.params, other)
    assert (played.session._loop.round, played.session._loop.step_in_round) == (1, 0)


def test_a_round_that_was_skipped_moves_the_place_but_not_the_count(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    work = played.work(steps=2)
    work = played.work(steps=4, round_=6)
    assert (work["steps"], work["tokens"]) == (6, 6 * TOKENS), "since the base; four of them since the last snapshot"
    assert (played.session._loop.round, played.session._loop.step_in_round) == (6, 4)


def test_a_moment_that_has_passed_gives_a_snapshot_at_once(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    work = played.work(until=boottime() - 1.0)
    assert (work["steps"], work["tokens"]) == (0, 0)
    assert math.isnan(work["loss"])
    assert torch.equal(played.arena.out, first_params(MODEL, 1))


class Watch:
    """A clock that each inner step advances by `step` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, played: Played, step: float) -> None:
        self.now = 1000.0
        real = played.session._loop.step

        def slow() -> float | None:
            self.now += step
            return real()

        monkeypatch.setattr(played.session._loop, "step", slow)
        monkeypatch.setattr("peer.trainer.boundary.boottime", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: int(self.now * 1e9))


@pytest.mark.parametrize(("until", "steps"), [(1000.4, 1), (1004.4, 4), (1004.6, 5), (1005.0, 5)])
def test_it_stops_at_the_boundary_nearest_to_the_moment(
    until: float, steps: int, home: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes one second. At least one is made, because the length of a step is unknown before the first one."""
    played = Played(home, data)
    played.start()
    Watch(monkeypatch, played, 1.0)
    work = played.work(until=until)
    assert (work["steps"], work["seconds"]) == (steps, steps)


def test_streaming_goes_on_after_the_snapshot(home: Path, data: Path) -> None:
    played = Played(home, data, HALVES)
    played.start()
    first = played.work(steps=3, fragment=0, hold=False)
    assert played.session.boundary.running
    snapshot = played.arena.out[: played.session._layout.fragment_elements(0)].clone()
    played.call("evaluate")
    with pytest.raises(Idle):
        _run_steps(played, 2)
    played.apply(snapshot, first["processed"], 1, fragment=0)
    assert played.counters().base == (3 * TOKENS, 0)
    done = played.counters().tokens
    work = played.work(steps=1, fragment=0, round_=2)
    assert work["tokens"] == played.counters().tokens - 3 * TOKENS
    assert work["steps"] * TOKENS == work["tokens"] == done - 3 * TOKENS, "reached already: taken at the next boundary"
    assert work["loss"] < 6.0
    other = played.work(steps=0, fragment=1, round_=3)
    assert other["tokens"] == played.counters().tokens, "the other fragment's base has not moved"


def straight(params: torch.Tensor, data: Path, places: list[tuple[int, int]]) -> InnerLoop:
    """Return a loop that made only these steps, (round, step in the round), beginning with `params`."""
    config = Played.config(data)
    loop = InnerLoop(config, HALVED, choose_device("cpu"), load_corpus(config.data, config.data_dir, 16), params)
    for place in places:
        loop.move_to(*place)
        loop.step()
    return loop


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_a_result_is_merged_at_its_step_boundary_and_not_before(home: Path, data: Path, alpha: float) -> None:
    """After five steps of round 0, the snapshot of fragment 0 is taken. Its result is merged three steps later."""
    played = Played(home, data, HALVES)
    played.start()
    first = played.work(steps=5, fragment=0, hold=False)
    result = torch.full((HALVED.fragment_elements(0),), 0.25)
    played.apply(result, first["processed"], 1, fragment=0, merge=Merge(alpha, after_steps=3))
    assert played.session.boundary.account.steps == 8
    expected = straight(
        first_params(MODEL, 1), data, [(0, step) for step in range(5)] + [(1, step) for step in range(3)]
    )
    expected.merge(0, result, alpha)
    assert torch.equal(played.session._loop.params, expected.params)
    assert played.counters().base == (5 * TOKENS, 0)
    work = played.work(steps=5, fragment=1, round_=1, hold=False)
    assert (work["steps"], work["tokens"]) == (10, 10 * TOKENS), "round 1 is the five steps after the snapshot"
    for step in (3, 4):
        expected.move_to(1, step)
        expected.step()
    start, end = HALVED.fragment_span(1)
    assert torch.equal(played.arena.out[start:end], expected.params[start:end])


def test_held_nothing_waits_for_steps_that_do_not_come(home: Path, data: Path) -> None:
    played = Played(home, data, HALVES)
    played.start()
    first = played.work(steps=2, fragment=0, hold=False)
    second = played.work(steps=2, fragment=1, round_=1, hold=True)
    slow = Merge(0.0, after_steps=100)
    played.apply(torch.zeros(HALVED.fragment_elements(0)), first["processed"], 1, fragment=0, merge=slow)
    played.apply(torch.zeros(HALVED.fragment_elements(1)), second["processed"], 2, fragment=1, merge=slow)
    assert not played.session._loop.params.any()
    assert played.session.boundary.account.steps == 4
    assert (played.session._loop.round, played.session._loop.step_in_round) == (2, 0)


def test_paused_it_waits_for_the_result_at_its_boundary_and_counts_the_waiting(home: Path, data: Path) -> None:
    played = Played(home, data, HALVES)
    played.start()
    first = played.work(steps=4, fragment=0, hold=False, pause_after=3)
    played.call_later("work", steps=4, until=None, round=1, fragment=1, hold=True, lr_scale=1.0, pause_after=None)
    played.line.stop_at = -1
    with pytest.raises(Idle):
        played.session.run()
    assert played.session.boundary.account.steps == 7, "three behind the snapshot, then nothing but waiting"
    assert played.counters().seconds_waiting == 0
    result = torch.zeros(HALVED.fragment_elements(0))
    played.apply(result, first["processed"], 1, merge=Merge(0.0, after_steps=3))
    assert played.counters().base == (4 * TOKENS, 0)
    assert played.counters().seconds_waiting > 0
    with pytest.raises(Idle):
        played.session.run()
    assert played.session.boundary.account.steps == 8


def test_released_it_goes_on_without_a_result(home: Path, data: Path) -> None:
    played = Played(home, data, HALVES)
    played.start()
    played.work(steps=2, fragment=0, hold=False, pause_after=0)
    with pytest.raises(Idle):
        played.session.run()
    assert played.session.boundary.account.steps == 2
    played.call_later("release", fragment=0)
    with pytest.raises(Idle):
        _run_steps(played, 3)
    assert played.session.boundary.account.steps == 5
    assert played.counters().base == (0, 0)


def test_two_results_wait_at_once_and_each_comes_at_its_own_boundary(home: Path, data: Path) -> None:
    played = Played(home, data, HALVES)
    played.start()
    first = played.work(steps=4, fragment=0, hold=False)
    played.call_later("apply", fragment=0, base=first["processed"], next_round=1, **asdict(Merge(0.0, after_steps=6)))
    second = played.work(steps=4, fragment=1, round_=1, hold=False)
    played.apply(torch.zeros(HALVED.fragment_elements(1)), second["processed"], 2, 1, Merge(0.0, after_steps=1))
    assert (played.session.boundary.account.steps, played.counters().base) == (9, (0, 8 * TOKENS))
    with pytest.raises(Idle):
        _run_steps(played, 2)
    assert (played.session.boundary.account.steps, played.counters().base) == (11, (4 * TOKENS, 8 * TOKENS))


def _run_steps(played: Played, steps: int) -> None:
    left = [steps]
    real = played.session._rest

    def rest(worked_s: float) -> None:
        real(worked_s)
        left[0] -= 1
        if not left[0]:
            raise Idle

    played.session._rest = rest  # type: ignore[method-assign]
    try:
        played.session.run()
    finally:
        played.session._rest = real  # type: ignore[method-assign]


def test_hold_ends_work_under_way(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    played.line.waiting += [
        {
            "id": 90,
            "op": "work",
            "steps": 10**6,
            "until": None,
            "round": 0,
            "fragment": 0,
            "hold": True,
            "lr_scale": 1.0,
            "pause_after": None,
        },
        {"op": "hold"},
    ]
    with pytest.raises(Idle):
        played.session.run()
    assert 90 not in played.line.answers
    assert played.work(steps=1)["steps"] == 1


def test_skipped_steps_are_counted_and_their_loss_is_not(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    real, calls = played.session._loop.step, [0]

    def sometimes() -> float | None:
        calls[0] += 1
        loss = real()
        return loss if calls[0] % 2 else None

    played.session._loop.step = sometimes  # type: ignore[method-assign]
    work = played.work(steps=4)
    assert (work["steps"], work["skipped"], work["tokens"]) == (4, 2, 4 * TOKENS)
    assert 5.0 < work["loss"] < 6.0


class Lull:
    """A pipe on which commands arrive at given times of the monotonic clock."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, played: Played, *commands: tuple[float, dict[str, Any]]
    ) -> None:
        self.now = 0.0
        self.commands = deque(commands)
        played.line.get = self.get  # type: ignore[method-assign]
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr("peer.trainer.boundary.boottime", lambda: 1000.0 + self.now)

    def get(self, timeout: float | None = None) -> dict[str, Any]:
        assert timeout is not None
        if self.commands and self.commands[0][0] <= self.now + timeout:
            self.now, command = self.commands.popleft()
            return command
        self.now += timeout
        raise queue.Empty


def test_throttled_it_rests_in_proportion_and_takes_commands_meanwhile(
    home: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(home, data, speed=0.25)
    played.start()
    played.work(steps=1)
    played.session.boundary.running = True
    lull = Lull(monkeypatch, played, (2.5, {"id": 90, "op": "evaluate"}))
    played.session._rest(2.0)
    assert lull.now == pytest.approx(6.0)
    assert 90 in played.line.answers


@pytest.mark.parametrize(("worked_s", "rests_s"), [(0.5, 2.5), (1.0, 3.0), (9.0, 27.0)])
def test_a_step_takes_as_long_as_wished_however_soon_it_is_done(
    home: Path, data: Path, monkeypatch: pytest.MonkeyPatch, worked_s: float, rests_s: float
) -> None:
    played = Played(home, data, speed=0.25, step_seconds=3.0)
    played.start()
    played.work(steps=1)
    played.session.boundary.running = True
    lull = Lull(monkeypatch, played)
    played.session._rest(worked_s)
    assert lull.now == pytest.approx(rests_s)


def test_the_speed_that_is_shown_is_by_the_clock_with_the_rests(home: Path, data: Path) -> None:
    """`tokens_per_s` includes rests: here a step takes 3 s together with its rest."""
    played = Played(home, data, step_seconds=3.0)
    played.start()
    played.work(steps=1)
    tokens_per_s = played.session.boundary.tokens_per_s
    assert tokens_per_s == pytest.approx(TOKENS / 3.0)


def test_what_falls_due_in_a_rest_is_done_then_and_does_not_end_the_rest(
    home: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(home, data, HALVES, speed=0.5)
    played.start()
    first = played.work(steps=2, fragment=0, hold=False)
    played.arena.in_slot(0).fill_(0.5)
    merge = Merge(0.0, after=1001.0)
    apply = {"id": 91, "op": "apply", "fragment": 0, "base": first["processed"], "next_round": 1, **asdict(merge)}
    late = {"id": 92, "op": "work", "steps": 0, "until": None, "round": 1, "fragment": 1, "hold": False}
    late |= {"lr_scale": 1.0, "pause_after": None}
    lull, told = Lull(monkeypatch, played, (0.25, apply), (2.0, late)), dict[int, float]()
    send = played.line.send

    def hear(message: dict[str, Any]) -> None:
        send(message)
        told[message["id"]] = lull.now

    monkeypatch.setattr(played.line, "send", hear)
    played.session._rest(3.0)
    assert told == {91: pytest.approx(1.0), 92: pytest.approx(2.0)}
    assert lull.now == pytest.approx(3.0)
    assert bool((played.session._loop.params[: HALVED.fragment_elements(0)] == 0.5).all())


def test_resumed_training_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, home: Path, data: Path) -> None:
    one = Played(home, data)
    one.start()
    work = one.work(steps=4)
    one.apply(one.arena.out.clone(), work["processed"], 1)
    one.work(steps=5, round_=1)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    one.call("save", folder=str(folder))
    copy = tmp_path / "copy"
    shutil.copytree(home, copy)
    expected = one.work(steps=12, round_=1)

    two = Played(copy, data)
    two.start(first_params(MODEL, 55), resume=folder)
    assert two.counters().base == (4 * TOKENS,), "left as it was"
    resumed = two.work(steps=12, round_=1)
    assert {k: v for k, v in resumed.items() if k != "seconds"} == {k: v for k, v in expected.items() if k != "seconds"}
    assert torch.equal(two.arena.out, one.arena.out)


def test_a_save_older_than_the_counter_gives_the_inner_optimizer_only(tmp_path: Path, home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    played.work(steps=3)
    played.call("save", folder=str(tmp_path))
    moments = played.session._loop.optimizer.exp_avg.clone()
    played.work(steps=5)
    again = Played(home, data)
    given = first_params(MODEL, 5)
    again.start(given, round_=2, resume=tmp_path)
    loop = again.session._loop
    assert torch.equal(loop.params, given)
    assert torch.equal(loop.optimizer.exp_avg, moments)
    assert (loop.optimizer.age, loop.round, loop.step_in_round) == (3, 2, 0)
    assert again.counters().base == (8 * TOKENS,)


def test_a_start_without_resume_drops_what_was_outstanding(home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    played.work(steps=3)
    again = Played(home, data)
    again.start()
    assert (again.counters().tokens, again.counters().base) == (3 * TOKENS, (3 * TOKENS,))
    assert again.session._loop.optimizer.age == 0


def test_a_folder_that_is_not_a_save_is_refused(tmp_path: Path, home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    good = tmp_path / "good"
    good.mkdir()
    played.call("save", folder=str(good))
    tensors, place = good / saved.TENSORS, good / saved.PLACE
    for path, content in (
        (tensors, b"torn"),
        (place, b"{}"),
        (place, place.read_bytes().replace(b'"format": 1', b'"format": 2')),
    ):
        before = path.read_bytes()
        path.write_bytes(content)
        with pytest.raises(StateError, match="good"):
            Played(home, data).start(resume=good)
        path.write_bytes(before)
    Played(home, data).start(resume=good)


def test_a_save_that_fails_is_told_and_training_goes_on(tmp_path: Path, home: Path, data: Path) -> None:
    played = Played(home, data)
    played.start()
    assert "failed" in played.call("save", folder=str(tmp_path / "missing"))
    assert played.work(steps=1)["steps"] == 1


def test_the_operators_scale_multiplies_the_learning_rate(tmp_path: Path, data: Path) -> None:
    played = Played(tmp_path, data)
    played.start()
    played.work(steps=1, lr_scale=1.0)
    before = played.session._loop.learning_rate
    played.session._loop.lr_scale = 1.0
    played.work(steps=1, lr_scale=0.5)
    played.session._loop.step_in_round -= 1
    scaled = played.session._loop.learning_rate
    played.session._loop.lr_scale = 1.0
    assert before > 0
    assert scaled == 0.5 * played.session._loop.learning_rate
