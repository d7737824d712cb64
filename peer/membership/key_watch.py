"""Detects that our key is used by another process too, as after a home was copied to a second machine."""

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
"""Timeout of a Hello to the other process, in seconds."""
PAUSE_S = 10.0
"""Least seconds between two Hellos that records of our key cause, so that replayed old records cannot cause more."""
MAX_STARTS = 16
"""Most process starts of our key for which this peer remembers that it followed a record."""


class KeyWatch:
    """Watches for other processes with our key, and ends ours if the other one started earlier.

    A record of our key from another start is a hint: this peer says Hello at the address in it. A Hello with any peer
    also brings the start claims that the peer has collected. `KeyStarts` decides what a claim proves."""

    def __init__(
        self,
        starts: KeyStarts,
        greet: Callable[[PeerRecord, float], Awaitable[None]],
        clock: Clock,
        emit: Callable[[events.Event], None],
        say: Callable[[str], None],
        fix: str,
    ) -> None:
        """`greet`: says Hello to the process at a record's address, within the given seconds. `say`: called with the
        finding, for a person. `fix`: advice on how to make a new key, as text for a person."""
        self._starts, self._greet, self._clock = starts, greet, clock
        self._emit, self._say, self._fix = emit, say, fix
        self._hint_found, self._stopped = Signal(), Signal()
        self._hint: PeerRecord | None = None
        self.shared = ""
        """The latest finding, as text for a person; empty: no other process with our key is known."""
        self._tried: dict[bytes, float] = {}
        """For each start whose records were followed: the time at which the latest followed record was issued."""
        starts.notify(self._found)

    @property
    def nonce(self) -> bytes:
        """The nonce of our own start."""
        return self._starts.nonce

    @property
    def stops(self) -> bool:
        """Whether this process has to stop, because another one with our key started earlier."""
        return self._starts.earlier is not None

    def note_own_record(self, record: PeerRecord) -> None:
        """Follow a record of our own key that a look into the directory has found or a peer has shown, if it is of
        another start."""
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
        """Follow hints until cancelled. Raises KeyInUse if an earlier start of our key has proved that it runs."""
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
            with contextlib.suppress(ExchangeError):  # the rival cannot be reached; other peers may repeat the hint
                await self._greet(hint, GREET_S)
            self.ensure_alone()
            await self._stopped.wait_for(PAUSE_S)

    def ensure_alone(self) -> None:
        """Raise KeyInUse if an earlier start of our key has proved that it runs."""
        if (rival := self._starts.earlier) is not None:
            raise KeyInUse(f"this key is in use on another machine since {local_time(rival.began_at)}", self._fix)
