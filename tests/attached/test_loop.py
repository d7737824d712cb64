"""A user's loop. The test plays the daemon on a thread, at the other end of the socket.

Each step adds one to every parameter, so that the params show the number of steps since a merge."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from peer.attached import daemon_link as attached
from peer.attached.loop import AttachedTrainer
from peer.errors import ModelError, NotRunning, PeerError, RunEnded, TrainerFailed, UsageError
from peer.protocol.model.layout import Layout
from peer.run.model_layout import tensors_of
from peer.run.sections import DataSection, LlamaSection
from peer.trainer.arena import Arena, CounterFile, read_counters
from peer.trainer.config import TrainerConfig
from peer.trainer.ipc import DaemonPipe, Message

SECTION = LlamaSection(
    hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
)
TENSORS = tensors_of(SECTION)
LAYOUT = Layout.whole(TENSORS)
CONFIG = TrainerConfig(model=SECTION, data=DataSection(kind="text"), sync_every=5, seed=0, peer_id="me")
TOKENS, STEPS, DEADLINE_S = 8, 5, 240.0
OPENING = {
    "config": CONFIG.model_dump(mode="json"),
    "tensors": [spec.name for spec in TENSORS],
    "shapes": [spec.shape for spec in TENSORS],
    "fragments": LAYOUT.fragments,
}


class PlayedDaemon:
    """Takes the place of a `DaemonChild`. A thread runs `script` with the daemon's end of the socket."""

    def __init__(self, folder: Path, script: Callable[[PlayedDaemon], None]) -> None:
        ours, theirs = socket.socketpair()
        ours.settimeout(DEADLINE_S)
        self.pipe = DaemonPipe(theirs, lambda code: self.pipe.inbox.put({"op": "ended"}))
        self.forked, self.pid, self.folder = False, 1, folder
        self.refused: Message = {}
        self.left = threading.Event()
        self._socket, self._file, self._last_id = ours, ours.makefile("rwb"), 0
        self._thread = threading.Thread(target=self._play, args=(script,), daemon=True)
        self._thread.start()

    def _play(self, script: Callable[[PlayedDaemon], None]) -> None:
        script(self)
        self._file.close()
        self._socket.close()

    def post(self, message: Message) -> None:
        self._file.write(json.dumps(message).encode() + b"\n")
        self._file.flush()

    def call(self, op: str, **fields: Any) -> Message:
        self._last_id += 1
        self.post({"id": self._last_id, "op": op, **fields})
        while True:
            answer = json.loads(self._file.readline())
            if answer.get("id") == self._last_id:
                return dict(answer["ok"])

    def open(self) -> None:
        self.post({**OPENING, "folder": str(self.folder)})

    def start(self, round_: int, covered: list[int] | None = None, resume: str | None = None) -> None:
        self.call("start", round=round_, resume=resume, covered=covered)

    def work(self, round_: int) -> Message:
        return self.call(**self.order(round_))

    def order(self, round_: int) -> Message:
        terms = {"until": None, "hold": True, "pause_after": None, "lr_scale": 1.0}
        return {"op": "work", "round": round_, "fragment": 0, "steps": STEPS, **terms}

    def apply(self, round_: int, base: int) -> None:
        terms = {"alpha": 0.0, "after_steps": None, "after": None, "shift": False}
        self.call("apply", fragment=0, base=base, next_round=round_ + 1, **terms)

    def drain(self) -> None:
        self.left.set()

    def end(self, wait_s: float) -> int:
        self._thread.join(wait_s)
        self.pipe.close()
        return -9

    def exit_error(self, code: int) -> PeerError:
        return NotRunning("the daemon was killed")


