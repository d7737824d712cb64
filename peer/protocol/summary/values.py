"""A peer's summary of itself, as a frozen value. All of it is unverified, except the receipts, which partners
signed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from peer.protocol.messages import MAX_ROUND, PeerId, RunId, Status
from peer.protocol.pair.receipt import ShownReceipt

MAX_SUMMARY_BYTES = 4096
MAX_RECEIPTS = 8
"""Maximum receipts in one summary."""
MAX_WORD = 32
"""Maximum characters of `device` and `version`."""
MAX_COUNT = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSummary:
    """What one peer reports about itself. Counts are sums since its home first joined the run."""

    peer_id: PeerId
    """Peer id of the key that signed the summary."""
    run_id: RunId
    issued_at: float
    """Run time in seconds since the epoch. Of two summaries of one peer, the later issued is valid."""
    round: int
    status: Status
    tokens: int = 0
    """Tokens processed in total."""
    tokens_per_s: float = 0.0
    loss: float | None = None
    """Loss of the last evaluation in nats per token. None: no evaluation yet."""
    loss_round: int = 0
    due: int = 0
    """Number of rounds that were due. `exchanged`, `solo`, `refused` and `missed` count their outcomes."""
    exchanged: int = 0
    solo: int = 0
    refused: int = 0
    missed: int = 0
    bytes_up: int = 0
    """Bytes of payloads."""
    bytes_down: int = 0
    device: str = ""
    """Kind of device, such as `cpu`."""
    version: str = ""
    """Version of the program."""
    receipts: tuple[ShownReceipt, ...] = ()
    """The newest receipts that partners signed and that were not sent to this node yet, at most `MAX_RECEIPTS`."""

    @property
    def participation(self) -> float | None:
        """Fraction of the due rounds with an exchange, 0 to 1. None: no round was due."""
        return min(1.0, self.exchanged / self.due) if self.due else None

    def invalid_reason(self) -> str:
        """Return why the summary is malformed, for people to read; empty: it is not."""
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
