"""Receipts of swaps: after each one the two partners exchange their signatures. No round waits for it.

The side that dialled the swap asks; the other one answers. A partner that has not decided yet, or does not answer, is
asked once more in a later round, and then forgotten. A signature is checked at most once a swap of our own, so nobody
can have us check more. Peers that are not proven yet are asked for the receipts that others signed for them, one a
round."""

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
"""Swaps of ours whose receipts may still come."""
MOST_EARLY = 64
"""Partners that signed before we decided."""
MOST_ASKED = 1024
"""Peers that are remembered as asked for their receipts."""
ASK_AGAIN = 32
"""Rounds of ours after which a peer may be asked again for its receipts."""


OLDEST = 1024
"""Rounds of ours before the last one, of which receipts for others count: older ones are not remembered, and could be
signed once more for somebody else."""


class Trust(Protocol):
    """The peers that are proven to us, and how others become so."""

    def __contains__(self, peer: PeerId) -> bool: ...

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None:
        """Note a receipt of this exchange that `by`, a proven peer, signed for this peer."""


class NoTrust:
    """A `Trust` in nobody."""

    def __contains__(self, peer: PeerId) -> bool:
        return False

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None: ...


@dataclass(slots=True)
class _Swap:
    """A swap of ours, and what came of its receipt."""

    statement: SwapStatement
    signature: bytes
    asks: bool
    """The call is ours to make."""
    tries: int = 0
    asked_in: int = -1
    """Round of ours in which the partner was asked last."""
    settled: bool = False
    """The receipt is kept, or will never be."""

    def signed_opinion(self) -> SignedOpinion:
        return SignedOpinion(self.statement.key, self.statement.opinion, self.signature)


class PairReceipts:
    """Exchanges signatures with partners, and keeps what they signed in `log`. `peers`: the live ones."""

    def __init__(
        self,
        log: ReceiptLog,
        transport: SwapCalls,
        peers: Callable[[], Mapping[PeerId, PeerRecord]],
        emit: Callable[[events.Event], None],
        trust: Trust | None = None,
        bounds: ReceiptBounds | None = None,
    ) -> None:
        """`bounds`: what receipts of the run can say; None: anything."""
        self._log = log
        self._transport = transport
        self._peers = peers
        self._emit = emit
        self._trust = trust or NoTrust()
        self._bounds = bounds
        self._swaps: OrderedDict[tuple[PeerId, RoundKey], _Swap] = OrderedDict()
        self._early: OrderedDict[PeerId, SignedOpinion] = OrderedDict()
        self._asked: OrderedDict[PeerId, int] = OrderedDict()
        """In which round of ours."""
        self._round = -1
        self._refused = 0
        self._due = Signal()

    @property
    def kept(self) -> int:
        """Receipts in the chain."""
        return self._log.entries

    def report(self) -> ReceiptsStatus:
        """For `peer status`."""
        waiting = sum(not swap.settled and swap.tries < TRIES for swap in self._swaps.values())
        return ReceiptsStatus(self.kept, waiting, self._refused)

    def record_swap(
        self, partner: PeerId, key: RoundKey, report: SwapReport, opinion: SwapOpinion, *, dialled: bool
    ) -> None:
        """Sign what came of a swap. A partner that did not get our payload signs nothing, and is not asked."""
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
        """Take a partner's signature; return ours, or None while we have none."""
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
        """Return receipts that others signed for us."""
        return self._log.shown()

    async def run(self) -> None:
        """Ask partners for their signatures, for ever; the owner cancels."""
        while True:
            await self._due.wait()
            self._due.clear()
            for swap in self._to_ask():
                await self._ask(swap)
            await self._ask_stranger()

    def _to_ask(self) -> list[_Swap]:
        return [
            swap
            for swap in self._swaps.values()
            if swap.asks and not swap.settled and swap.tries < TRIES and swap.asked_in != self._round
        ]

    async def _ask(self, swap: _Swap) -> None:
        record = self._peers().get(swap.statement.partner)
        if record is None or swap.settled:
            return
        swap.tries, swap.asked_in = swap.tries + 1, self._round
        try:
            signed_opinion = await self._transport.receipt(record, swap.signed_opinion(), CALL_S)
        except PartnerRefused:
            swap.settled = True
            return
        except ExchangeError:  # it is asked once more
            return
        if signed_opinion is not None:
            self._settle(swap, signed_opinion)

    def _settle(self, swap: _Swap, signed_opinion: SignedOpinion) -> None:
        """Keep the partner's signature, if it holds. The first one counts, whatever it is."""
        if swap.settled:
            return
        swap.settled = True
        receipt = Countersigned(swap.statement, signed_opinion.opinion, signed_opinion.signature)
        if receipt.holds(self._log.signer.verify):
            self._log.keep(receipt)
            return
        self._refused += 1
        statement = swap.statement
        reason = "it did not sign the swap as we saw it"
        self._emit(events.ReceiptRefused(peer=statement.partner, round=statement.key.round, reason=reason))

    async def _ask_stranger(self) -> None:
        """Ask one peer that is not proven, and was not asked lately, what others signed for it."""
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
        """Count a receipt that a proven peer signed for this stranger in this run."""
        statement = receipt.statement
        names_it = statement.partner == stranger and statement.run_id == self._log.run_id and statement.opinion.accepted
        if not names_it or statement.signer not in self._trust or statement.key.round < self._round - OLDEST:
            return
        if self._bounds is not None and self._bounds.refusal_reason(statement):
            return
        if self._log.signer.verify(statement.signer, statement.to_bytes(), receipt.signature):
            self._trust.vouched(stranger, statement.signer, statement.key)
