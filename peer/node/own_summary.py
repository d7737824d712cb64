"""Makes the summaries that this daemon sends to the operator's nodes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from peer import __version__
from peer.membership.pair_receipts import PairReceipts
from peer.membership.summary_sender import OwnSummary, SummarySender
from peer.node.open import OpenNode
from peer.node.upload_quota import UploadQuota
from peer.observe import events
from peer.observe.journal import Journal
from peer.protocol.messages import PeerId, Status
from peer.protocol.pair.receipt import ShownReceipt
from peer.protocol.summary.pace import SummaryPace
from peer.protocol.summary.values import MAX_WORD, PeerSummary
from peer.rounds.status import RoundStatus
from peer.signed_summary import seal_summary
from peer.trainer.client import TrainerClient


class SummarySource:
    """Makes this peer's summaries. A journal listener, from which it learns the trainer's device."""

    def __init__(
        self,
        node: OpenNode,
        trainer: TrainerClient,
        journal: Journal,
        live: RoundStatus,
        quota: UploadQuota,
    ) -> None:
        self._node, self._trainer, self._journal = node, trainer, journal
        self._round_status, self._quota = live, quota
        self._device = ""

    def on_event(self, event: events.Event, t: float) -> None:
        """Store the trainer's device. `t`: time of the event."""
        if isinstance(event, events.TrainerStarted):
            self._device = event.device.split(":")[0][:MAX_WORD]

    def state(self) -> tuple[Status, bool, bool]:
        """Return the facts whose change is worth an early summary: the status, whether an evaluation exists, and
        whether an exchange succeeded."""
        totals = self._journal.totals
        return self._status(), bool(totals.val_loss), totals.rounds.get("exchanged", 0) > 0

    def _status(self) -> Status:
        return self._round_status.announced(self._quota.blocked_reason())

    def sealed(self, receipts: tuple[ShownReceipt, ...]) -> bytes:
        """Make and sign a summary of the present state. `receipts`: receipts to include."""
        return seal_summary(self.summary(receipts), self._node.local.identity)

    def summary(self, receipts: tuple[ShownReceipt, ...]) -> PeerSummary:
        """Make a summary of the present state."""
        totals, local = self._journal.totals, self._node.local
        loss_round, loss, _ = totals.val_loss[-1] if totals.val_loss else (0, math.nan, math.nan)
        rate = self._trainer.progress.tokens_per_s
        return PeerSummary(
            peer_id=local.me,
            run_id=local.run_id,
            issued_at=local.clock.now(),
            round=self._round_status.round,
            status=self._status(),
            tokens=self._trainer.counters().tokens,
            tokens_per_s=rate if math.isfinite(rate) else 0.0,
            loss=loss if math.isfinite(loss) else None,
            loss_round=loss_round,
            due=totals.rounds.get("due", 0),
            exchanged=totals.rounds.get("exchanged", 0),
            solo=totals.rounds.get("solo", 0),
            refused=totals.rounds.get("refused", 0),
            missed=totals.rounds.get("missed", 0),
            bytes_up=totals.bytes_sent,
            bytes_down=totals.bytes_received,
            device=self._device,
            version=__version__[:MAX_WORD],
            receipts=receipts,
        )

    def sender(self, receipts: PairReceipts | None, nodes: Callable[[], frozenset[PeerId]]) -> SummarySender:
        """Return the part that sends these summaries to the nodes that `nodes` returns."""
        node = self._node
        return SummarySender(
            node.transport,
            node.local.clock,
            lambda: SummaryPace(random.Random()),
            OwnSummary(self.state, self.sealed, receipts),
            lambda: list(node.directory.known().values()),
            nodes,
        )
