"""Notices that our key is in use on another machine, as after a home was copied."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from peer.aio.events import Signal
from peer.clock.local_time import local_time
from peer.errors import ExchangeError, KeyInUse
from peer.observe import events
from peer.ports.clock import Clock
from peer.protocol.messages import PeerRecord
from peer.signed_start import KeyStarts, StartClaim

GREET_S = 10.0
"""Seconds for a Hello with the other process."""
PAUSE_S = 10.0
"""Seconds between two Hellos that records of our key lead to: whoever replays old ones causes no more."""
MAX_STARTS = 16
"""Starts whose records are remembered as tried."""


class KeyWatch:
    """Watches for other processes with our key, and ends ours if it is the later one.

    A record of our key that names another start is a hint: we say Hello where it says. A Hello with anybody brings the
    claims that peer has met. `KeyStarts` decides what a claim proves."""

    def __init__(
        self,
        starts: KeyStarts,
        greet: Callable[[PeerRecord, float], Awaitable[None]],
        clock: Clock,
        emit: Callable[[events.Event], None],
        say: Callable[[str], None],
        fix: str,
    ) -> None:
        """`greet` says Hello to another process with our key, within so many seconds. `fix`: how a person makes a new
        key here."""
        self._starts, self._greet, self._clock = starts, greet, clock
        self._emit, self._say, self._fix = emit, say, fix
        self._hint_found, self._stopped = Signal(), Signal()
        self._hint: PeerRecord | None = None
        self.shared = ""
        """What was found last, for a person. Empty: nobody else has our key, as far as we know."""
        self._tried: dict[bytes, float] = {}
        """By start, when the latest record of it was issued that we followed."""
        starts.notify(self._found)

    @property
    def nonce(self) -> bytes:
        """The nonce of our own start."""
        return self._starts.nonce

    @property
    def stops(self) -> bool:
        """Whether this process has to stop."""
        return self._starts.earlier is not None

    def note_own_record(self, record: PeerRecord) -> None:
        """Take a record of our own key: a look into the directory has found it, or a peer has shown it."""
        new = record.issued_at > self._tried.get(record.start, 0.0) and record.expires_at > self._clock.now()
        if record.start and record.start != self._starts.nonce and record.endpoints and new:
            self._hint = record
            self._hint_found.set()

    def _found(self, rival: StartClaim) -> None:
        since, stops = local_time(rival.began_at), self.stops
        says = "it began earlier, so this process stops" if stops else "it began later, so it stops"
        reason = f"this key is in use on another machine since {since}: {says}"
        self._emit(events.KeyShared(since=rival.began_at, stops=stops, reason=reason))
        self._say(reason)
        self.shared = reason
        if stops:
            self._stopped.set()
            self._hint_found.set()

    async def run(self) -> None:
        """Follow hints for ever. Raises KeyInUse once an earlier start of our key has proven that it runs."""
        while True:
            await self._hint_found.wait()
            self._hint_found.clear()
            self.ensure_alone()
            if (hint := self._hint) is None:
                continue
            self._hint = None
            if len(self._tried) >= MAX_STARTS:
                self._tried.clear()
            self._tried[hint.start] = hint.issued_at
            with contextlib.suppress(ExchangeError):  # gone, or behind a router: others may bring its claim
                await self._greet(hint, GREET_S)
            self.ensure_alone()
            await self._stopped.wait_for(PAUSE_S)

    def ensure_alone(self) -> None:
        """Raise KeyInUse when an earlier start of our key has proven that it runs beside ours."""
        if (rival := self._starts.earlier) is not None:
            raise KeyInUse(f"this key is in use on another machine since {local_time(rival.began_at)}", self._fix)
