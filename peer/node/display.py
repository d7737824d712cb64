"""Where a person sees what the daemon does: plain lines, or (`peer.observe.terminal`) a live view."""

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
"""Between two reports to the program of an attached loop."""
LOG_LOOK_EVERY_S = 2.0

Report = Callable[[], DaemonStatus]


class Display(Protocol):
    def say(self, line: str, /) -> None:
        """Something a person should know; never waits."""

    async def run(self, report: Report, /) -> None:
        """Show the status until cancelled."""

    async def ask(self, question: str, /) -> bool | None:
        """Ask the person; None when nobody sits there."""

    def close(self) -> None:
        """Leave the terminal as it was. May be called again, and at any moment."""


@contextlib.asynccontextmanager
async def showing(display: Display, report: Report) -> AsyncIterator[None]:
    """The display runs within the context, and the terminal is given back after it."""
    task = asyncio.create_task(display.run(report), name="display")
    task.add_done_callback(_tell_defect)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})
        display.close()


def _tell_defect(task: asyncio.Task[None]) -> None:
    """A view that fails is a defect, and no reason to stop training."""
    if not task.cancelled() and (error := task.exception()) is not None:
        task.get_loop().call_exception_handler({"message": "the display failed", "exception": error})


class LoggedDisplay:
    """Another display, and the log: the log gets all lines that a plain terminal would show."""

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
    """Sends lines, status and questions to the program of a user's own training loop, which started this daemon."""

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
        """Ask through the program. Silence for `ANSWER_S` means no, and a program that is gone means nobody."""
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
    """For logs and simple terminals: a line of status now and then, and while it waits one about that."""

    def __init__(self, say: Callable[[str], None], look_every_s: float = LOOK_EVERY_S) -> None:
        self._say = say
        self._look_every_s = look_every_s
        self._said_at: float | None = None
        self._trains = False
        """Whether the last line was one of status."""

    def say(self, line: str, /) -> None:
        self._say(line)

    async def run(self, report: Report, /) -> None:
        now = asyncio.get_running_loop().time
        while True:
            if line := self.due(report(), now()):
                self._say(line)
            await asyncio.sleep(self.pause_s(now()))

    def pause_s(self, now: float) -> float:
        """Return the seconds until a line may be due. Before that no report is made, as that takes milliseconds."""
        if self._said_at is None:
            return self._look_every_s
        look_s = LOG_LOOK_EVERY_S if self._trains else self._look_every_s
        return max(look_s, self._said_at + min(WAIT_LINE_EVERY_S, STATUS_LINE_EVERY_S) - now)

    def due(self, status: DaemonStatus, now: float) -> str:
        """The line to say at this moment (`now` in seconds); empty: none yet."""
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
