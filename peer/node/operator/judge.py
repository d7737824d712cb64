"""Whether a state is good enough to be kept: a child process evaluates it, at the lowest priority.

The daemon itself never evaluates. One child runs at a time, because the keeper of states awaits it.

The child reports that it has loaded its libraries, before it opens the state. A state that breaks it afterwards is not
judged. A child that does not come so far says nothing about any state: no state would ever be checked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer.errors import JudgeFailed
from peer.python_child import start_python, without_options

NICE = 19
JUDGE_S = 1800.0
"""Seconds that an evaluation may take. At the lowest priority a busy machine hardly serves it."""
MOST_ANSWER_BYTES = 2**16
PROGRAM = ("peer", "eval", "--report-start", "--json")
"""Module and arguments of the child. The folder follows them."""
STARTED = {"started": True}
"""The line that the child prints before it opens the state."""
START_TRIES, START_AGAIN_S = 3, 60.0
"""How often a child is started that does not come up although an earlier one did, and the seconds in between. The
machine may be short of memory for a moment."""


class NotJudged(Exception):
    """The evaluation itself failed: the state is neither good nor bad."""


class StateJudge:
    """Evaluates states in a child process. `program`: a module and its arguments, which the folder follows."""

    def __init__(
        self, program: Sequence[str] = PROGRAM, limit_s: float = JUDGE_S, again_s: float = START_AGAIN_S
    ) -> None:
        self._program = tuple(program)
        self._limit_s = limit_s
        self._again_s = again_s
        self._has_started = False

    async def ensure_starts(self) -> None:
        """Start a child that has no state to evaluate. Raises JudgeFailed when it does not come up."""
        with contextlib.suppress(NotJudged):  # there is no state
            await self.loss_of(Path(os.devnull))

    async def loss_of(self, state: Path) -> float:
        """Return the loss of a checkpoint's folder, which may not be finite.

        Raises NotJudged, or JudgeFailed when the child does not come up: at once, or at the third try if another child
        of this process did."""
        for tries_left in reversed(range(START_TRIES if self._has_started else 1)):
            code, answer, complaint = await self._run(state)
            if STARTED in map(_parsed, answer):
                self._has_started = True
                break
            if not tries_left:
                raise JudgeFailed(f"the process that evaluates states does not start: {_reason(code, complaint)}")
            await asyncio.sleep(self._again_s)
        if code:
            raise NotJudged(f"the evaluation ended with exit code {code}: {_reason(code, complaint)}")
        return _loss_in(answer)

    async def _run(self, state: Path) -> tuple[int, list[str], str]:
        """Run a child to its end. Return its exit code and the lines of its output, and what it wrote to stderr.

        Raises NotJudged when it takes too long."""
        try:
            child = await start_python(
                *(*self._program, str(state)),
                env=without_options("PEER_DEVICE"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MOST_ANSWER_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            return 1, [], str(error)
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
            async with asyncio.timeout(self._limit_s):
                answer, complaint = await child.communicate()
        except TimeoutError:
            raise NotJudged(f"the evaluation took longer than {self._limit_s:.0f} s") from None
        finally:
            await _end(child)
        assert child.returncode is not None
        lines = answer.decode(errors="replace").strip().splitlines()
        return child.returncode, lines, complaint[:MOST_ANSWER_BYTES].decode(errors="replace")


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill the child, if it still runs. The child in which it opens foreign files ends within seconds by itself."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _reason(code: int, complaint: str) -> str:
    """Return the line of a child's stderr that names its error."""
    lines = complaint.strip().splitlines()
    if not lines:
        return f"it was killed by signal {-code} (out of memory?)" if code < 0 else "it printed no error"
    return next((line for line in lines if line.startswith("error:")), lines[-1]).removeprefix("error: ")[:300]


def _loss_in(answer: list[str]) -> float:
    """Return the loss that the last line holds. Raises NotJudged."""
    try:
        loss = _parsed(answer[-1])["loss"]
        return math.nan if loss is None else float(loss)
    except (ValueError, TypeError, KeyError) as error:
        raise NotJudged("the evaluation gave no loss") from error


def _parsed(line: str) -> Any:
    """Return the value of a line of JSON. None: it is none, as libraries may print lines of their own."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
