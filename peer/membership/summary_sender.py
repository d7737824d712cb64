"""Sends our signed summary to a node of the run: every 80 s or so, and soon when our state has changed.

Of several nodes all peers tell the same one, as far as it answers them: a line to each would cost too much. A node that
does not answer misses a summary. The next one tells the newest numbers, so none is sent later."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.errors import ExchangeError
from peer.ports.clock import Clock
from peer.ports.handler import UNWANTED
from peer.ports.transport import Transport
from peer.protocol.messages import NODES, PeerId, PeerRecord
from peer.protocol.pair.receipt import ShownReceipt
from peer.protocol.summary.pace import SummaryPace
from peer.protocol.summary.values import MAX_RECEIPTS

LOOK_S = 2.0
"""Seconds between two looks at our own state."""
CALL_S = 10.0
FAILED_S = 300.0
"""Seconds for which other nodes come before one that did not answer."""
UNWANTED_S = 3600.0
"""Seconds for which a node is left alone that takes no summaries, such as one of an older version."""


class KeptReceipts(Protocol):
    """The receipts that partners signed for us."""

    def since(self, number: int) -> list[tuple[int, ShownReceipt]]:
        """Return the newest ones behind this number, each with its own, ascending; the oldest may be missing."""


@dataclass(frozen=True, slots=True)
class OwnWord:
    """What we say of ourselves."""

    state: Callable[[], Hashable]
    """Returns what nodes should hear soon when it is another."""
    sealed: Callable[[tuple[ShownReceipt, ...]], bytes]
    """Makes and signs the summary of this moment, with these receipts."""
    receipts: KeptReceipts | None = None
    """None: partners sign nothing in this run."""


class SummarySender:
    """`records`: the peers that we know of. `nodes`: those among them that the operator's word names."""

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        pace: SummaryPace,
        word: OwnWord,
        records: Callable[[], Sequence[PeerRecord]],
        nodes: Callable[[], frozenset[PeerId]],
    ) -> None:
        self._transport, self._clock, self._pace = transport, clock, pace
        self._word, self._records, self._nodes = word, records, nodes
        self._said: Hashable = None
        self._shown: dict[PeerId, int] = {}
        """Number of the last receipt that a node has taken."""
        self._left_alone: dict[PeerId, float] = {}
        self._failed: dict[PeerId, float] = {}
        """Until when it comes behind the others."""

    async def run(self) -> None:
        """For ever; the owner cancels."""
        while True:
            state = self._word.state()
            node = self._node()
            if node is not None and self._pace.is_due(self._clock.now(), changed=state != self._said):
                self._said = state
                await self._send(node)
            await self._clock.sleep(LOOK_S)

    def _node(self) -> PeerRecord | None:
        """Return the node to tell; None: there is none."""
        now, wanted = self._clock.now(), self._nodes()
        found = [
            record for record in self._records() if record.peer_id in wanted and record.status in NODES and record.reach
        ]
        willing = [record for record in found if self._left_alone.get(record.peer_id, now) <= now]
        return min(willing, key=lambda one: (self._failed.get(one.peer_id, now) > now, one.peer_id), default=None)

    async def _send(self, node: PeerRecord) -> None:
        """Send one summary. Never raises for a node that does not take it."""
        peer, receipts = node.peer_id, self._word.receipts
        waiting = [] if receipts is None else receipts.since(self._shown.get(peer, 0))[:MAX_RECEIPTS]
        going = waiting[: self._pace.receipts(len(waiting), self._clock.now())]
        raw = self._word.sealed(tuple(receipt for _, receipt in going))
        try:
            dropped = await self._transport.send_summary(node, raw, CALL_S)
        except ExchangeError:
            self._failed[peer] = self._clock.now() + FAILED_S
            return
        if dropped == UNWANTED:
            self._left_alone[peer] = self._clock.now() + UNWANTED_S
        elif not dropped and going:
            self._shown[peer] = going[-1][0]
