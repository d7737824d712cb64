"""The link between a user's training loop and its daemon: starts the daemon, notices its end, and starts it again.

On failure: an error that a person has to fix is passed to `on_fault` once, and no further daemon is started. A daemon
that ended for another reason is started again, at once the first time, then after pauses that double."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable

from peer.attached.daemon import DaemonChild
from peer.errors import PeerError, TrainerFailed
from peer.trainer.ipc import Message

log = logging.getLogger("peer")

SILENT_S = 180.0
"""A daemon that sends nothing for this many seconds counts as hung. Once loaded, it sends its status every second."""
LONGEST_PAUSE_S = 60.0
"""Longest pause before a daemon is started again."""
MAX_DEATHS = 5
"""Most daemons in a row that may end before they order training. After one more, no further daemon is started."""
CLOSED_S = 5.0
"""Seconds in which a daemon has to end after its socket was closed. Then it is killed."""


class LinkState(enum.Enum):
    """State of the loop's daemon."""

    DOWN = enum.auto()
    """There is no daemon process."""
    STARTING = enum.auto()
    """The daemon process runs, but has not started this loop yet."""
    REATTACHED = enum.auto()
    """Another daemon has started this loop, which kept its live params. The loop may train on until the daemon orders
    work."""
    ATTACHED = enum.auto()
    """The daemon has started this loop, and decides when it trains."""


class DaemonLink:
    """The daemon of one loop, of which there is at most one at a time."""

    def __init__(self, start_daemon: Callable[[int], DaemonChild], on_fault: Callable[[PeerError], None]) -> None:
        """`start_daemon`: starts a process, given the round of the live params (-1: they are not of the run yet)."""
        self._start_daemon = start_daemon
        self._on_fault = on_fault
        self.child: DaemonChild | None = None
        self.state = LinkState.DOWN
        self.error: PeerError | None = None
        """Why no further daemon is started. None: one runs, or will be started."""
        self._refusal: PeerError | None = None
        """The error that the present daemon has sent. It is about to end."""
        self._deaths = 0
        """Daemons that ended since the last one that ordered work."""
        self._next_start = 0.0
        """Earliest start of the next daemon, by `time.monotonic`."""
        self._last_message_at = time.monotonic()

    @property
    def attached(self) -> bool:
        """Whether the daemon has started this loop, so that its orders are executed."""
        return self.state in (LinkState.REATTACHED, LinkState.ATTACHED)

    @property
    def pid(self) -> int | None:
        """Process id of the daemon. None: there is no process."""
        return None if self.child is None else self.child.pid

    # -- start -------------------------------------------------------------------------------------------------------

    def start(self, round_: int) -> None:
        """Start a daemon. Raises the PeerError that prevents it."""
        self.child, self.state = self._start_daemon(round_), LinkState.STARTING
        self.note_message()  # silence counts from here, because other ranks may have called `join` minutes later

    def restart(self, round_: int) -> None:
        """Start another daemon, if one is to be started and the pause before it is over. Never waits or raises."""
        if self.error is not None or time.monotonic() < self._next_start:
            return
        try:
            self.start(round_)
        except PeerError as error:
            self._stop_restarting(error)

    def attach(self, *, live: bool) -> None:
        """Note that the daemon has started this loop. `live`: the loop kept its params, and may train on meanwhile."""
        self.state = LinkState.REATTACHED if live else LinkState.ATTACHED

    # -- messages ----------------------------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a message to the daemon, if there is one."""
        if self.child is not None:
            self.child.pipe.send(message)

    def note_message(self) -> None:
        """Note that the daemon is alive."""
        self._last_message_at = time.monotonic()

    def note_order(self) -> None:
        """Note that the daemon has ordered work: ends of earlier daemons no longer count against `MAX_DEATHS`."""
        self._deaths = 0

    def note_refusal(self, error: PeerError) -> None:
        """Note the error that the daemon is going to end with."""
        self._refusal = error

    def end_if_silent(self) -> None:
        """Kill a daemon that has sent nothing for `SILENT_S`. Its end then arrives like any other."""
        if self.child is not None and time.monotonic() - self._last_message_at > SILENT_S:
            log.warning("the daemon was silent for %.0f s, and is ended", SILENT_S)
            self.child.end(0.0)
            self.note_message()

    # -- end ---------------------------------------------------------------------------------------------------------

    def reap(self) -> int:
        """Wait for the end of the daemon, whose socket is closed. Return its exit code."""
        assert self.child is not None
        child, self.child, self.state = self.child, None, LinkState.DOWN
        return child.end(CLOSED_S)

    def plan_restart(self, child: DaemonChild, code: int, *, joined: bool) -> None:
        """Decide whether and when to start another daemon after `child`, which ended unexpectedly with this code.

        `joined`: whether a daemon has started this loop before. If not, no daemon is started again, and `join` raises
        the error."""
        refusal, self._refusal = self._refusal, None
        fault = refusal or child.exit_error(code)
        self._deaths += 1
        needs_person = refusal is not None and not refusal.retry
        if not joined or needs_person or self._deaths > MAX_DEATHS:
            if self._deaths > MAX_DEATHS and not needs_person:
                found = f"the daemon ended {self._deaths} times in a row, at last: {fault.found}"
                fault = TrainerFailed(found, fault.fix, "The loop trains on alone, and its work reaches nobody.")
            self.error = fault
        else:
            pause_s = min(LONGEST_PAUSE_S, 2.0**self._deaths) if self._deaths > 1 else 0.0
            self._next_start = time.monotonic() + pause_s
        log.warning("the loop trains alone: %s", fault.found)
        if joined:
            self._on_fault(fault)

    def abandon(self, child: DaemonChild, error: PeerError) -> None:
        """End a daemon that cannot be used because of `error`, and start no further one."""
        self.child, self.state = None, LinkState.DOWN
        child.pipe.close()
        child.end(CLOSED_S)
        self._stop_restarting(error)

    def close(self) -> None:
        """Close the socket, upon which the daemon ends; kill it after `CLOSED_S`. May be called again."""
        child, self.child, self.state = self.child, None, LinkState.DOWN
        if child is not None:
            child.pipe.close()
            child.end(CLOSED_S)

    def _stop_restarting(self, error: PeerError) -> None:
        self.error = error
        self._on_fault(error)
