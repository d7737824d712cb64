"""Receipts of swaps: after a swap the two partners exchange signatures about it. No round waits for that.

The side that dialled the swap calls; the other one answers. A partner that does not answer, or has not judged the
params yet, is called once more in a later round and then given up. At most one signature is verified for each swap of
our own, so other peers cannot make us verify more. Once a round, a peer that is not proven is asked for the receipts
that others have signed for it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from peer.aio.events import Signal
from peer.errors import ExchangeError, PartnerRefused
from peer.membership.receipt_log import ReceiptLog
from peer.observe import events
from peer.observe.status.value import ReceiptsStatus
from peer.ports.transport import SwapCalls
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, SwapReport
from peer.protocol.pair.receipt import (
    ReceiptBounds,
    ShownReceipt,
    SignedOpinion,
    SwapOpinion,
    SwapStatement,
    Transferred,
)
from peer.protocol.pair.receipt_chain import Countersigned

CALL_S = 5.0
TRIES = 2
MOST_SWAPS = 64
"""Swaps of ours that are remembered while their receipts may still come."""
MOST_EARLY = 64
"""Partners whose signature is kept although we have not judged their params yet."""
MOST_ASKED = 1024
"""Most peers that are remembered as asked for their receipts."""
ASK_AGAIN = 32
"""Rounds after which a peer may be asked for its receipts again."""


OLDEST = 1024
"""Receipts of others count only if they are at most this many rounds old. For older rounds this peer does not remember
which receipts it has counted, so that one receipt could count for two peers."""


class Trust(Protocol):
    """The peers that are proven to us, and how receipts make others so."""

    def __contains__(self, peer: PeerId) -> bool: ...

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None:
        """Record a receipt that `by`, a proven peer, has signed for this peer and exchange."""


class NoTrust:
    """A `Trust` that contains no peer."""

    def __contains__(self, peer: PeerId) -> bool:
        return False

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None: ...


@dataclass(slots=True)
class _Swap:
    """A swap of ours, and the state of its receipt."""

    statement: SwapStatement
    signature: bytes
    asks: bool
    """Whether this peer makes the call."""
    tries: int = 0
    asked_in: int = -1
    """Our round in which the partner was asked last; -1: never."""
    settled: bool = False
    """Whether nothing more is to be done: the receipt is stored, or was given up."""

    def signed_opinion(self) -> SignedOpinion:
        return SignedOpinion(self.statement.key, self.statement.opinion, self.signature)


class PairReceipts:
    """Exchanges signatures with partners, and keeps what they have signed in `log`. `peers`: returns the live
    records."""

    def __init__(
        self,
        log: ReceiptLog,
        transport: SwapCalls,
        peers: Callable[[], Mapping[PeerId, PeerRecord]],
        emit: Callable[[events.Event], None],
        trust: Trust | None = None,
        bounds: ReceiptBounds | None = None,
    ) -> None:
        """`trust`: the proven peers. `bounds`: limits of what receipts of this run can plausibly say; None: no
        limits."""
        self._log = log
        self._transport = transport
        self._peers = peers
        self._emit = emit
        self._trust = trust or NoTrust()
        self._bounds = bounds
        self._swaps: OrderedDict[tuple[PeerId, RoundKey], _Swap] = OrderedDict()
        self._early: OrderedDict[PeerId, SignedOpinion] = OrderedDict()
        self._asked: OrderedDict[PeerId, int] = OrderedDict()
        """For each peer that was asked for its receipts: the round of ours."""
        self._round = -1
        self._refused = 0
        self._due = Signal()

    @property
    def kept(self) -> int:
        """Number of receipts in the log."""
        return self._log.entries

    def report(self) -> ReceiptsStatus:
        """Return the numbers of receipts for `peer status`."""
        waiting = sum(not swap.settled and swap.tries < TRIES for swap in self._swaps.values())
        return ReceiptsStatus(self.kept, waiting, self._refused)

    def record_swap(
        self, partner: PeerId, key: RoundKey, report: SwapReport, opinion: SwapOpinion, *, dialled: bool
    ) -> None:
        """Sign a swap, and exchange signatures with the partner later. Does nothing if the partner did not get our
        whole payload, since it signs nothing then."""
        digests = report.digests
        if not (report.sent_all and digests.received and digests.sent):
            return
        statement = SwapStatement(
            run_id=self._log.run_id,
            key=key,
            signer=self._log.me,
            partner=partner,
            received=Transferred(digests.received, report.bytes_received),
            sent=Transferred(digests.sent, report.bytes_sent),
            opinion=opinion,
        )
        swap = _Swap(statement, self._log.signer.sign(statement.to_bytes()), asks=dialled)
        self._swaps[partner, key] = swap
        if len(self._swaps) > MOST_SWAPS:
            self._swaps.popitem(last=False)
        self._round = key.round
        if (early := self._early.get(partner)) is not None and early.key == key:
            self._settle(swap, self._early.pop(partner))
        self._due.set()

    def on_receipt(self, sender: PeerId, signed: SignedOpinion) -> SignedOpinion | None:
        """Take a partner's signature, and return ours; None: we have not signed that swap yet."""
        swap = self._swaps.get((sender, signed.key))
        if swap is None:
            self._early[sender] = signed
            self._early.move_to_end(sender)
            if len(self._early) > MOST_EARLY:
                self._early.popitem(last=False)
            return None
        self._settle(swap, signed)
        return swap.signed_opinion()

    def shown(self) -> list[ShownReceipt]:
        """Return the receipts that others have signed for us."""
        return self._log.shown()

    async def run(self) -> None:
        """Call partners for their signatures until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            for swap in self._swaps_to_sign():
                await self._request_signature(swap)
            await self._request_receipts()

    def _swaps_to_sign(self) -> list[_Swap]:
        return [
            swap
            for swap in self._swaps.values()
            if swap.asks and not swap.settled and swap.tries < TRIES and swap.asked_in != self._round
        ]

    async def _request_signature(self, swap: _Swap) -> None:
        record = self._peers().get(swap.statement.partner)
        if record is None or swap.settled:
            return
        swap.tries, swap.asked_in = swap.tries + 1, self._round
        try:
            signed_opinion = await self._transport.receipt(record, swap.signed_opinion(), CALL_S)
        except PartnerRefused:
            swap.settled = True
            return
        except ExchangeError:  # the partner is called once more in a later round
            return
        if signed_opinion is not None:
            self._settle(swap, signed_opinion)

    def _settle(self, swap: _Swap, signed_opinion: SignedOpinion) -> None:
        """Keep the partner's signature if it is valid. Only the first signature is considered, valid or not."""
        if swap.settled:
            return
        swap.settled = True
        receipt = Countersigned(swap.statement, signed_opinion.opinion, signed_opinion.signature)
        if receipt.holds(self._log.signer.verify):
            self._log.append(receipt)
            return
        self._refused += 1
        statement = swap.statement
        reason = "it did not sign the swap as we saw it"
        self._emit(events.ReceiptRefused(peer=statement.partner, round=statement.key.round, reason=reason))

    async def _request_receipts(self) -> None:
        """Ask one peer that is not proven and was not asked lately for the receipts that others have signed for it."""
        peers = self._peers()
        if not any(peer in self._trust for peer in peers):
            return
        stranger = next((peer for peer in peers if self._is_due(peer)), None)
        if stranger is None:
            return
        self._asked[stranger] = self._round
        self._asked.move_to_end(stranger)
        if len(self._asked) > MOST_ASKED:
            self._asked.popitem(last=False)
        try:
            shown = await self._transport.shown_receipts(peers[stranger], CALL_S)
        except ExchangeError:
            return
        for receipt in shown:
            self._count_receipt(stranger, receipt)

    def _is_due(self, peer: PeerId) -> bool:
        return peer not in self._trust and self._round - self._asked.get(peer, -ASK_AGAIN) >= ASK_AGAIN

    def _count_receipt(self, stranger: PeerId, receipt: ShownReceipt) -> None:
        """Count a receipt if a proven peer has signed it for this stranger in this run."""
        statement = receipt.statement
        names_it = statement.partner == stranger and statement.run_id == self._log.run_id and statement.opinion.accepted
        if not names_it or statement.signer not in self._trust or statement.key.round < self._round - OLDEST:
            return
        if self._bounds is not None and self._bounds.refusal_reason(statement):
            return
        if self._log.signer.verify(statement.signer, statement.to_bytes(), receipt.signature):
            self._trust.vouched(stranger, statement.signer, statement.key)
