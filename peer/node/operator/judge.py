"""Whether a state is good enough to be kept: a child process evaluates it, at the lowest priority.

The daemon itself never evaluates. One child runs at a time, because the keeper of states awaits it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path

NICE = 19
JUDGE_S = 1800.0
"""Seconds that an evaluation may take. At the lowest priority a busy machine hardly serves it."""
MOST_ANSWER_BYTES = 2**16
WORSE_BY = 0.2
"""Nats a token that a new state may be worse than the kept one. From one state to the next the loss moves by hundredths
once a run is under way; 0.2 is a perplexity 22 % worse, which only a diverged or a spoilt state has."""
EARLY_ROUNDS = 10
"""Up to this round nothing is compared: a warming-up learning rate may raise the loss for a while."""
PROGRAM = (sys.executable, "-m", "peer", "eval")


class NotJudged(Exception):
    """The evaluation itself failed: the state is neither good nor bad."""


class StateJudge:
    """Evaluates states in a child process. `program` is called with the folder and `--json`."""

    def __init__(self, program: Sequence[str] = PROGRAM, limit_s: float = JUDGE_S) -> None:
        self._program = tuple(program)
        self._limit_s = limit_s

    async def loss_of(self, state: Path) -> float:
        """Return the loss of a checkpoint's folder, which may not be finite. Raises NotJudged."""
        try:
            child = await asyncio.create_subprocess_exec(
                *(*self._program, str(state), "--json"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MOST_ANSWER_BYTES,
                start_new_session=True,
            )
        except OSError as error:
            raise NotJudged(f"the evaluation did not start: {error.strerror}") from error
        try:
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, child.pid, NICE)
            async with asyncio.timeout(self._limit_s):
                answer, complaint = await child.communicate()
        except TimeoutError:
            raise NotJudged(f"the evaluation took longer than {self._limit_s:.0f} s") from None
        finally:
            await _end(child)
        if child.returncode:
            raise NotJudged(f"the evaluation ended with exit code {child.returncode}: {_first_line(complaint)}")
        return _loss_in(answer)


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill the child, if it still runs. The child in which it opens foreign files ends within seconds by itself."""
    if child.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()


def _first_line(complaint: bytes) -> str:
    lines = complaint[:MOST_ANSWER_BYTES].decode(errors="replace").strip().splitlines()
    told = next((line for line in lines if line.startswith("error:")), lines[-1] if lines else "it said nothing")
    return told.removeprefix("error: ")[:300]


def _loss_in(answer: bytes) -> float:
    """Read the last line. Raises NotJudged."""
    lines = answer.decode(errors="replace").strip().splitlines()
    try:
        loss = json.loads(lines[-1])["loss"]
        return math.nan if loss is None else float(loss)
    except (IndexError, ValueError, TypeError, KeyError) as error:
        raise NotJudged("the evaluation gave no loss") from error


def why_refused(loss: float, kept: float | None, kept_round: int) -> str:
    """Return why a state of this loss is not kept, for a person; empty: it is.

    `kept` is the loss of the state kept so far, None if that is not known, and `kept_round` its round."""
    if not math.isfinite(loss):
        return f"its loss is {loss}"
    if kept is None or kept_round <= EARLY_ROUNDS or loss <= kept + WORSE_BY:
        return ""
    worse = f"{loss - kept:.4f} worse than that of the kept state; at most {WORSE_BY} is taken"
    return f"its loss is {loss:.4f} nats a token, {worse}"
