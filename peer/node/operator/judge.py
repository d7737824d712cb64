"""Evaluates states before they are kept, in a child process at the lowest priority, because the daemon itself never
evaluates. One child runs at a time.

The child reports when it has loaded its libraries, before it opens the state. If it fails after that, the state is not
judged. If it fails before, the machine is at fault, and no state could ever be checked."""

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
"""Time limit of an evaluation in seconds. At the lowest priority a busy machine hardly runs the child."""
MOST_ANSWER_BYTES = 2**16
PROGRAM = ("peer", "eval", "--report-start", "--json")
"""Module and arguments of the child. The state's folder is appended."""
STARTED = {"started": True}
"""The line that the child prints before it opens the state."""
START_TRIES, START_AGAIN_S = 3, 60.0
"""Attempts to start a child, and seconds between two attempts, if an earlier child of this process did start: the
machine may be short of memory for a moment."""


class NotJudged(Exception):
    """The evaluation itself failed, so that the state is neither good nor bad."""


class StateJudge:
    """Evaluates states in a child process. `program`: module and arguments, to which the state's folder is appended."""

    def __init__(
        self, program: Sequence[str] = PROGRAM, limit_s: float = JUDGE_S, again_s: float = START_AGAIN_S
    ) -> None:
        self._program = tuple(program)
        self._limit_s = limit_s
        self._again_s = again_s
        self._has_started = False

    async def ensure_starts(self) -> None:
        """Start a child without a state to evaluate. Raises JudgeFailed when it does not start."""
        with contextlib.suppress(NotJudged):  # expected, since there is no state
            await self.loss_of(Path(os.devnull))

    async def loss_of(self, state: Path) -> float:
        """Return the loss of a checkpoint folder in nats per token, which may be NaN or infinite.

        Raises NotJudged, or JudgeFailed when the child does not start: at the first attempt, or at the third if an
        earlier child of this process started."""
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
        """Run a child to its end. Return its exit code, the lines of its output, and its stderr.

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
    """Kill the child if it still runs. Its own child, which opens foreign files, ends by itself within seconds."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _reason(code: int, complaint: str) -> str:
    """Return the line of a child's stderr that names the error."""
    lines = complaint.strip().splitlines()
    if not lines:
        return f"it was killed by signal {-code} (out of memory?)" if code < 0 else "it printed no error"
    return next((line for line in lines if line.startswith("error:")), lines[-1]).removeprefix("error: ")[:300]


def _loss_in(answer: list[str]) -> float:
    """Return the loss in the last line of the output. Raises NotJudged."""
    try:
        loss = _parsed(answer[-1])["loss"]
        return math.nan if loss is None else float(loss)
    except (ValueError, TypeError, KeyError) as error:
        raise NotJudged("the evaluation gave no loss") from error


def _parsed(line: str) -> Any:
    """Parse a line of JSON. None: it is no JSON, since libraries may print lines of their own."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
