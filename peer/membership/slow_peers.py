"""Diagnoses slow machines and links from this peer's exchanges. It feeds `peer.protocol.diagnosis.analysis`, journals
each change of its findings, and reports them to `peer status`, the metrics and, as a few numbers, to partners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

from peer.codes import Code
from peer.errors import ExchangeError, PartnerLost, PartnerSilent
from peer.observe import events
from peer.observe.status.value import DiagnosisFinding, ExchangeRates
from peer.protocol.diagnosis.analysis import Diagnosis, lag_by_own_doing
from peer.protocol.diagnosis.outliers import OutlierFinding, Sample
from peer.protocol.messages import PeerId, PeerTimings, RoundKey, SwapReport


class SlowPeerMonitor:
    """Diagnoses which machine or link slows down this peer's exchanges, and journals each change of the diagnosis.

    Covers exchanges in pairs only. `now`: run time, seconds. `emit`: journals an event."""

    def __init__(self, now: Callable[[], float], emit: Callable[[events.Event], None]) -> None:
        self._now = now
        self._emit = emit
        self._diagnosis = Diagnosis()
        self._ready: dict[int, tuple[RoundKey, float, float, int]] = {}

    def ready(self, key: RoundKey, since: float, tokens: int) -> None:
        """Record that a round's work of `tokens` tokens is ready now. `since`: run time from which on a delay counts as
        caused by this machine."""
        now = self._now()
        self._ready[key.fragment] = key, now, now - since, tokens

    def own_timings(self, key: RoundKey) -> PeerTimings | None:
        """Return the timings that the partner of this round gets from us; None: no work was ready."""
        known = self._ready.get(key.fragment)
        if known is None or known[0] != key.whole:
            return None
        return PeerTimings(known[1], known[2], *self._diagnosis.own_rates(), known[3])

    def exchanged(self, partner: PeerId, report: SwapReport) -> None:
        """Record a successful exchange with this partner."""
        own, theirs, pace = report.own_timings, report.partner_timings, report.transfer_timings
        lag = lag_by_own_doing(own, theirs) if own is not None and theirs is not None else 0.0
        nbytes = max(report.bytes_sent, report.bytes_received)
        self._look(Sample(partner, nbytes, pace.rate_out, pace.rate_in, lag), theirs)

    def failed(self, partner: PeerId, error: ExchangeError) -> None:
        """Record a failed exchange. Refusals and invalid bytes are ignored, as they do not show who is slow."""
        if isinstance(error, PartnerSilent):
            self._look(Sample(partner, failure="silent" if error.code == Code.SILENT else "late"), None)
        elif isinstance(error, PartnerLost):
            self._look(Sample(partner, failure="lost"), None)

    def _look(self, sample: Sample, told: PeerTimings | None) -> None:
        self._diagnosis.add(sample, told)
        new, over = self._diagnosis.look()
        for finding in new:
            self._changed(finding, found=True)
        for finding in over:
            self._changed(finding, found=False)

    def _changed(self, finding: OutlierFinding, *, found: bool) -> None:
        self._emit(events.DiagnosisChanged(**asdict(finding), found=found))

    def found(self) -> list[OutlierFinding]:
        """Return the present findings; those about this peer come first."""
        return self._diagnosis.found()

    def report(self) -> tuple[DiagnosisFinding, ...]:
        """Return the findings for `peer status`, or one entry with the reason why there are none."""
        if found := self.found():
            return tuple(DiagnosisFinding(**asdict(finding)) for finding in found)
        diagnosis = self._diagnosis
        return (DiagnosisFinding("nothing", "", diagnosis.samples, "exchanges", diagnosis.no_finding_reason()),)

    def numbers(self) -> ExchangeRates:
        """Return the medians of this peer's own rates and lateness."""
        sent, received = self._diagnosis.own_rates()
        return ExchangeRates(sent or None, received or None, self._diagnosis.own_lateness())
