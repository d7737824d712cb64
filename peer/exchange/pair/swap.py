"""Swaps a fragment with a partner: exchanges the payloads, checks the received values, and gives up if the partner dies
or is too slow.

A payload of whole params is never in memory as a whole. Chunks are encoded when they are sent and decoded when they
arrive, in the event loop, as one takes about a millisecond. Our values are read in place, and the partner's are decoded
into the caller's buffer. Neither is used after the swap has ended, however it ended."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from torch import Tensor

from peer.aio.events import Signal
from peer.aio.tasks import cancel_and_wait
from peer.aio.threads import Offload
from peer.codec.plain import Codec
from peer.codec.stream import Decoding, Encoding, Flat
from peer.codes import Code
from peer.errors import ExchangeError, PartnerLost, PartnerSilent, RelayBusy
from peer.exchange.deadlines import AWAY_S, HEARTBEAT_S, LEAST_S, RELAYED_HEARTBEAT_S, START_S, TRANSFER_SLACK_S
from peer.exchange.pair.lattice_swap import LatticeSwap
from peer.exchange.pair.rates import SwapRates
from peer.exchange.throughput import MeasuredSource, Throughput, TransferMeter
from peer.exchange.validation import check_partner, finite
from peer.ports.clock import Clock
from peer.ports.transport import SwapCalls
from peer.protocol.messages import (
    PayloadDigests,
    PeerId,
    PeerRecord,
    PeerTimings,
    RoundKey,
    SwapReport,
    TransferTimings,
)
from peer.protocol.pair.receipt import digest_of_parts
from peer.protocol.wire.payload import Sink, Source

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartnerTerms:
    """The partner of a swap, and how long to wait for it."""

    partner: PeerRecord
    key: RoundKey
    wait_s: float
    """Seconds until the partner must be ready."""
    dial: bool
    """Whether this peer makes the call."""
    alive: Callable[[], Awaitable[bool]]
    """Called from time to time until the end of the swap. Returns whether the partner still answers and is still locked
    with us."""
    patience_s: float | None = None
    """Seconds for which a stranger may be behind; None: the partner is no stranger."""
    relayed: bool = False
    """Whether the bytes pass a relay unless hole punching succeeds."""


class Swaps(Protocol):
    """Interface of `PairSwap`, which the liars of `peer.lab.attack` implement too."""

    def swap(self, terms: PartnerTerms, own: Flat, outer: Tensor, into: Tensor) -> Awaitable[SwapReport]: ...


class PairSwap:
    """Swaps params of fragments with partners. `codec`: encodes whole params, or is a `LatticeSwap`."""

    def __init__(
        self,
        transport: SwapCalls,
        clock: Clock,
        codec: Codec | LatticeSwap,
        offload: Offload,
        cap: float | None,
        own_timings: Callable[[RoundKey], PeerTimings | None] = lambda key: None,
        rates: SwapRates | None = None,
        meter: TransferMeter | None = None,
    ) -> None:
        """`cap`: of our own upload, bytes per second; None: no cap. `own_timings`: returns the timings that the partner
        of a round gets from us; None: it gets none. `rates`: the measured transfer rates; None: start with assumed
        ones. `meter`: records the transfers under way, for `peer status`."""
        self._meter = meter or TransferMeter()
        self._own_timings = own_timings
        self._transport = transport
        self._clock = clock
        self._codec = codec
        self._offload = offload
        self._cap = cap
        self.rates = rates or SwapRates()

    def budget_s(self, partner: PeerId, nbytes: int, relayed: bool = False) -> float:
        """Return the seconds that the transfer may take."""
        return self.rates.budget_s(partner, nbytes, self._cap, relayed=relayed)

    async def swap(
        self, terms: PartnerTerms, own: Flat, outer: Tensor, into: Tensor, replacement: Flat | None = None
    ) -> SwapReport:
        """Send our params to the partner, and decode the partner's params into `into`: flat fp32, as long as `own`.

        `own`: our params. `outer`: our outer_params of the fragment. Both are read during the swap and must not change.
        `replacement`: values of the same length to send instead of `own` (`peer.exchange.build.SendHooks`).

        Raises PartnerLost, PartnerRefused or BadPayload. The contents of `into` are undefined then."""
        assert into.shape == (own.numel(),), into.shape
        sent = own if replacement is None else replacement
        reports = list[SwapReport]()

        async def swap(part: int, source: Source, sink: Sink) -> None:
            reports.append(await self._swap(terms, part, source, sink))

        fit = await self._offload(lambda: finite(own))
        assert fit, "the trainer never leaves params that are not finite"
        if isinstance(self._codec, LatticeSwap):
            await self._codec.exchange(swap, terms.key.fragment, own, outer, into, sent)
        else:
            source, sink = Encoding(self._codec, sent), Decoding(self._codec, into)
            try:
                await swap(0, source, sink)
            finally:
                source.close()
                sink.close()
        await self._offload(lambda: check_partner(into, own))
        return _together(reports)

    async def _swap(self, terms: PartnerTerms, part: int, source: Source, sink: Sink) -> SwapReport:
        """Swap our payload of one part of the round for the partner's."""
        measured, watched = MeasuredSource(source, self._clock.now), _Watched(sink, self._clock)
        partner, key, first = terms.partner, replace(terms.key, part=part), part == 0
        told = self._own_timings(key) if first else None
        # A partner sends this part after it has received all of our previous part. On a slow uplink that is later than
        # the moment at which we received its previous part, so the start of this part may have to wait.
        start_s = START_S + (terms.wait_s if first else TRANSFER_SLACK_S)
        nbytes, slack_s = max(sink.nbytes, source.nbytes), TRANSFER_SLACK_S
        budget_s = self.budget_s(partner.peer_id, nbytes, terms.relayed)
        if terms.patience_s is not None:
            start_s, slack_s = min(start_s, terms.patience_s), min(slack_s, terms.patience_s)
        begin_by = self._clock.now() + start_s
        needs = nbytes / budget_s if terms.relayed else 0.0
        swap = self._transport.swap(partner, key, measured, watched, start_s + budget_s, terms.dial, told, needs)
        with self._meter.watching(measured.throughput, watched.throughput):
            report = await self._unless_dead(swap, terms, watched, lambda: watched.behind(begin_by, budget_s, slack_s))
        if first:
            self.rates.learn(partner.peer_id, report)
        throughput = watched.throughput
        pace = TransferTimings(throughput.first_at, self._clock.now(), measured.throughput.rate(), throughput.rate())
        return replace(report, own_timings=told, transfer_timings=pace)

    async def _unless_dead(
        self,
        swap: Awaitable[SwapReport],
        terms: PartnerTerms,
        watched: _Watched,
        behind: Callable[[], float],
    ) -> SwapReport:
        """Wait for the swap, and cancel it if the partner dies or falls behind. The side that was dialled would not
        notice the death of its partner, so the partner is called from time to time."""
        running, ended, now = asyncio.ensure_future(swap), Signal(), asyncio.get_running_loop().time
        running.add_done_callback(lambda swap: ended.set())
        try:
            in_time_s, beat_at = behind(), now() + HEARTBEAT_S
            while not await ended.wait_for(min(max(in_time_s, LEAST_S), beat_at - now())):
                in_time_s = behind()
                if now() >= beat_at:
                    await self._check(terms, running, watched)
                    beat_at = now() + (RELAYED_HEARTBEAT_S if terms.relayed and watched.begun else HEARTBEAT_S)
            return running.result()
        finally:
            await cancel_and_wait(running)

    async def _check(self, terms: PartnerTerms, running: asyncio.Future[SwapReport], watched: _Watched) -> None:
        """Call the partner. Raises PartnerLost if it does not answer for too long or has left the round, RelayBusy if
        probably no relay had room."""
        try:
            holds_us = await terms.alive()
            watched.mark_back()
        except ExchangeError as error:
            again = watched.may_come_back() or (terms.relayed and watched.missed_once())
            if running.done() or (isinstance(error, PartnerLost) and again):
                return
            raise PartnerLost(f"the partner stopped answering: {error}") from error
        if holds_us or running.done():
            return
        if terms.relayed and not watched.begun:
            raise RelayBusy("the partner let go before it began, most likely as no relay had room")
        raise PartnerLost("the partner let go of this round")


