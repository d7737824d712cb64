"""The upload quota of a calendar day and month: arithmetic on bytes, and on dates that the caller takes from its clock.

Bytes are counted as the line carries them. A payload is claimed in full before its first byte is sent, and the part
that was not sent is returned afterwards. So the stored count is never too low, even if the process is killed during a
transfer. Control traffic and the directory have an allowance by time, and the allowance for the rest of the period is
reserved. An exchange that does not fit beside this reserve is not started. Quota is used first come, first served:
nothing is saved for the evening.

If the stored count is lost, the maximum that it could have been is assumed (`lost`). If the clock is set back to an
earlier day, no new period begins and no count decreases.

With a meter of the line (`QuotaLedger.measured`), all sent bytes are counted from the meter's reports, and the
allowance is only reserved. Without a meter, in a simulation, the allowance counts as the bytes of control traffic."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Literal

STRANGERS_SHARE = 0.25
"""Fraction of a quota for state that strangers fetch. The rest is for exchanges, in which this peer receives as much as
it sends."""
Period = Literal["day", "month"]
PERIODS: tuple[Period, ...] = ("day", "month")

FRAMING = 1.041
"""Bytes on the line per byte of payload: overhead of HTTP/2, TLS, TCP and IP."""
PER_CHUNK = 100
"""Bytes of overhead of each chunk, which may be in a packet of its own: headers of the frame, gRPC, HTTP/2, TLS, TCP
and IP."""
CONTROL_RATE = 4_000.0
"""Bytes per second reserved for traffic other than payload, if rounds are short or in steps: an estimate.
`benchmarks/control_bytes.py --round-seconds 10` measures 1,900, including connections and headers."""
SELDOM_RATE, SELDOM_ROUND_S, LONG_ROUND_S = 290.0, 300.0, 120.0
"""`SELDOM_RATE` is the same for rounds of `SELDOM_ROUND_S` seconds or more: 25 MB a day. `benchmarks/control_bytes.py`
measures less. For rounds from `LONG_ROUND_S` to `SELDOM_ROUND_S` seconds, the rate is larger in proportion to the
number of rounds."""
DAY_S = 86_400.0
LONGEST_MONTH = 31
"""Days."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """Limits in bytes on the line. None: no limit."""

    day: int | None = None
    month: int | None = None

    def each(self) -> Iterator[tuple[Period, int]]:
        """Yield the limits that are set."""
        if self.day is not None:
            yield "day", self.day
        if self.month is not None:
            yield "month", self.month


@dataclass(frozen=True, slots=True)
class Moment:
    """A date, and the seconds left in the day and in the month."""

    date: date
    day_left_s: float
    month_left_s: float

    def left_s(self, period: Period) -> float:
        return self.day_left_s if period == "day" else self.month_left_s


@dataclass(frozen=True, slots=True)
class Used:
    """Bytes on the line in a day and in its month."""

    date: date
    day: int
    month: int
    strangers: int = 0
    """Bytes of the day that were sent to strangers as one-way state."""


def control_rate(round_s: float | None) -> float:
    """Return the bytes per second reserved for control traffic, for rounds of `round_s` seconds; None: rounds in
    steps."""
    if round_s is None or round_s < LONG_ROUND_S:
        return CONTROL_RATE
    return SELDOM_RATE * max(1.0, SELDOM_ROUND_S / round_s)


def on_the_line(payload: int, chunks: int) -> int:
    """Return the bytes on the line for a payload in this many chunks."""
    return math.ceil(FRAMING * payload) + PER_CHUNK * chunks


def lost(limits: UploadLimits, moment: Moment) -> Used:
    """Return the bytes to assume as used if the stored count cannot be read. For the day: its full quota. For the
    month: the daily quota times the days so far, but at most the monthly quota; without a daily limit, the full monthly
    quota."""
    daily, monthly = limits.day or 0, limits.month or 0
    return Used(moment.date, daily, min(monthly, daily * moment.date.day) if daily else monthly, daily)


class QuotaLedger:
    """The count of used bytes. The caller calls `turn` before every other method, so that periods are up to date."""

    def __init__(self, limits: UploadLimits, used: Used) -> None:
        self.limits = limits
        self.control_rate = CONTROL_RATE
        """Bytes per second reserved for control traffic. Until the run's round length is known, the maximum of any
        run."""
        self._date = used.date
        self._used: dict[Period, float] = {"day": used.day, "month": used.month}
        self._strangers: float = used.strangers
        self._open = 0
        """Bytes claimed, and neither sent nor returned yet."""
        self.measured = False
        """Whether a meter reports all bytes of the line by `count`. Sent bytes are then not counted a second time."""
        self._on_its_way = 0
        """Claimed bytes that were sent, but which the meter has not reported yet."""

    def reserve_control(self, control_rate: float) -> None:
        """Set the bytes per second to reserve for control traffic."""
        self.control_rate = control_rate

    def count_by_meter(self) -> None:
        """Use the line's meter from now on. Sent bytes are then not counted a second time."""
        self.measured = True

    @property
    def used(self) -> Used:
        """The bytes used in the present day and month. Claimed bytes count as sent."""
        day, month = (math.ceil(self._used[period]) for period in PERIODS)
        return Used(self._date, day, month, math.ceil(self._strangers))

    def turn(self, moment: Moment, elapsed_s: float) -> None:
        """Begin a new period if its date has come; claimed bytes that are not sent yet move to it. Without a meter,
        count the control traffic of the last `elapsed_s` seconds, in the period in which they ended."""
        assert elapsed_s >= 0, elapsed_s
        before = self._date
        if moment.date > before:
            self._used["day"] = self._open + self._on_its_way
            self._strangers = 0.0
            if (moment.date.year, moment.date.month) != (before.year, before.month):
                self._used["month"] = self._open + self._on_its_way
        self._date = moment.date
        if not self.measured:
            self._add(self.control_rate * elapsed_s)

    def left(self, period: Period, moment: Moment) -> float | None:
        """Return the bytes left for payload; negative if more was used. None: no limit."""
        limit = self.limits.day if period == "day" else self.limits.month
        if limit is None:
            return None
        return limit - self._used[period] - self.control_rate * moment.left_s(period)

    def exhausted_period(self, nbytes: int, moment: Moment) -> Period | None:
        """Return the period whose quota has no room for `nbytes`; if both have none, the month. None: there is room."""
        short: Period | None = None
        for period in PERIODS:
            left = self.left(period, moment)
            if left is not None and left < nbytes:
                short = period
        return short

    def holds_for_strangers(self, nbytes: int) -> bool:
        """Return whether strangers may fetch `nbytes` more today. Their share is a fraction of the daily limit or, if
        there is none, of the monthly limit divided by 31."""
        day, month = self.limits.day, self.limits.month
        quotas = [quota for quota in (day, None if month is None else month / LONGEST_MONTH) if quota is not None]
        return not quotas or self._strangers + nbytes <= STRANGERS_SHARE * quotas[0]

    def claim(self, nbytes: int, *, stranger: bool = False) -> None:
        """Claim bytes that are about to be sent."""
        self._open += nbytes
        self._strangers += nbytes if stranger else 0
        self._add(nbytes)

    def sent(self, nbytes: int) -> None:
        """Record that claimed bytes were sent."""
        assert nbytes <= self._open, (nbytes, self._open)
        self._open -= nbytes
        self._on_its_way += nbytes if self.measured else 0

    def count(self, nbytes: int) -> None:
        """Count bytes that the meter reports. Bytes of claimed payloads were counted at their claim."""
        claimed = min(nbytes, self._on_its_way)
        self._on_its_way -= claimed
        self._add(nbytes - claimed)

    def settle(self) -> None:
        """Correct claims that were larger than the bytes on the line. Call this when no payload is being sent."""
        if not self._open:
            self._add(-self._on_its_way)
            self._on_its_way = 0

    def give_back(self, nbytes: int, *, stranger: bool = False) -> None:
        """Return claimed bytes that will not be sent."""
        assert nbytes <= self._open, (nbytes, self._open)
        self._open -= nbytes
        self._strangers = max(0.0, self._strangers - (nbytes if stranger else 0))
        self._add(-nbytes)

    def _add(self, nbytes: float) -> None:
        for period in PERIODS:
            self._used[period] += nbytes


