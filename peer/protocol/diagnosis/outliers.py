"""Detection of outliers among the exchanges of one peer, by medians: slow rates, late partners, stalled exchanges.
`peer.protocol.diagnosis.analysis` explains which numbers are compared, and why."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal, get_args

from peer.protocol.messages import PeerId, PeerTimings

What = Literal["slow_uplink", "slow_downlink", "slow_link", "late_trainer", "never_ready", "stalled"]
WHATS: tuple[What, ...] = get_args(What)
YOU = "you"

WINDOW = 64
"""Latest exchanges that are analysed."""
LATELY = 16
"""Latest exchanges over which the medians for partners and our own lateness are computed."""
LEAST = 8
"""Minimum exchanges for a finding about this peer."""
LEAST_OF_PARTNER = 3
"""Minimum exchanges with a partner for a finding about it."""
LEAST_PARTNERS = 3
"""Minimum number of partners for a comparison."""
RATIO = 2.0
"""A rate is slow if it is smaller than that of other partners by at least this factor and by at least `SPREADS`
spreads."""
SPREADS = 3.0
"""See `RATIO`. A spread is 1.4826 median absolute deviations."""
LATE_S = 2.0
"""Seconds below which lateness is ignored."""
OFTEN = 0.7
"""Fraction of the exchanges in which lateness or slowness must occur."""
MOSTLY = 0.75
"""Fraction of the exchanges that must have failed for a finding that exchanges stall."""
COSTS_S = 0.5
"""A slow transfer of fewer seconds does no harm and is ignored."""
STAYS = 0.75
"""A finding remains while its number exceeds this fraction of the bounds (hysteresis)."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One exchange, as this peer measured it."""

    partner: PeerId
    nbytes: int = 0
    """Bytes of the larger payload of the two directions."""
    rate_out: float = 0.0
    """Upload rate in bytes per second. 0: not known."""
    rate_in: float = 0.0
    """Download rate, likewise."""
    lag_s: float = 0.0
    """Seconds by which the partner was ready later, by its own doing. Negative: this peer was later."""
    failure: Literal["", "late", "silent", "lost"] = ""
    """Kind of failure: the partner never began (`late`), stopped in the middle (`silent`), or the connection was lost
    (`lost`). Empty: no failure."""


@dataclass(frozen=True, slots=True)
class OutlierFinding:
    """An unusual number: its kind, whose it is (`you` or a peer id), the number with its unit, and a sentence."""

    what: What
    who: str
    number: float
    unit: str
    why: str

    @property
    def key(self) -> tuple[What, str]:
        return self.what, self.who


Held = frozenset[tuple[What, str]]
"""Keys of the findings that are reported now."""


def spread(values: Iterable[float]) -> float:
    """Return 1.4826 times the median absolute deviation: a robust standard deviation. 0 for no values."""
    known = list(values)
    if not known:
        return 0.0
    middle = median(known)
    return 1.4826 * median(abs(value - middle) for value in known)


def findings(samples: list[Sample], told: Mapping[PeerId, PeerTimings], held: Held) -> list[OutlierFinding]:
    """Return all outliers. Findings in `held` remain until they fall below `STAYS` of their bounds."""
    stalled = _stalled(samples, held)
    gone = {finding.who for finding in stalled}
    if YOU in gone:
        return stalled
    rest = [sample for sample in samples if sample.partner not in gone and not sample.failure]
    return [*stalled, *_rates(rest, told, held), *_lateness(rest[-LATELY:], rest, held)]


# -- rates -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Cell:
    """One of our transfers, compared with the median that the partner has with all its partners in the same
    direction."""

    partner: PeerId
    rate: float
    usual: float
    nbytes: int

    @property
    def rest(self) -> float:
        return math.log(self.rate / self.usual)

    @property
    def costs(self) -> bool:
        return self.nbytes / self.rate >= COSTS_S


def _rates(samples: list[Sample], told: Mapping[PeerId, PeerTimings], held: Held) -> list[OutlierFinding]:
    out = [
        _Cell(s.partner, s.rate_out, told[s.partner].rate_in, s.nbytes)
        for s in samples
        if s.rate_out and s.partner in told and told[s.partner].rate_in
    ]
    into = [
        _Cell(s.partner, s.rate_in, told[s.partner].rate_out, s.nbytes)
        for s in samples
        if s.rate_in and s.partner in told and told[s.partner].rate_out
    ]
    found = _direction(out, "slow_uplink", "slow_downlink", held) + _direction(
        into, "slow_downlink", "slow_uplink", held
    )
    return list({finding.key: finding for finding in found}.values())


