"""How a daemon shows its work to a person: plain lines, a live view (`peer.observe.terminal`), or messages to an
attached program."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol

from peer.aio.tasks import background_task
from peer.errors import TrainerDied
from peer.observe.log_file import log_line
from peer.observe.progress import wait_line, worth_showing
from peer.observe.question import ANSWER_S, ask_terminal
from peer.observe.status.text import status_line
from peer.observe.status.value import DaemonStatus

if TYPE_CHECKING:
    from peer.trainer.subprocess import TrainerSubprocess

STATUS_LINE_EVERY_S = 10.0
WAIT_LINE_EVERY_S = 4.0
LOOK_EVERY_S = 0.5
STATUS_EVERY_S = 1.0
"""Seconds between two reports to the program of an attached loop."""
LOG_LOOK_EVERY_S = 2.0

Report = Callable[[], DaemonStatus]


class Display(Protocol):
    """Shows lines, the status and questions to the user."""

    def say(self, line: str, /) -> None:
        """Show a line. Never waits."""

    async def run(self, report: Report, /) -> None:
        """Show the status until cancelled."""

    async def ask(self, question: str, /) -> bool | None:
        """Ask the user a yes-or-no question. None: no user is there."""

    def close(self) -> None:
        """Restore the terminal. May be called repeatedly and at any time."""


@contextlib.asynccontextmanager
async def showing(display: Display, report: Report) -> AsyncIterator[None]:
    """Run the display within the context, and restore the terminal afterwards."""
    task = asyncio.create_task(display.run(report), name="display")
    task.add_done_callback(_tell_defect)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        display.close()


def _tell_defect(task: asyncio.Task[None]) -> None:
    """Report a failed display as a defect. It does not stop training."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the display failed", "exception": error})


class LoggedDisplay:
    """Wraps a display and also writes to the log all lines that a plain terminal would show."""

    def __init__(self, shown: Display) -> None:
        self._shown = shown
        self._lines = PlainLines(log_line, LOG_LOOK_EVERY_S)

    def say(self, line: str, /) -> None:
        log_line(line)
        self._shown.say(line)

    async def run(self, report: Report, /) -> None:
        async with background_task(self._lines.run(report)):
            await self._shown.run(report)

    async def ask(self, question: str, /) -> bool | None:
        return await self._shown.ask(question)

    def close(self) -> None:
        self._shown.close()


class AttachedLines:
    """Sends lines, status and questions to the program with the user's own training loop, which started this daemon."""

    def __init__(self, program: TrainerSubprocess) -> None:
        self._program = program

    def say(self, line: str, /) -> None:
        self._program.post("say", line=line)

    async def run(self, report: Report, /) -> None:
        while True:
            status = report()
            waiting = "" if status.wait is None else wait_line(status.wait)
            peers = 0 if status.peers is None else len(status.peers)
            self._program.post("status", status=status.status, phase=waiting or status.phase, peers=peers)
            await asyncio.sleep(STATUS_EVERY_S)

    async def ask(self, question: str, /) -> bool | None:
        """Ask through the program. No answer for `ANSWER_S` seconds counts as no. None: the program has ended, or no
        user is there."""
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = (await self._program.call("ask", question=question))["answer"]
        except TimeoutError:
            return False
        except TrainerDied:
            return None
        return None if answer is None else bool(answer)

    def close(self) -> None:
        pass


class PlainLines:
    """Shows the status as single lines, for logs and simple terminals: every 10 s, and every 4 s while something is
    awaited."""

    def __init__(self, say: Callable[[str], None], look_every_s: float = LOOK_EVERY_S) -> None:
        self._say = say
        self._look_every_s = look_every_s
        self._said_at: float | None = None
        self._trains = False
        """Whether the last line showed the status, not a wait."""

    def say(self, line: str, /) -> None:
        self._say(line)

    async def run(self, report: Report, /) -> None:
        now = asyncio.get_running_loop().time
        while True:
            if line := self.due(report(), now()):
                self._say(line)
            await asyncio.sleep(self.pause_s(now()))

    def pause_s(self, now: float) -> float:
        """Return the seconds until a line may be due. No status is made before that, because making one takes
        milliseconds."""
        if self._said_at is None:
            return self._look_every_s
        look_s = LOG_LOOK_EVERY_S if self._trains else self._look_every_s
        return max(look_s, self._said_at + min(WAIT_LINE_EVERY_S, STATUS_LINE_EVERY_S) - now)

    def due(self, status: DaemonStatus, now: float) -> str:
        """Return the line that is due at `now` (seconds of the event loop). Empty: none."""
        wait, trains = status.wait if worth_showing(status.wait) else None, status.progress is not None
        every = STATUS_LINE_EVERY_S if wait is None else WAIT_LINE_EVERY_S
        if not (wait or trains) or (self._said_at is not None and now - self._said_at < every):
            return ""
        self._said_at, self._trains = now, wait is None
        return status_line(status) if wait is None else wait_line(wait)

    async def ask(self, question: str, /) -> bool | None:
        return await ask_terminal(question, self._say)

    def close(self) -> None:
        pass