class _Watched:
    """A sink that measures whether the payload arrives fast enough, since a silent or slow partner delays our
    trainer."""

    def __init__(self, sink: Sink, clock: Clock) -> None:
        self._sink = sink
        self._clock = clock
        self.throughput = Throughput(sink.nbytes, clock.now)
        self._began = self._last = 0.0
        self._received = 0
        self._away_since: float | None = None
        """Run time of the first call that the partner did not answer; None: it answered the last one."""
        self._missed = 0
        """Number of unanswered calls in a row."""

    @property
    def nbytes(self) -> int:
        return self._sink.nbytes

    @property
    def begun(self) -> bool:
        """Whether a byte has arrived."""
        return self._began > 0

    def write(self, offset: int, data: bytes) -> None:
        self._last = self._clock.now()
        self._began = self._began or self._last
        self._received += len(data)
        self.throughput.note(self._received)
        self._sink.write(offset, data)

    def may_come_back(self) -> bool:
        """Record an unanswered call. Return whether the swap may continue if the partner answers again soon."""
        now, self._missed = self._clock.now(), self._missed + 1
        if self._away_since is None:
            self._away_since = now
        return self._began > 0 and now - self._away_since < AWAY_S

    def missed_once(self) -> bool:
        """Return whether to call once more before giving up: the relay of the call may have failed, and the next call
        takes another one."""
        return self._missed == 1

    def mark_back(self) -> None:
        """Record that the partner answers."""
        self._away_since, self._missed = None, 0

    def behind(self, begin_by: float, budget_s: float, slack_s: float) -> float:
        """Return the seconds until the partner will count as too slow if no further byte arrives. Raises PartnerSilent
        if it is too slow already.

        `begin_by`: run time by which the first byte must arrive. `budget_s`: seconds for the whole transfer, from its
        first byte. `slack_s`: seconds of the budget that may pass before the pace is checked."""
        now = self._clock.now()
        if not self._began:
            if now > begin_by:
                raise PartnerSilent("the partner was locked with us and sent nothing in time")
            return begin_by - now
        if self._received == self.nbytes:  # complete: from here on only the transport gives up on the partner
            return math.inf
        if now - self._last > AWAY_S:
            raise PartnerSilent(f"nothing came from the partner for {AWAY_S:.0f} s", Code.SILENT)
        byte_s = max(budget_s - slack_s, 1e-9) / self.nbytes
        due_at = self._began + slack_s + self._received * byte_s
        if now > due_at:
            raise PartnerSilent(f"the partner sent {self._received} of {self.nbytes} bytes, too slowly", Code.SILENT)
        return min(self._last + AWAY_S, due_at) - now


def _together(reports: list[SwapReport]) -> SwapReport:
    return SwapReport(
        sum(report.bytes_sent for report in reports),
        sum(report.bytes_received for report in reports),
        sum(report.seconds for report in reports),
        all(report.sent_all for report in reports),
        reports[0].partner_timings,
        reports[0].own_timings,
        reports[0].transfer_timings,
        _digests_together([report.digests for report in reports]),
        reports[-1].way,
    )


def _digests_together(parts: list[PayloadDigests]) -> PayloadDigests:
    received, sent = [part.received for part in parts], [part.sent for part in parts]
    return PayloadDigests(*(digest_of_parts(known) if all(known) else b"" for known in (received, sent)))