def _direction(cells: list[_Cell], ours: What, theirs: What, held: Held) -> list[OutlierFinding]:
    """Analyse one direction: this peer's own side first, then each partner's side and the link to it."""
    by_partner = _by_partner(cells)
    if len(by_partner) < LEAST_PARTNERS:
        return []
    usual = {partner: of[-1].usual for partner, of in by_partner.items()}
    if own := _own_side(cells, usual, ours, held):
        return [own]
    found = list[OutlierFinding]()
    for partner, of in by_partner.items():
        others = [cell for cell in cells if cell.partner != partner]
        rates = [rate for other, rate in usual.items() if other != partner]
        if len(of) >= LEAST_OF_PARTNER and len(rates) >= LEAST_PARTNERS and len(others) >= LEAST:
            finding = _slow_partner(of, usual[partner], rates, theirs, held) or _slow_link(of, others, held)
            found += [finding] if finding else []
    return found


def _own_side(cells: list[_Cell], usual: dict[PeerId, float], what: What, held: Held) -> OutlierFinding | None:
    """Compare this peer's rates with the rates that the same partners have elsewhere. The bound depends on the spread
    of the partners' own numbers."""
    if len(cells) < LEAST:
        return None
    apart = spread(math.log(rate) for rate in usual.values())
    if not _low(median(cell.rest for cell in cells), apart, (what, YOU), held) or not _costly(cells):
        return None
    rate, others = median(cell.rate for cell in cells), median(cell.usual for cell in cells)
    side, do = ("uplink", "get") if what == "slow_uplink" else ("downlink", "send")
    why = f"your {side}: {mbit(rate)} Mbit/s; the same partners {do} {mbit(others)} in the median"
    return OutlierFinding(what, YOU, rate * 8e-6, "Mbit/s", why)


def _slow_partner(of: list[_Cell], usual: float, others: list[float], what: What, held: Held) -> OutlierFinding | None:
    """Find a partner that is slow with all its partners, by its own numbers, and with us too."""
    partner, middle = of[0].partner, median(others)
    apart, key = spread(map(math.log, others)), (what, str(partner))
    rate = median(cell.rate for cell in of)
    lows = (_low(math.log(value / middle), apart, key, held) for value in (usual, rate))
    if not all(lows) or not _costly(of):
        return None
    side = "uplink" if what == "slow_uplink" else "downlink"
    why = f"partner {short(partner)}: its {side} has {mbit(rate)} Mbit/s; other partners have {mbit(middle)}"
    return OutlierFinding(what, partner, rate * 8e-6, "Mbit/s", why)


def _slow_link(of: list[_Cell], others: list[_Cell], held: Held) -> OutlierFinding | None:
    """Find a link that is slow between this peer and one partner, while both are fast with others."""
    key: tuple[What, str] = "slow_link", str(of[0].partner)
    rests = [cell.rest for cell in others]
    partner, usual = of[0].partner, median(rests)
    below = median(cell.rest for cell in of) - usual
    times = sum(_low(cell.rest - usual, 0.0, key, held) for cell in of)
    if times < OFTEN * len(of) or not _low(below, spread(rests), key, held) or not _costly(of):
        return None
    why = f"partner {short(partner)}: {math.exp(-below):.1f}x slower with you than either of you with others"
    return OutlierFinding("slow_link", partner, math.exp(-below), "times slower", why)


def _low(below: float, apart: float, key: tuple[What, str], held: Held) -> bool:
    bound = max(math.log(RATIO), SPREADS * apart)
    return below <= -bound * (STAYS if key in held else 1.0)


def _costly(cells: list[_Cell]) -> bool:
    return sum(cell.costs for cell in cells) > len(cells) / 2


# -- lateness ----------------------------------------------------------------------------------------------------------