class Loop:
    """A user's loop. `scripts`: those of its daemons, which are started one after the other."""

    def __init__(self, folder: Path, *scripts: Callable[[PlayedDaemon], None]) -> None:
        CounterFile(folder, 1)
        self.arena = Arena(folder, LAYOUT, create=True)
        self.arena.inn.fill_(0.5)
        self.folder, self.rounds, self.faults = folder, list[int](), list[PeerError]()
        self.daemons = list[PlayedDaemon]()
        self.tensors = {spec.name: torch.zeros(spec.shape) for spec in TENSORS}
        rest = list(scripts)

        def start(round_: int) -> PlayedDaemon:
            self.rounds.append(round_)
            self.daemons.append(PlayedDaemon(folder, rest.pop(0)))
            return self.daemons[-1]

        self.phases = list[str]()
        self.trainer = AttachedTrainer(
            self.tensors,
            [],
            start,  # type: ignore[arg-type]
            confirm=lambda *_: None,
            on_fault=self.faults.append,
            on_phase=self.phases.append,
        )

    @property
    def flat(self) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in self.tensors.values()])

    def step(self) -> None:
        for tensor in self.tensors.values():
            tensor.add_(1.0)
        self.trainer.stepped(TOKENS)

    def until(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not done():
            assert time.monotonic() < deadline
            self.step()


def play_rounds(daemon: PlayedDaemon, loop: Loop, rounds: range, found: list[Message]) -> None:
    """Play rounds whose outer step halves the params."""
    for round_ in rounds:
        work = daemon.work(round_)
        same = torch.equal(loop.arena.out, loop.flat)  # the loop is held, so its params stand still
        loop.arena.inn.copy_(loop.arena.out / 2)
        daemon.apply(round_, work["processed"])
        found.append({**work, "exact": same, "merged": torch.equal(loop.flat, loop.arena.inn)})


def test_snapshots_and_merges_are_exact_and_the_run_ends_the_loop(tmp_path: Path) -> None:
    found = list[Message]()

    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        play_rounds(daemon, loop, range(3), found)
        daemon.post({"op": "over", "code": 0})

    loop = Loop(tmp_path, script)
    loop.trainer.join()
    assert torch.equal(loop.flat, torch.full_like(loop.flat, 0.5)), "the run's state takes the place of the values"
    loop.until(lambda: loop.trainer.over)
    assert [(one["steps"], one["tokens"], one["exact"], one["merged"]) for one in found] == 3 * [
        (STEPS, STEPS * TOKENS, True, True)
    ]
    assert found[0]["data_from"] == ""
    assert loop.faults == []
    loop.trainer.leave(1.0)


def test_a_lost_daemon_costs_neither_params_nor_accounts(tmp_path: Path) -> None:
    found = list[Message]()

    def first(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        play_rounds(daemon, loop, range(2), found)

    def second(daemon: PlayedDaemon) -> None:
        loop.arena.inn.fill_(-1.0)  # the daemon's own state, which must not replace the loop's live params
        daemon.open()
        daemon.start(2, covered=list(read_counters(tmp_path, 1).base))
        play_rounds(daemon, loop, range(2, 3), found)
        daemon.post({"op": "over", "code": 0})

    loop = Loop(tmp_path, first, second)
    loop.trainer.join()
    loop.until(lambda: len(found) == 2 and not loop.trainer.attached)
    loop.until(lambda: loop.trainer.over)
    assert loop.rounds == [-1, 2], "the second daemon is sent the round of the live params"
    assert [str(fault) for fault in loop.faults] == ["the daemon was killed"]
    last = found[2]
    assert last["exact"]
    assert last["merged"]
    assert last["steps"] >= STEPS
    assert last["tokens"] == last["processed"] - found[1]["processed"] == last["steps"] * TOKENS, "none was lost"
    merged = torch.full_like(loop.flat, 0.5)
    for one in found:  # an outer step halves what the inner steps have added
        merged = (merged + one["steps"]) / 2
    assert torch.equal(loop.arena.inn, merged), "the params went on where they were"
    loop.trainer.leave(1.0)


def test_work_that_the_journal_covers_is_not_counted_again(tmp_path: Path) -> None:
    """The daemon ended after its outer step and before the merge."""
    found = list[Message]()

    def first(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        found.append(daemon.work(0))

    def second(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(1, covered=[found[0]["processed"]])
        found.append(daemon.work(1))
        daemon.post({"op": "over", "code": 0})

    loop = Loop(tmp_path, first, second)
    loop.trainer.join()
    loop.until(lambda: loop.trainer.over)
    assert found[0]["tokens"] == found[0]["processed"] == STEPS * TOKENS
    assert found[1]["tokens"] == found[1]["processed"] - found[0]["processed"]
    loop.trainer.leave(1.0)


def test_an_error_of_the_daemon_is_raised_by_join_as_it_is(tmp_path: Path) -> None:
    def script(daemon: PlayedDaemon) -> None:
        daemon.post(
            {"op": "failed", "error": "RunEnded", "found": "the run is over", "fix": "Join another.", "why": "w"}
        )

    with pytest.raises(RunEnded, match="the run is over") as raised:
        Loop(tmp_path, script).trainer.join()
    assert raised.value.fix == "Join another."


def test_what_join_waits_for_is_shown_once_each(tmp_path: Path) -> None:
    def script(daemon: PlayedDaemon) -> None:
        status = {"op": "status", "peers": 0, "status": "joining"}
        for phase in ("getting the manifest", "getting the state", "getting the state"):
            daemon.post({**status, "phase": phase})
        daemon.open()
        daemon.start(0)
        play_rounds(daemon, loop, range(1), [])
        daemon.post({**status, "phase": "training"})
        daemon.post({"op": "over", "code": 0})

    loop = Loop(tmp_path, script)
    loop.trainer.join()
    loop.until(lambda: loop.trainer.over)
    assert loop.phases == ["getting the manifest", "getting the state"]
    assert loop.trainer.daemon_phase == "training"
    loop.trainer.leave(1.0)


def test_another_model_is_refused_on_both_sides(tmp_path: Path) -> None:
    refusal = list[Message]()

    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        refusal.append(json.loads(daemon._file.readline()))

    loop = Loop(tmp_path, script)
    loop.tensors["model.norm.weight"] = torch.zeros(9)
    with pytest.raises(ModelError, match=r"model.norm.weight is \[9\] in your model and \[8\] in the run"):
        loop.trainer.join()
    assert refusal[0]["refused"] == "ModelError"


def test_a_wait_for_other_ranks_is_no_silence_of_the_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault: the other ranks came to `join` minutes later, and the daemon was killed before its first message."""
    checked, end_if_silent, monotonic = threading.Event(), attached.DaemonLink.end_if_silent, time.monotonic

    def check(link: attached.DaemonLink) -> None:
        end_if_silent(link)
        checked.set()

    def script(daemon: PlayedDaemon) -> None:
        assert checked.wait(DEADLINE_S)
        daemon.open()
        daemon.start(0)
        play_rounds(daemon, loop, range(1), [])
        daemon.post({"op": "over", "code": 0})

    loop = Loop(tmp_path, script)
    monkeypatch.setattr(attached.DaemonLink, "end_if_silent", check)
    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 2 * attached.SILENT_S)
    loop.trainer.join()
    loop.until(lambda: loop.trainer.over)
    assert loop.faults == []
    loop.trainer.leave(1.0)


def test_daemons_that_keep_ending_are_given_up_and_the_loop_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached, "LONGEST_PAUSE_S", 0.0)

    def first(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        daemon.work(0)

    loop = Loop(tmp_path, first, *[lambda daemon: None] * attached.MAX_DEATHS)
    loop.trainer.join()
    loop.until(lambda: loop.trainer.error is not None)
    assert isinstance(loop.trainer.error, TrainerFailed)
    assert len(loop.faults) == attached.MAX_DEATHS + 1
    before = loop.flat
    loop.step()
    assert torch.equal(loop.flat, before + 1)


def test_the_runs_own_data_are_drawn_without_replacement_and_anew_after_a_restart(tmp_path: Path) -> None:
    config = CONFIG.model_copy(update={"data": DataSection(kind="stdlib")})
    drawn = list[list[tuple[Tensor, Tensor]]]()

    def script(daemon: PlayedDaemon) -> None:
        daemon.post({**OPENING, "config": config.model_dump(mode="json"), "folder": str(daemon.folder)})
        daemon.start(0)
        daemon.post({"id": 99, **daemon.order(0)})
        assert daemon.left.wait(DEADLINE_S)

    for _ in range(2):
        loop = Loop(tmp_path, script)
        loop.trainer.join()
        drawn.append(list(islice(loop.trainer.batches(), 3)))
        loop.step()
        loop.trainer.leave(0.1)
    for inputs, targets in chain.from_iterable(drawn):
        assert inputs.shape == targets.shape == (config.train.batch, config.train.context)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
    windows = {bytes(window.to(torch.uint8)) for batches in drawn for inputs, _ in batches for window in inputs}
    assert len(windows) == 2 * 3 * config.train.batch, "no window comes twice"


def test_data_of_texts_that_are_not_here_cannot_be_drawn(tmp_path: Path) -> None:
    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        daemon.post({"id": 99, **daemon.order(0)})
        assert daemon.left.wait(DEADLINE_S)

    loop = Loop(tmp_path, script)
    loop.trainer.join()
    with pytest.raises(UsageError, match="none of the run's data"):
        next(loop.trainer.batches())
    loop.trainer.leave(0.1)


def test_a_step_on_another_thread_is_refused(tmp_path: Path) -> None:
    raised = list[str]()

    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        daemon.post({"id": 99, **daemon.order(0)})
        assert daemon.left.wait(DEADLINE_S)

    def elsewhere() -> None:
        try:
            loop.trainer.stepped(TOKENS)
        except UsageError as error:
            raised.append(error.found)

    loop = Loop(tmp_path, script)
    loop.trainer.join()
    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(DEADLINE_S)
    assert raised == ["optimizer.step() was called on another thread than join()"]
    loop.trainer.leave(1.0)


FORKED = """
import os, socket, sys, time
from peer.trainer.ipc import DaemonPipe
pipe = DaemonPipe(socket.socket(fileno=int(sys.argv[1])), lambda code: None)
if os.fork() == 0:
    pipe.close_in_child()
    time.sleep(60)
    os._exit(0)
os._exit(0)
"""


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_keep_the_socket_open() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        subprocess.run([sys.executable, "-c", FORKED, str(theirs.fileno())], pass_fds=[theirs.fileno()], check=True)
        theirs.close()
        ours.settimeout(30.0)
        assert ours.recv(1) == b""
