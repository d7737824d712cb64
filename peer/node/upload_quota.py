"""The volunteer's upload budget of a day and a month, in local time as the clock on the wall shows it: asked before
every exchange and by every payload, kept over restarts. The arithmetic is `peer.protocol.policy.upload_quota`'s.

The count is one small file in the home, for all runs of it, written before a payload's first byte leaves with the
payload counted in full: a process that is killed has never sent more than the file says. On failure: a
file that cannot be read is named, and the most that it can have said is taken for used; one that cannot be written is
told once, and counting goes on in memory."""

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
    why_not_strangers,
    why_used,
)
from peer.run.home import write_whole
from peer.state.files import read_small

LOOK_EVERY_S = 1.0
SAVE_EVERY_S = 30.0
SETTLE_S = 10.0
"""Seconds after which the line has carried what was handed to it, and its meter has been looked at."""
MAX_FILE = 4096
MOST_BYTES = 2**60
"""Beyond it a count in the file is no count."""


def moment_of(now: float) -> Moment:
    """`now`: seconds since the epoch; days and months are those of local time."""
    today = datetime.fromtimestamp(now).date()
    tomorrow, next_month = today + timedelta(days=1), first_of_next(today)
    return Moment(today, max(0.0, _midnight(tomorrow) - now), max(0.0, _midnight(next_month) - now))


def _midnight(day: date) -> float:
    """Seconds since the epoch at which it begins here: days with a change to summer time are shorter."""
    return datetime(day.year, day.month, day.day).timestamp()


class UploadQuota:
    """Of one home, whose lock is held. The `UploadBudget` of the transport's meter."""

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
        """`kept`: the file; None: nowhere. `now`: the clock on the wall, seconds since the epoch; `ticks`: seconds of
        any origin; `moment`: what the one says of day and month. `changed` is called when exchanges stop or go on."""
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
        """What the line's meter showed at the last look."""
        self._sent_at = ticks()
        self._need = 0
        self._last_reason = ""
        self._unwritable = False
        self._counted = False
        """Whether there is anything to keep: who never came so far leaves no file."""
        self._moment = moment(now())
        self._ticked = self._saved = ticks()
        self._ledger = QuotaLedger(limits, self._load())
        self._changed = changed
        self.rest_reasons: list[Callable[[], str]] = []
        """Each returns why nothing is given now, for a person; empty: it may be."""

    def use_line_meter(self, line: Callable[[], int]) -> None:
        """From here on count what a meter of the line shows. `line` returns all bytes sent since this process began."""
        self._line = line
        self._ledger.count_by_meter()

    # -- may it be sent? ---------------------------------------------------------------------------------------------

    def reserve_for_exchange(self, payload: int, control: float = CONTROL_RATE) -> None:
        """Bytes of the largest round's payload: less than that, and nothing is exchanged. `control`: bytes per second
        of control traffic."""
        self._advance()
        self._need = on_the_line(payload, 0)
        self._ledger.keep_back(control)

    def blocked_reason(self) -> str:
        """Why a round cannot be exchanged now, for a person; empty: it can."""
        return self._why_not(self._need)

    def refusal_reason(self, *, stranger: bool = False) -> str:
        """Return why nothing is given or relayed, for a person.

        A peer that rests gives nothing. The next exchange comes first, and strangers have a share alone."""
        resting = next((why for rest in self.rest_reasons if (why := rest())), "")
        return resting or self._why_not(2 * self._need) or (self._why_not_strangers(1) if stranger else "")

    def _why_not_strangers(self, nbytes: int) -> str:
        if not self._limited:
            return ""
        self._advance()
        return "" if self._ledger.holds_for_strangers(nbytes) else why_not_strangers(self._limits)

    def _why_not(self, nbytes: int) -> str:
        if not self._limited:
            return ""
        self._advance()
        if (period := self._ledger.lacking(nbytes, self._moment)) is None:
            return ""
        return why_used(self._limits, period, self._need, self._moment, self._ledger.control_rate)

    @contextlib.contextmanager
    def claim(
        self, payload: int, chunks: int, *, giving: bool, stranger: bool = False
    ) -> Iterator[Callable[[int], None]]:
        """Around the sending of a payload; gives what is to be told the bytes of each chunk. `giving`: a state, which
        leaves room for an exchange. `stranger`: it goes to one, and brings nothing back. Raises PartnerRefused
        (`budget`) where it does not fit."""
        if self._kept is None and not self._limited:
            yield lambda nbytes: None  # nobody asks what was used
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

    # -- as time goes by ---------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Notice new days and budgets that are used, and keep the file fresh; for ever, the owner cancels."""
        if self._kept is None and not self._limited:
            await asyncio.Event().wait()  # there is nothing to notice, and nothing to keep
        while True:
            self.look()
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Once."""
        self._counted = True
        why = self.blocked_reason()
        if why != self._last_reason:
            self._tell(why)
        if self._ticks() - self._saved >= SAVE_EVERY_S:
            self._save()

    def close(self) -> None:
        """The last count is kept."""
        if self._counted:
            self._advance()
            self._save(clean=True)

    def report(self) -> BudgetStatus:
        """For `peer status`."""
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

    # -- across lives ------------------------------------------------------------------------------------------------

    def _save(self, *, clean: bool = False) -> None:
        """`clean`: nothing will be sent after it."""
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
        """What the file says, and what may have been sent since it was written."""
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
    """Raises ValueError, TypeError or KeyError."""
    day, month, strangers = body["day"], body["month"], body.get("strangers", 0)
    for count in (day, month, strangers):
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count < MOST_BYTES:
            raise ValueError("not a count of bytes")
    return Used(date.fromisoformat(body["date"]), day, month, strangers)
