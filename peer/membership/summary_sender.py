"""Sends our signed summary to the run's nodes, about every 80 s and soon after our state has changed.

A summary goes to at most three nodes, and each of them needs summaries of all peers for its page. If there are more
nodes, all peers choose the same three, as far as these answer. The traffic to each stays below a megabyte a day. A
summary that a node misses is not repeated, because the next one has newer numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.errors import ExchangeError
from peer.ports.clock import Clock
from peer.ports.handler import UNWANTED
from peer.ports.transport import SwarmCalls
from peer.protocol.messages import NODES, PeerId, PeerRecord
from peer.protocol.pair.receipt import ShownReceipt
from peer.protocol.summary.pace import SummaryPace

MOST_NODES = 3
RECEIPT_EVERY = 2
"""One summary in this many carries a receipt."""
LOOK_S = 2.0
"""Seconds between two checks of our own state."""
CALL_S = 10.0
FAILED_S = 300.0
"""Seconds for which a node that did not answer comes after the others."""
UNWANTED_S = 3600.0
"""Seconds for which a node that does not accept summaries, such as one of an older version, gets none."""


class KeptReceipts(Protocol):
    """The receipts that partners have signed for us."""

    def shown(self) -> list[ShownReceipt]:
        """Return the newest receipt of each of a few signers."""


@dataclass(frozen=True, slots=True)
class OwnSummary:
    """Makes our own summary."""

    state: Callable[[], Hashable]
    """Returns a value whose change nodes should learn soon."""
    sealed: Callable[[tuple[ShownReceipt, ...]], bytes]
    """Makes and signs the summary of this moment, with these receipts."""
    receipts: KeptReceipts | None = None
    """None: this run has no receipts."""


@dataclass(slots=True)
class SummaryTarget:
    """One node that gets our summaries, and what it has got so far."""

    pace: SummaryPace
    state: Hashable = None
    """Our state as of the last summary for this node."""
    accepted: int = 0
    """Number of summaries that the node has accepted."""
    failed_until: float = -math.inf
    """Run time until which this node comes after the others."""
    left_alone_until: float = -math.inf
    """Run time until which this node gets no summaries."""

    def is_due(self, state: Hashable, now: float) -> bool:
        """Return whether a summary is due now. If so, it counts as sent."""
        if not self.pace.is_due(now, changed=state != self.state):
            return False
        self.state = state
        return True

    def failed(self, now: float) -> None:
        """Record that the node did not answer."""
        self.failed_until = now + FAILED_S

    def answered(self, dropped: str, now: float) -> None:
        """Record the node's answer. `dropped`: why it dropped the summary; empty: it accepted it."""
        if dropped == UNWANTED:
            self.left_alone_until = now + UNWANTED_S
        elif not dropped:
            self.accepted += 1

    def receipt_of(self, shown: Sequence[ShownReceipt]) -> tuple[ShownReceipt, ...]:
        """Return the receipt for the next summary; empty: it carries none. One in `RECEIPT_EVERY` accepted summaries
        carries a receipt, from each signer in turn. That is enough, since a node needs receipts from two address blocks
        only."""
        turn, rest = divmod(self.accepted, RECEIPT_EVERY)
        return (shown[turn % len(shown)],) if shown and not rest else ()


class SummarySender:
    """Sends this peer's signed summary to the nodes of the run, periodically and after a change of its state.

    `records`: returns the records of all known peers. `nodes`: returns the peers that the operator has named as nodes.
    `pace`: creates the pace of one node."""

    def __init__(
        self,
        transport: SwarmCalls,
        clock: Clock,
        pace: Callable[[], SummaryPace],
        own_summary: OwnSummary,
        records: Callable[[], Sequence[PeerRecord]],
        nodes: Callable[[], frozenset[PeerId]],
    ) -> None:
        self._transport, self._clock, self._pace = transport, clock, pace
        self._own_summary, self._records, self._nodes = own_summary, records, nodes
        self._targets: dict[PeerId, SummaryTarget] = {}

    async def run(self) -> None:
        """Send summaries until cancelled."""
        while True:
            state = self._own_summary.state()
            for node, target in self._targets_to_send():
                if target.is_due(state, self._clock.now()):
                    await self._send(node, target)
            await self._clock.sleep(LOOK_S)

    def _targets_to_send(self) -> list[tuple[PeerRecord, SummaryTarget]]:
        """Return the nodes that get summaries now, at most `MOST_NODES`. Nodes that did not answer come last, so that
        they do not delay the others."""
        now, named = self._clock.now(), self._nodes()
        self._targets = {peer: target for peer, target in self._targets.items() if peer in named}
        found = [
            (record, self._targets.setdefault(record.peer_id, SummaryTarget(self._pace())))
            for record in self._records()
            if record.peer_id in named and record.status in NODES and record.reach
        ]
        willing = [(record, target) for record, target in found if target.left_alone_until <= now]
        return sorted(willing, key=lambda one: (one[1].failed_until > now, one[0].peer_id))[:MOST_NODES]

    async def _send(self, node: PeerRecord, target: SummaryTarget) -> None:
        """Send one summary. Never raises for a node that does not accept it."""
        receipts = self._own_summary.receipts
        raw = self._own_summary.sealed(target.receipt_of([] if receipts is None else receipts.shown()))
        try:
            dropped = await self._transport.send_summary(node, raw, CALL_S)
        except ExchangeError:
            target.failed(self._clock.now())
        else:
            target.answered(dropped, self._clock.now())