def _lateness(lately: list[Sample], samples: list[Sample], held: Held) -> list[OutlierFinding]:
    """Analyse lateness: this peer's over its latest exchanges first, then each partner's over all of them."""
    if own := _own_lateness(lately, held):
        return [own]
    found = list[OutlierFinding]()
    for partner in dict.fromkeys(sample.partner for sample in samples):
        of = [sample.lag_s for sample in samples if sample.partner == partner]
        others = [sample.lag_s for sample in samples if sample.partner != partner]
        if len(of) < LEAST_OF_PARTNER or len(others) < LEAST:
            continue
        bound = _late_bound(_common(others), ("late_trainer", str(partner)), held)
        late, times = median(of), sum(lag >= bound for lag in of)
        if late >= bound and times >= OFTEN * len(of):
            where = f"in {times} of {len(of)} rounds"
            why = f"partner {short(partner)}: its trainer is ready {late:.0f} s after yours, {where}"
            found.append(OutlierFinding("late_trainer", partner, late, "s", why))
    return found


def _own_lateness(lately: list[Sample], held: Held) -> OutlierFinding | None:
    """Analyse our median lateness. The error of a median of n values is about 1.25 spreads / sqrt(n)."""
    lates = [-sample.lag_s for sample in lately]
    if len(lates) < LEAST or len({sample.partner for sample in lately}) < LEAST_PARTNERS:
        return None
    late = median(lates)
    error = 1.25 * spread(lates) / math.sqrt(len(lates))
    bound = _late_bound(SPREADS * error, ("late_trainer", YOU), held)
    times = sum(one >= LATE_S for one in lates)
    if late < bound or times < OFTEN * len(lates):
        return None
    why = f"your trainer: ready {late:.0f} s after your partners, in {times} of the last {len(lates)} rounds"
    return OutlierFinding("late_trainer", YOU, late, "s", why)


def _common(lags: list[float]) -> float:
    """Return 1.5 times the 80 % quantile of the lags. Most lags are 0, so a spread would be 0."""
    return 1.5 * sorted(map(abs, lags))[int(0.8 * len(lags))]


def _late_bound(usual: float, key: tuple[What, str], held: Held) -> float:
    return max(LATE_S, usual) * (STAYS if key in held else 1.0)


# -- stalls ------------------------------------------------------------------------------------------------------------


def _stalled(samples: list[Sample], held: Held) -> list[OutlierFinding]:
    """Find partners whose exchanges fail. If they fail with several partners, the finding is about this peer."""
    lately = samples[-LATELY:]
    failed = [sample for sample in lately if sample.failure]
    many = len(lately) >= LEAST and len({sample.partner for sample in failed}) >= LEAST_PARTNERS
    if many and (own := _stood_still(YOU, failed, len(lately), held)):
        return [own]
    found = list[OutlierFinding]()
    for partner in dict.fromkeys(sample.partner for sample in samples if len(samples) >= LEAST):
        of = [sample for sample in samples if sample.partner == partner and sample.failure != "lost"]
        failed = [sample for sample in of if sample.failure]
        if len(failed) >= LEAST_OF_PARTNER and (finding := _stood_still(partner, failed, len(of), held)):
            found.append(finding)
    return found


def _stood_still(who: str, failed: list[Sample], count: int, held: Held) -> OutlierFinding | None:
    """Return a finding if most exchanges failed. If both sides began, the connection is at fault, else the side that
    never began."""
    began = sum(sample.failure == "silent" for sample in failed) > len(failed) / 2
    what: What = "stalled" if began else "never_ready"
    if len(failed) < MOSTLY * (STAYS if (what, who) in held else 1.0) * count:
        return None
    whose = "your side, whoever the partner" if who == YOU else f"partner {short(who)}"
    how = "stopped or crawled in the middle (the connection)" if began else "never began (the trainer, or the machine)"
    return OutlierFinding(what, who, len(failed), "exchanges", f"{whose}: {len(failed)} of {count} exchanges {how}")


# -- helpers -----------------------------------------------------------------------------------------------------------


def _by_partner(cells: list[_Cell]) -> dict[PeerId, list[_Cell]]:
    grouped: dict[PeerId, list[_Cell]] = {}
    for cell in cells:
        grouped.setdefault(cell.partner, []).append(cell)
    return grouped


def mbit(rate: float) -> str:
    """Format bytes per second as Mbit/s."""
    return f"{rate * 8e-6:.3g}"


def short(peer: str) -> str:
    return f"…{peer[-6:]}"
