"""The child that evaluates a state: what it may answer, how long it may take, and what is good enough."""

from __future__ import annotations

import asyncio
import math
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from peer.node.operator.judge import EARLY_ROUNDS, NICE, WORSE_BY, NotJudged, StateJudge, why_refused

LATE = EARLY_ROUNDS + 1


def judged(program: str, limit_s: float = 60.0) -> float:
    return asyncio.run(StateJudge((sys.executable, "-c", program), limit_s).loss_of(Path("/folder")))


def test_the_last_line_tells_the_loss() -> None:
    assert judged("print('loading'); print('{\"loss\": 2.5, \"tokens\": 3}')") == 2.5
    assert math.isnan(judged("print('{\"loss\": null}')"))


def test_it_is_called_with_the_folder_at_the_lowest_priority() -> None:
    program = (
        "import os, sys, time\n"
        "assert sys.argv[1:] == ['/folder', '--json'], sys.argv\n"
        f"while os.getpriority(os.PRIO_PROCESS, 0) != {NICE}: time.sleep(0.01)\n"
        "print('{\"loss\": 1}')"
    )
    assert judged(program) == 1.0


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("import sys; sys.exit('error: the shard is damaged\\n  why: x')", "exit code 1: the shard is damaged"),
        ("print('no json')", "gave no loss"),
        ("pass", "gave no loss"),
    ],
)
def test_a_failure_is_no_verdict_and_has_a_reason(program: str, why: str) -> None:
    with pytest.raises(NotJudged, match=why):
        judged(program)


def test_one_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    started, children = asyncio.create_subprocess_exec, list[asyncio.subprocess.Process]()

    async def start(*command: Any, **how: Any) -> asyncio.subprocess.Process:
        children.append(await started(*command, **how))
        return children[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with pytest.raises(NotJudged, match="longer than 1 s"):
        judged("import time; time.sleep(600)", 1.0)
    (child,) = children
    assert child.returncode == -signal.SIGKILL


def test_what_is_good_enough() -> None:
    assert why_refused(9.0, None, LATE) == ""
    assert why_refused(9.0, 1.0, EARLY_ROUNDS) == ""
    assert why_refused(1.0 + WORSE_BY - 1e-9, 1.0, LATE) == ""
    assert "worse" in why_refused(1.0 + WORSE_BY + 1e-6, 1.0, LATE)
    for loss in (math.nan, math.inf):
        assert str(loss) in why_refused(loss, None, 0)
