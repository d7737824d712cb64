"""The volunteer's upload quota per day and month, in local time. It is checked before every exchange and by every
payload, and survives restarts. The arithmetic is in `peer.protocol.policy.upload_quota`.

The count is stored in one small file in the home, for all its runs. It is written before the first byte of a payload is
sent and includes the whole payload, so that a process that is killed has never sent more than the file records. A file
that cannot be read is reported, and the largest amount that it may have contained counts as used. A file that cannot be
written is reported once, and the count goes on in memory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

from peer.clock.run_clock import wall_time
from peer.codes import Code
from peer.errors import HomeUnusable, PartnerRefused
from peer.observe import events
from peer.observe.status.value import BudgetStatus
from peer.protocol.policy.upload_quota import (
    CONTROL_RATE,
    PERIODS,
    Moment,
    QuotaLedger,
    UploadLimits,
    Used,
    first_of_next,
    lost,
    on_the_line,
    quota_reason,
    stranger_share_reason,
)
from peer.run.home import write_whole
from peer.state.files import read_small

LOOK_EVERY_S = 1.0
SAVE_EVERY_S = 30.0
SETTLE_S = 10.0
"""Seconds without a payload after which the meter of the line has counted everything that was sent."""
MAX_FILE = 4096
MOST_BYTES = 2**60
"""Larger counts in the file are invalid."""


def moment_of(now: float) -> Moment:
    """Return day and month of a time, and the seconds left in each. `now`: seconds since the epoch, in local time
    zone."""
    today = datetime.fromtimestamp(now).date()
    tomorrow, next_month = today + timedelta(days=1), first_of_next(today)
    return Moment(today, max(0.0, _midnight(tomorrow) - now), max(0.0, _midnight(next_month) - now))


def _midnight(day: date) -> float:
    """Return the start of a local day in seconds since the epoch. A day with a change of summer time is not 24 h
    long."""
    return datetime(day.year, day.month, day.day).timestamp()


class UploadQuota:
    """The upload quota of one home, whose lock is held. Implements the `UploadBudget` of the transport's meter."""

    def __init__(
        self,
        limits: UploadLimits,
        kept: Path | None,
        emit: Callable[[events.Event], None],
        say: Callable[[str], None],
        now: Callable[[], float] = wall_time,
        ticks: Callable[[], float] = time.monotonic,
        moment: Callable[[float], Moment] = moment_of,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`kept`: the file. None: the count is not stored. `now`: returns seconds since the epoch. `ticks`: returns
        seconds of a monotonic clock. `moment`: gives day and month of a time. `changed`: called when exchanges become
        blocked or allowed."""
        self._limits = limits
        self._limited = any(True for _ in limits.each())
        self._kept = kept
        self._emit = emit
        self._say = say
        self._now = now
        self._ticks = ticks
        self._moment_of = moment
        self._line: Callable[[], int] | None = None
        self._shown = 0
        """Reading of the line's meter at the last update, in bytes."""
        self._sent_at = ticks()
        self._need = 0
        self._last_reason = ""
        self._unwritable = False
        self._counted = False
        """Whether there is a count to store. A start that failed early leaves no file."""
        self._moment = moment(now())
        self._ticked = self._saved = ticks()
        self._ledger = QuotaLedger(limits, self._load())
        self._changed = changed
        self.rest_reasons: list[Callable[[], str]] = []
        """Each returns why nothing may be given now, for a person. Empty: it may."""

    def use_line_meter(self, line: Callable[[], int]) -> None:
        """Count by a meter of the line from now on. `line`: returns all bytes sent since this process began."""
        self._line = line
        self._ledger.count_by_meter()

    # -- permission to send --------------------------------------------------------------------------------------------

    def reserve_for_exchange(self, payload: int, control: float = CONTROL_RATE) -> None:
        """Set the payload bytes of the largest round, below which exchanges are blocked. `control`: bytes per second
        reserved for control traffic."""
        self._advance()
        self._need = on_the_line(payload, 0)
        self._ledger.reserve_control(control)

    def blocked_reason(self) -> str:
        """Return why no round can be exchanged now, for a person. Empty: it can."""
        return self._why_not(self._need)

    def refusal_reason(self, *, stranger: bool = False) -> str:
        """Return why nothing may be given or relayed now, for a person. Empty: it may.

        A paused peer gives nothing. Enough for the next exchange is reserved, and strangers have a limited share."""
        resting = next((why for rest in self.rest_reasons if (why := rest())), "")
        return resting or self._why_not(2 * self._need) or (self._why_not_strangers(1) if stranger else "")

    def _why_not_strangers(self, nbytes: int) -> str:
        if not self._limited:
            return ""
        self._advance()
        return "" if self._ledger.holds_for_strangers(nbytes) else stranger_share_reason(self._limits)

    def _why_not(self, nbytes: int) -> str:
        if not self._limited:
            return ""
        self._advance()
        if (period := self._ledger.exhausted_period(nbytes, self._moment)) is None:
            return ""
        return quota_reason(self._limits, period, self._need, self._moment, self._ledger.control_rate)

    @contextlib.contextmanager
    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> Iterator[Callable[[int], None]]:
        """Reserve the upload of a payload within the context, whose value is a function to be called with the bytes of
        each sent chunk. What was not sent is returned to the quota.

        `giving`: the payload is a state, which must leave room for an exchange. `stranger`: it goes to a stranger.
        Raises PartnerRefused (`budget`) when it exceeds the quota."""
        if self._kept is None and not self._limited:
            yield lambda nbytes: None  # there is no limit and no file, so nothing is counted
            return
        nbytes = on_the_line(payload, chunks)
        if why := self._why_not(nbytes + (self._need if giving else 0)):
            raise PartnerRefused(Code.BUDGET, why)
        if stranger and (why := self._why_not_strangers(nbytes)):
            raise PartnerRefused(Code.BUDGET, why)
        left = nbytes
        self._ledger.claim(nbytes, stranger=stranger)
        self._save()

        def sent(payload: int) -> None:
            nonlocal left
            line = min(left, on_the_line(payload, 1))
            left -= line
            self._sent_at = self._ticks()
            self._ledger.sent(line)

        try:
            yield sent
        finally:
            self._advance()
            self._ledger.give_back(left, stranger=stranger)

    # -- periodic update -----------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Report new days and exhausted quotas, and keep the file up to date. Runs until cancelled."""
        if self._kept is None and not self._limited:
            await asyncio.Event().wait()  # there is no limit and no file
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Report a change, and write the file if it is due."""
        self._counted = True
        why = self.blocked_reason()
        if why != self._last_reason:
            self._tell(why)
        if self._ticks() - self._saved >= SAVE_EVERY_S:
            self._save()

    def close(self) -> None:
        """Write the final count."""
        if self._counted:
            self._advance()
            self._save(clean=True)

    def report(self) -> BudgetStatus:
        """Return the quota for `peer status`."""
        self._advance()
        used = self._ledger.used
        return BudgetStatus(
            used={"day": used.day, "month": used.month},
            limit={"day": self._limits.day, "month": self._limits.month},
            why=self.blocked_reason(),
            kept_back={p: round(self._ledger.control_rate * self._moment.left_s(p)) for p, _ in self._limits.each()},
        )

    def _tell(self, why: str) -> None:
        self._last_reason, used = why, self._ledger.used
        if why:
            self._emit(events.BudgetUsed(reason=why, day=used.day, month=used.month))
            self._say(f"{why}. Training goes on alone")
        else:
            self._emit(events.BudgetBack(day=used.day, month=used.month))
            self._say("the upload budget holds exchanges again")
        self._changed()

    def _advance(self) -> None:
        ticks = self._ticks()
        self._moment = self._moment_of(self._now())
        self._ledger.turn(self._moment, max(0.0, ticks - self._ticked))
        self._ticked = ticks
        if self._line is not None:
            shown = self._line()
            self._ledger.count(max(0, shown - self._shown))
            self._shown = shown
            if ticks - self._sent_at >= SETTLE_S:
                self._ledger.settle()

    # -- across restarts -----------------------------------------------------------------------------------------------

    def _save(self, *, clean: bool = False) -> None:
        """Write the file. `clean`: nothing will be sent after this."""
        used, self._saved, self._counted = self._ledger.used, self._ticks(), True
        if self._kept is None:
            return
        body: dict[str, Any] = {
            "date": used.date.isoformat(),
            "day": used.day,
            "month": used.month,
            "strangers": used.strangers,
        }
        if clean:
            body["clean"] = True
        try:
            write_whole(self._kept, json.dumps(body).encode())
        except HomeUnusable as error:
            if not self._unwritable:
                self._say(f"what is uploaded cannot be kept: {error.found}; a restart would count too little")
            self._unwritable = True
        else:
            self._unwritable = False

    def _load(self) -> Used:
        """Return the count in the file, plus what may have been sent after it was written."""
        if self._kept is None:
            return Used(self._moment.date, 0, 0)
        try:
            body = json.loads(read_small(self._kept, MAX_FILE))
            used = _used_of(body)
        except FileNotFoundError:
            return Used(self._moment.date, 0, 0)
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            return self._lost(error)
        if body.get("clean") is True:
            return used
        since = math.ceil(CONTROL_RATE * SAVE_EVERY_S)
        return Used(used.date, used.day + since, used.month + since, used.strangers)

    def _lost(self, error: Exception) -> Used:
        used = lost(self._limits, self._moment)
        if self._limited:
            reason = f"{self._kept} cannot be read ({type(error).__name__}: {error}): " + _counted_as(used)
            self._emit(events.BudgetLost(reason=reason, day=used.day, month=used.month))
            self._say(f"{reason}; delete the file to count from 0")
        return used


def _counted_as(used: Used) -> str:
    return "; ".join(f"{getattr(used, p) / 1e9:.3g} GB are taken for used this {p}" for p in PERIODS)


def _used_of(body: Any) -> Used:
    """Return the count in a file's content. Raises ValueError, TypeError or KeyError."""
    day, month, strangers = body["day"], body["month"], body.get("strangers", 0)
    for count in (day, month, strangers):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < MOST_BYTES:
            raise ValueError("not a count of bytes")
    return Used(date.fromisoformat(body["date"]), day, month, strangers)
