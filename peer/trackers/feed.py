"""The daemon's side of a tracker: `--log KIND[:PLACE]`.

After every round and evaluation, and at least every `EVERY_S` seconds, the daemon sends its metrics to the tracker's
child process. It never waits for the child: while the pipe is full, records are dropped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from peer.aio.tasks import background_task
from peer.errors import UsageError
from peer.installation import install_command, missing_from
from peer.node.page import PageSource
from peer.observe.events import Evaluated, Event, RoundEnded
from peer.observe.status.value import DaemonStatus
from peer.ports.console import Say
from peer.python_child import start_python

EVERY_S = 10.0
MOST_PENDING = 2**20
"""Most bytes that wait in the pipe to a tracker. Further records are dropped."""
CLOSE_S = 10.0
"""Seconds that a tracker gets to end after the daemon has left, before it is killed."""
TAIL_BYTES = 2048

PLACES = {"csv": "metrics.csv", "tensorboard": "tensorboard", "trackio": "peer", "wandb": "peer"}
"""Kind of tracker -> its default place: a file or folder in the home, or a project's name."""
IN_HOME = ("csv", "tensorboard")


@dataclass(frozen=True, slots=True)
class Tracker:
    """One tracker of a daemon. Implements `peer.node.page.DaemonPage`."""

    kind: str
    place: str
    """Empty: the default place."""

    @classmethod
    def parse(cls, text: str) -> Tracker:
        """Parse `KIND[:PLACE]`. Raises UsageError for an unknown kind, and if the tracker's library is not
        installed."""
        kind, _, place = text.partition(":")
        if kind not in PLACES:
            raise UsageError(f"--log does not know {kind!r}", f"Choose one of: {', '.join(PLACES)}.")
        if kind != "csv" and (missing := missing_from(kind)):
            raise UsageError(f"{kind} is not installed", f"Install it: {install_command(missing)}")
        if kind in IN_HOME and place:
            place = str(Path(place).expanduser().absolute())
        return cls(kind, place)

    def shared(self, *names: str) -> Tracker:
        """Return the tracker for one of several swarms or daemons that share the place of this tracker, which is then a
        folder. `names`: its path below that folder. Without a place, the folder is named after the kind, in the working
        directory. Projects are shared as they are."""
        if self.kind not in IN_HOME:
            return self
        return Tracker(self.kind, str(Path(self.place or self.kind).absolute().joinpath(*names)))

    def option(self, name: str = "") -> str:
        """Return the value of `--log` for this tracker. `name`: of one daemon among several that share the place."""
        one = self.shared(f"{name}.csv" if self.kind == "csv" else name) if name else self
        return f"{one.kind}:{one.place}" if one.place else one.kind

    @contextlib.asynccontextmanager
    async def opened(self, source: PageSource, say: Say) -> AsyncIterator[str]:
        """Run the tracker's child process and send it records while the context is open. Yields the tracker's place. If
        the child cannot be started, only a line is logged."""
        assert source.metrics is not None
        place = self.place or PLACES[self.kind]
        if self.kind in IN_HOME:
            place = str(source.home / place)
        output = source.home / f"tracker-{self.kind}.log"
        try:
            with output.open("wb") as file:
                child = await start_python(
                    "peer.trackers.sinks",
                    self.kind,
                    place,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    start_new_session=True,
                    cwd=source.home,  # some libraries read settings from the working directory
                    env={**os.environ, "WANDB_SILENT": "true"},
                )
        except OSError as error:
            say(f"the tracker {self.kind} could not be started: {error}. The run goes on without it")
            yield place
            return
        say(f"logging to {self.kind}: {place}")
        feed = _Feed(self.kind, child, source, output, say)
        try:
            async with background_task(source.metrics.lag.run()), background_task(feed.run()):
                yield place
        finally:
            await feed.close()


class _Feed:
    """Sends records to one tracker's child process."""

    def __init__(
        self, kind: str, child: asyncio.subprocess.Process, source: PageSource, output: Path, say: Say
    ) -> None:
        self._kind = kind
        self._child = child
        self._source = source
        self._output = output
        self._say = say
        self._due = asyncio.Event()
        self._left_out = 0
        source.listen(self._on_event)

    def _on_event(self, event: Event, t: float) -> None:
        if isinstance(event, RoundEnded | Evaluated):
            self._due.set()

    async def run(self) -> None:
        """Send records until the tracker's process ends. Cancelled by the owner."""
        while self._child.returncode is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    await self._due.wait()
            self._due.clear()
            self._send_record()
        self._say(f"the tracker {self._kind} ended: {self._last_line()}. The run goes on without it")

    def _send_record(self) -> None:
        """Send the present status and metrics. Drops the record if too many bytes are waiting."""
        status, stdin = self._source.report(), self._child.stdin
        assert stdin is not None
        assert self._source.metrics is not None
        if not status.run or self._child.returncode is not None or stdin.is_closing():
            return
        if stdin.transport.get_write_buffer_size() > MOST_PENDING:
            self._left_out += 1
            if self._left_out == 1:
                self._say(f"the tracker {self._kind} does not keep up: curves will have gaps")
            return
        record = {
            "at": time.time(),
            "run": status.run,
            "peer": status.peer_id,
            "step": _step_of(status),
            "logged": _logged(status),
            "metrics": self._source.metrics.text().decode(),
        }
        stdin.write(json.dumps(record).encode() + b"\n")

    async def close(self) -> None:
        """Send the last values, and give the tracker `CLOSE_S` to end. It is killed after that."""
        stdin = self._child.stdin
        assert stdin is not None
        self._send_record()
        stdin.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._child.wait()
        except TimeoutError:
            self._say(f"the tracker {self._kind} did not end within {CLOSE_S:.0f} s, and is killed")
            with contextlib.suppress(ProcessLookupError):
                self._child.kill()
            await self._child.wait()

    def _last_line(self) -> str:
        try:
            with self._output.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
                lines = file.read().decode(errors="replace").strip().splitlines()
        except OSError as error:
            return str(error)
        return lines[-1].strip() if lines else "it printed nothing"


def _step_of(status: DaemonStatus) -> int:
    """Return the position on the horizontal axis: a peer's tokens, or the round on an operator's node."""
    if status.training is not None:
        return status.training.tokens
    return 0 if status.view is None else status.view.round


def _logged(status: DaemonStatus) -> dict[str, float]:
    """Return the values that the user's own training loop logged, under names that no metric has."""
    logged = None if status.training is None else status.training.logged
    return {f"loop/{name}": value for name, value in (logged or {}).items()}
