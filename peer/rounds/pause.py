"""The volunteer's own pause: by `peer pause` (for a time or until `peer resume`), by quiet hours, or by the conditions
of `--when`. It comes before the operator's directives, and survives a restart: a peer that was paused starts paused."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from peer.aio.events import Latch, Signal
from peer.clock.local_time import local_time
from peer.clock.quiet_hours import QuietHours
from peer.clock.run_clock import wall_time
from peer.errors import HomeUnusable, UsageError
from peer.guest.conditions import UNMETERED
from peer.guest.watch import MachineWatch
from peer.observe.status.value import ConditionStatus, PauseStatus
from peer.protocol.messages import LATEST
from peer.run.home import write_whole

LOOK_EVERY_S = 1.0
"""Seconds after which the end of a pause, or quiet hours, are noticed at the latest. A new minute is noticed at
once."""
IDLE_S = 3600.0
"""Seconds between two checks while neither quiet hours nor the end of a pause can come."""
LONGEST_S = 366 * 86400.0
MAX_FILE = 4096
MINUTE_S = 60.0
QUIET = "quiet hours"


def minute_of_day(now: float) -> int:
    """Return the minute of the day in local time, 0 to 1439. `now`: seconds since the epoch."""
    local = time.localtime(now)
    return local.tm_hour * 60 + local.tm_min


class LocalPause:
    """Whether the volunteer wants this machine left alone, and why.

    `kept`: file that remembers a pause across restarts; None: it is not remembered. `active` is set while any reason to
    pause holds; `look` updates it."""

    def __init__(
        self,
        kept: Path | None = None,
        quiet: QuietHours | None = None,
        now: Callable[[], float] = wall_time,
        minute: Callable[[float], int] = minute_of_day,
        machine: MachineWatch | None = None,
    ) -> None:
        self._kept = kept
        self._quiet = quiet
        self._now = now
        self._minute = minute
        self._since: float | None = None
        self._until: float | None = None
        self.machine = machine or MachineWatch({}, lambda line: None)
        """The conditions that the volunteer has set with `--when`."""
        self._overruled: set[str] = set()
        """The reasons that held when the volunteer resumed. Each is removed when it ends."""
        self.active = Latch()
        self._changed = Signal()
        """Set when the volunteer pauses, which wakes `watch`."""
        self._recall()
        self.look()
        self.machine.listeners.append(self.look)

    # -- the volunteer's commands ------------------------------------------------------------------------------------

    def pause(self, for_s: float | None = None) -> None:
        """Pause from now on, for `for_s` seconds (None: until `resume`). A new call replaces the end of an earlier one,
        but the pause keeps its first beginning.

        Raises UsageError for an impossible time. Raises HomeUnusable if the pause cannot be written to its file; it
        then holds until this process ends."""
        if for_s is not None and not (math.isfinite(for_s) and 0 < for_s <= LONGEST_S):
            raise UsageError(f"cannot pause for {for_s:g} s", "Give a time above 0 and of a year at most.")
        now = self._now()
        self._since = now if self._since is None else self._since
        self._until = None if for_s is None else now + for_s
        self._overruled.clear()
        self._changed.set()
        self.look()
        self._remember()

    def resume(self) -> None:
        """End the pause, and ignore the quiet hours and conditions that hold now until they end.

        Raises HomeUnusable if the file of the pause cannot be removed."""
        self._since = self._until = None
        self._overruled = set(self._reasons(self._now()))
        self.look()
        self._remember()

    # -- the present state -------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Update `active` to the present time and conditions."""
        now = self._now()
        if self._until is not None and now >= self._until:
            self._since = self._until = None
        self._overruled &= self._reasons(now).keys()
        if self.reason():
            self.active.set()
        else:
            self.active.clear()

    async def watch(self, sleep: Callable[[float], Any] = asyncio.sleep) -> None:
        """Keep `active` up to date. Runs until it is cancelled."""
        while True:
            now = self._now()  # read before `look`, so that a minute that begins meanwhile is not skipped
            self.look()
            if self._until is None and self._quiet is None:
                self._changed.clear()
                await self._changed.wait_for(
                    IDLE_S
                )  # without a planned pause only a command or a condition can change anything, and both call `look`
            else:
                await sleep(min(LOOK_EVERY_S, MINUTE_S - now % MINUTE_S))

    async def until_unmetered(self, tell: Callable[[str], None], sleep: Callable[[float], Any] = asyncio.sleep) -> None:
        """Wait while the network is metered, because joining downloads the run's state. `peer resume` ends the wait.
        `tell`: called with the reason, for a person."""
        while UNMETERED in self.machine.holds and UNMETERED not in self._overruled:
            tell(f"waiting to fetch the run: {self.machine.holds[UNMETERED]}")
            await sleep(LOOK_EVERY_S)

    def reason(self) -> str:
        """Return why this peer is paused, as text for a person; empty: it is not."""
        now = self._now()
        if self._since is not None and (self._until is None or now < self._until):
            until = "" if self._until is None else f" until {local_time(self._until)}"
            return f"paused by you since {local_time(self._since)}{until}"
        return "; ".join(why for name, why in self._reasons(now).items() if name not in self._overruled)

    def known_in(self) -> float:
        """Return the seconds until the next planned pause, that is, until quiet hours begin; infinite without quiet
        hours."""
        now = self._now()
        return math.inf if self._quiet is None else self._quiet.begin_in(self._minute(now)) * MINUTE_S - now % MINUTE_S

    def report(self) -> PauseStatus:
        """Return the state of the pause for `peer status`."""
        return PauseStatus(
            now=self.reason() or "no",
            since=self._since,
            until=self._until,
            quiet_hours=None if self._quiet is None else str(self._quiet),
            conditions={
                name: ConditionStatus(told.holds, told.why, told.measured)
                for name, told in self.machine.report().items()
            },
        )

    def _reasons(self, now: float) -> dict[str, str]:
        """Return the reasons that hold now except the volunteer's own pause: name -> text."""
        quiet = self._quiet is not None and self._quiet.hold(self._minute(now))
        return ({QUIET: f"{QUIET} {self._quiet}"} if quiet else {}) | self.machine.holds

    # -- the file ----------------------------------------------------------------------------------------------------

    def _remember(self) -> None:
        if self._kept is None:
            return
        if self._since is not None:
            write_whole(self._kept, json.dumps({"since": self._since, "until": self._until}).encode())
            return
        try:
            self._kept.unlink(missing_ok=True)
        except OSError as error:
            raise HomeUnusable(f"cannot remove {self._kept}: {error.strerror}") from error

    def _recall(self) -> None:
        """Restore a pause from its file. A file that cannot be read counts as a pause, so that in doubt the machine is
        left alone."""
        if self._kept is None:
            return
        try:
            with self._kept.open("rb") as file:
                raw = file.read(MAX_FILE)
        except FileNotFoundError:
            return
        except OSError:
            self._since = self._now()
            return
        try:
            body = json.loads(raw)
            since, until = float(body["since"]), body["until"]
            self._until = None if until is None else float(until)
            if not all(0 <= at <= LATEST for at in (since, self._until or since)):
                raise ValueError("a time without a date")
            self._since = since
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            self._since, self._until = self._now(), None
