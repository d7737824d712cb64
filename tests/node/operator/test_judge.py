"""The child process that evaluates a state: invalid answers, timeouts, and failures to start."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.errors import JudgeFailed, SourceError
from peer.node.operator import judge
from peer.node.operator.judge import NICE, PROGRAM, STARTED, NotJudged, StateJudge
from tests.support.child_module import child_module

COMES_UP = "import json; print(json.dumps({'started': True}), flush=True)\n"

Judging = Callable[..., StateJudge]


@pytest.fixture
def judging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judging:
    """Return a function that creates a judge whose child runs a given program."""

    def make(program: str, limit_s: float = 60.0) -> StateJudge:
        return StateJudge((child_module(tmp_path, monkeypatch, program),), limit_s, again_s=0.0)

    return make


def loss_by(made: StateJudge) -> float:
    return asyncio.run(made.loss_of(Path("/folder")))


@pytest.mark.processes
def test_the_last_line_tells_the_loss(judging: Judging) -> None:
    assert loss_by(judging(f"print('loading')\n{COMES_UP}print('{{\"loss\": 2.5, \"tokens\": 3}}')")) == 2.5
    assert math.isnan(loss_by(judging(COMES_UP + "print('{\"loss\": null}')")))


@pytest.mark.processes
def test_it_is_called_with_the_folder_at_the_lowest_priority(judging: Judging) -> None:
    program = (
        "import os, sys, time\n"
        "assert sys.argv[1:] == ['/folder'], sys.argv\n"
        f"while os.getpriority(os.PRIO_PROCESS, 0) != {NICE}: time.sleep(0.01)\n"
        "print('{\"loss\": 1}')"
    )
    assert loss_by(judging(COMES_UP + program)) == 1.0


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit('error: the shard is damaged\\n  why: x')", "exit code 1: the shard is damaged"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("print('no json')", "gave no loss"),
        ("pass", "gave no loss"),
    ],
)
def test_a_failure_is_no_verdict_and_has_a_reason(judging: Judging, program: str, why: str) -> None:
    with pytest.raises(NotJudged, match=why):
        loss_by(judging(COMES_UP + program))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import a_package_that_is_not_here", "ModuleNotFoundError: No module named 'a_package_that_is_not_here'"),
        ("import sys; sys.exit('error: there is no GPU here\\n  why: x')", "start: there is no GPU here"),
        ("import os; os.kill(os.getpid(), 9)", "killed by signal 9"),
        ("print('{\"loss\": 1}')", "printed no error"),
    ],
)
def test_a_child_that_does_not_come_up_is_an_error(judging: Judging, program: str, why: str) -> None:
    """Fault: if a failed start counted as a state that cannot be judged, all later states would be stored unchecked."""
    for first in (StateJudge.ensure_starts, lambda made: made.loss_of(Path("/folder"))):
        with pytest.raises(JudgeFailed, match=why):
            asyncio.run(first(judging(program)))


def test_a_program_that_cannot_be_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async def no_process(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(judge, "start_python", no_process)
    with pytest.raises(JudgeFailed, match="Cannot allocate memory"):
        asyncio.run(StateJudge().ensure_starts())


@pytest.mark.processes
def test_one_that_came_up_once_is_tried_again(judging: Judging, tmp_path: Path) -> None:
    """After a first successful start, a failed one may be a momentary lack of memory."""
    marks = tmp_path / "marks"
    marks.mkdir()
    program = (
        "import os, sys\n"
        f"begun = len(os.listdir({str(marks)!r}))\n"
        f"open({str(marks)!r} + f'/{{begun}}', 'w')\n"
        "if begun in (1, 2) or begun > 3: sys.exit('no memory')\n" + COMES_UP + "print('{\"loss\": 1}')"
    )
    made = judging(program)
    asyncio.run(made.ensure_starts())
    assert loss_by(made) == 1.0
    with pytest.raises(JudgeFailed, match="no memory"):
        loss_by(made)
    assert len(list(marks.iterdir())) == 7


@pytest.mark.processes
def test_the_operators_options_and_folder_are_not_its_own(
    judging: Judging, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node's PEER_DATA would make the child evaluate on other data, and a file in the working folder would be
    imported."""
    (tmp_path / "random.py").write_text("raise SystemExit('code from the working folder ran')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PEER_DATA", "/texts")
    monkeypatch.setenv("PEER_DEVICE", "cpu")
    program = (
        "import os, random\n"
        "assert 'PEER_DATA' not in os.environ\n"
        "assert os.environ['PEER_CONFIG'] == os.devnull\n"
        "assert os.environ['PEER_DEVICE'] == 'cpu'\n" + COMES_UP + "print('{\"loss\": 1}')"
    )
    assert loss_by(judging(program)) == 1.0


def test_the_real_program_reports_its_start_before_it_opens_a_state() -> None:
    module, *arguments = PROGRAM
    assert module == "peer"
    ended = CliRunner().invoke(peer, [*arguments, os.devnull])
    assert isinstance(ended.exception, SourceError)
    assert [json.loads(line) for line in ended.stdout.splitlines()] == [STARTED]


@pytest.mark.processes
def test_one_that_takes_too_long_is_ended(judging: Judging, monkeypatch: pytest.MonkeyPatch) -> None:
    started, children = judge.start_python, list[asyncio.subprocess.Process]()

    async def start(*command: Any, **how: Any) -> asyncio.subprocess.Process:
        children.append(await started(*command, **how))
        return children[-1]

    monkeypatch.setattr(judge, "start_python", start)
    with pytest.raises(NotJudged, match="longer than 1 s"):
        loss_by(judging("import time; time.sleep(600)", 1.0))
    (child,) = children
    assert child.returncode == -signal.SIGKILL