# -- for a person ------------------------------------------------------------------------------------------------------


def quota_reason(
    limits: UploadLimits, period: Period, nbytes: int, moment: Moment, control: float = CONTROL_RATE
) -> str:
    """Return why an exchange of `nbytes` has to wait, and until when, for people to read. `control`: bytes per second
    of control traffic."""
    limit = limits.day if period == "day" else limits.month
    assert limit is not None, period
    if never_fits(limit, period, nbytes, control):
        kept_back = control * DAY_S * (1 if period == "day" else LONGEST_MONTH)
        return (
            f"a {period}'s upload of {size(limit)} never holds an exchange of {size(nbytes)} besides the "
            f"{size(kept_back)} of control traffic, estimated: this peer will not exchange"
        )
    if period == "day":
        return f"today's upload of {size(limit)} is used. Next exchange after 00:00"
    return f"this month's upload of {size(limit)} is used. Next exchange after 00:00 on {first_of_next(moment.date)}"


def stranger_share_reason(limits: UploadLimits) -> str:
    """Return why strangers get no more state today, for people to read."""
    period, limit = next(limits.each())
    return f"strangers have had their {STRANGERS_SHARE:.0%} of the upload of {size(limit)} a {period}"


def never_fits(limit: int, period: Period, nbytes: int, control: float = CONTROL_RATE) -> bool:
    """Return whether even a new period has no room for one exchange."""
    days = 1 if period == "day" else LONGEST_MONTH
    return limit - control * DAY_S * days < nbytes


