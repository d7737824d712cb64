"""A peer's summary of itself, as frozen values. All of it is a claim but for the receipts, which partners signed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peer.protocol.messages import MAX_ROUND, PeerId, RunId, Status
from peer.protocol.pair.receipt import ShownReceipt

MAX_SUMMARY_BYTES = 4096
MAX_RECEIPTS = 8
"""Receipts in one summary."""
MAX_WORD = 32
"""Characters of the device's kind, and of the version."""
MAX_COUNT = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSummary:
    """What one peer says of itself. Counts are sums since its home first joined the run."""

    peer_id: PeerId
    """Of the key that signed."""
    run_id: RunId
    issued_at: float
    """Run time, seconds since the epoch. The later issued of two summaries of one peer wins."""
    round: int
    status: Status
    tokens: int = 0
    """Processed in all."""
    tokens_per_s: float = 0.0
    loss: float | None = None
    """Nats a token, of the last evaluation. None: there was none."""
    loss_round: int = 0
    due: int = 0
    """Rounds that were due. The next four count their outcomes."""
    exchanged: int = 0
    solo: int = 0
    refused: int = 0
    missed: int = 0
    bytes_up: int = 0
    """Of payloads."""
    bytes_down: int = 0
    device: str = ""
    """Its kind, such as `cpu`."""
    version: str = ""
    """Of the program."""
    receipts: tuple[ShownReceipt, ...] = ()
    """The newest that partners signed and this node has not been shown, at most `MAX_RECEIPTS`."""

    @property
    def participation(self) -> float | None:
        """The exchanged part of the due rounds, 0 to 1. None: no round was due."""
        return min(1.0, self.exchanged / self.due) if self.due else None

    def invalid_reason(self) -> str:
        """Return what is wrong with its form, for a person; empty: nothing."""
        if self.round > MAX_ROUND or self.loss_round > MAX_ROUND or max(self._counts()) > MAX_COUNT:
            return "a number beyond all bounds"
        if not math.isfinite(self.issued_at) or not 0 <= self.tokens_per_s < MAX_COUNT:
            return "a number that is not finite, or below 0"
        if any(len(word) > MAX_WORD or not word.isascii() or not word.isprintable() for word in self._words()):
            return "a word that cannot be shown"
        if len(self.receipts) > MAX_RECEIPTS:
            return f"{len(self.receipts)} receipts; at most {MAX_RECEIPTS} are taken"
        foreign = (
            one.statement.run_id != self.run_id or one.statement.partner != self.peer_id for one in self.receipts
        )
        return "a receipt of another run or peer" if any(foreign) else ""

    def _counts(self) -> tuple[int, ...]:
        rounds = (self.due, self.exchanged, self.solo, self.refused, self.missed)
        return (*rounds, self.tokens, self.bytes_up, self.bytes_down)

    def _words(self) -> tuple[str, ...]:
        return self.device, self.version
