"""Diagnosis of slow links by one peer, from its own exchanges, following C4 (arXiv 2406.04594).

The model for the rate of a link is: log rate = mu + sender + receiver + rest. A peer sees only its own row (where it
sends) and its own column (where it receives) of the table of rates. So the two sides of a swap exchange the median
rates at which they send and receive. With these numbers the model can be fitted by medians: our median over partners
gives our own uplink or downlink, and the distance of one partner from that median gives the link.

The module is pure and its memory is bounded. A partner's own numbers never suffice to blame it, and one liar hardly
changes a median. A new fault is found with delay, because the exchanged medians are over the last `LATELY`
exchanges."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from statistics import median

from peer.protocol.diagnosis.outliers import (
    LATELY,
    LEAST,
    LEAST_PARTNERS,
    WINDOW,
    YOU,
    OutlierFinding,
    Sample,
    What,
    findings,
)
from peer.protocol.messages import PeerId, PeerTimings

LEAST_TO_TELL = 5
"""Minimum number of exchanges over which the medians of this peer's own rates and lateness are computed."""
TWICE = 2
"""Consecutive looks that must agree before a finding is reported or withdrawn."""
SHOWN = 8
"""Maximum findings that are reported at once."""
MOST_LAG_S = 3600.0
"""A partner's timings are ignored as implausible if it was ready more than this many seconds before or after us, or if
its `worked` is larger than this."""
LEAST_RATE, MOST_RATE = 1.0, 1e12
"""Range of plausible rates of a partner, in bytes per second."""


def lag_by_own_doing(own: PeerTimings, theirs: PeerTimings) -> float:
    """Return how many seconds the partner was ready later than this peer, as far as its own longer work explains it.
    Negative: this peer was later.

    A partner that began late because its previous exchange kept it waiting is not to blame."""
    lag, longer = theirs.ready - own.ready, theirs.worked - own.worked
    if lag * longer <= 0:
        return 0.0
    return math.copysign(min(abs(lag), abs(longer)), lag)


class Diagnosis:
    """The diagnosis of one peer from its exchanges. The caller calls `add` and then `look` after each exchange."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=WINDOW)
        self._told: OrderedDict[PeerId, PeerTimings] = OrderedDict()
        self._streaks: Counter[tuple[What, str]] = Counter()
        self._found: dict[tuple[What, str], OutlierFinding] = {}

    def add(self, sample: Sample, told: PeerTimings | None = None) -> None:
        """Add a finished exchange. `told`: the timings that the partner sent."""
        self._samples.append(sample)
        if told is not None:
            self._told[sample.partner] = told
            self._told.move_to_end(sample.partner)
            if len(self._told) > WINDOW:
                self._told.popitem(last=False)

    def own_rates(self) -> tuple[float, float]:
        """Return the median rates (out, in) of the latest exchanges in bytes per second, to send to partners. 0: not
        known."""
        lately = list(self._samples)[-LATELY:]
        out = [sample.rate_out for sample in lately if sample.rate_out]
        into = [sample.rate_in for sample in lately if sample.rate_in]
        return _if_enough(out), _if_enough(into)

    def own_lateness(self) -> float | None:
        """Return the median seconds by which this peer is ready later than its partners, by its own doing. Negative:
        earlier. None: not known."""
        lates = [-sample.lag_s for sample in list(self._samples)[-LATELY:] if not sample.failure]
        return median(lates) if len(lates) >= LEAST_TO_TELL else None

    def look(self) -> tuple[list[OutlierFinding], list[OutlierFinding]]:
        """Return the new findings, and those that no longer hold."""
        now = {finding.key: finding for finding in findings(list(self._samples), self._told, frozenset(self._found))}
        new, over = list[OutlierFinding](), list[OutlierFinding]()
        for key in {*now, *self._streaks, *self._found}:
            if (key in now) == (key in self._found):
                self._streaks.pop(key, None)
                continue
            self._streaks[key] += 1
            if self._streaks[key] >= TWICE:
                self._streaks.pop(key)
                (new if key in now else over).append(now[key] if key in now else self._found.pop(key))
        self._found = {key: now.get(key, finding) for key, finding in self._found.items()}
        self._found |= {finding.key: finding for finding in new}
        return sorted(new, key=_order), sorted(over, key=_order)

    def found(self) -> list[OutlierFinding]:
        """Return at most `SHOWN` findings, those about this peer first."""
        return sorted(self._found.values(), key=_order)[:SHOWN]

    def no_finding_reason(self) -> str:
        """Return why there are no findings, for people to read."""
        count, partners = len(self._samples), len({sample.partner for sample in self._samples})
        if count < LEAST:
            return f"not enough exchanges yet ({count} of {LEAST})"
        if partners < LEAST_PARTNERS:
            return f"not enough partners to compare with ({partners} of {LEAST_PARTNERS})"
        return f"nothing unusual in the last {count} exchanges"

    @property
    def samples(self) -> int:
        return len(self._samples)


def _if_enough(rates: list[float]) -> float:
    return median(rates) if len(rates) >= LEAST_TO_TELL else 0.0


def _order(finding: OutlierFinding) -> tuple[bool, str, str]:
    return finding.who != YOU, finding.what, finding.who


def believed(told: PeerTimings | None, own: PeerTimings | None) -> PeerTimings | None:
    """Return a partner's timings if they are in a plausible range, else None. `own`: the timings that this peer
    sent."""
    if told is None or own is None:
        return None
    times = told.ready > 0 and abs(told.ready - own.ready) <= MOST_LAG_S and abs(told.worked) <= MOST_LAG_S
    rates = all(rate == 0 or LEAST_RATE <= rate <= MOST_RATE for rate in (told.rate_out, told.rate_in))
    return told if times and rates else None