def first_of_next(day: date) -> date:
    """Return the first day of the next month."""
    return (day.replace(day=1) + timedelta(days=LONGEST_MONTH + 1)).replace(day=1)


def size(nbytes: float) -> str:
    """Format bytes in powers of 1000, such as `5 GB` or `1.25 MB`."""
    for unit, name in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if nbytes >= unit:
            value = nbytes / unit
            return f"{value:.3g} {name}" if value < 99.95 else f"{value:,.0f} {name}"  # .3g writes 999.9 as 1e+03
    return f"{nbytes:.0f} B"


@dataclass(frozen=True, slots=True)
class UploadNeed:
    """The upload that a run's exchanges need."""

    nbytes: int
    """Bytes of the largest round."""
    day: float
    """Bytes of one day."""
    sync_every: float
    """Seconds."""
    control: float = CONTROL_RATE
    """Bytes per second of control traffic."""


def quota_excess(limits: UploadLimits, need: UploadNeed) -> str:
    """Return by how much a day of the run exceeds the quota, when exchanges would stop, and which `sync_every` would
    fit. For people to read; empty: it fits."""
    told = [_too_much(period, limit, need) for period, limit in limits.each()]
    return "; ".join(filter(None, told))


def _too_much(period: Period, limit: int, need: UploadNeed) -> str:
    days = 1 if period == "day" else LONGEST_MONTH
    if never_fits(limit, period, need.nbytes, need.control):
        return quota_reason(UploadLimits(limit, limit), period, need.nbytes, Moment(date.min, 0.0, 0.0), need.control)
    control = need.control * DAY_S
    room = limit / days - control
    if need.day <= room:
        return ""
    part = room / need.day
    lasts = f"{24 * part:.1f} of 24 hours" if period == "day" else f"{days * part:.1f} of {days} days"
    return (
        f"a day of this run uploads {size(need.day + control)}, {size(control)} of it control traffic, both "
        f"estimated, and the budget is {size(limit)} a {period}: it would last {lasts}. It would fit with a "
        f"sync_every of {math.ceil(need.sync_every / part)} s instead of {need.sync_every:g} s"
    )
