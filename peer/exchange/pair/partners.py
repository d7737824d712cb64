"""Records the outcome of each swap with a partner in the peer table, the reputation, the diagnosis of slow peers and
the journal."""

from __future__ import annotations

from collections.abc import Callable

from peer.codes import AnyCode, Code
from peer.errors import BadPayload, ExchangeError, PartnerLost, PartnerRefused, PartnerSilent
from peer.membership.pair_receipts import PairReceipts
from peer.membership.peer_table import PeerTable
from peer.membership.reputation import Reputation
from peer.membership.slow_peers import SlowPeerMonitor
from peer.observe import events
from peer.ports.clock import Clock
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, RunId, Status, SwapReport
from peer.protocol.pair.broken_paths import BrokenPaths
from peer.protocol.pair.receipt import SwapOpinion

HELD_S = 3.0
"""Seconds within which a crash of a partner is noticed, through its connection or a missed heartbeat. A partner that
fails after holding us for longer counts as late."""
RelayGone = Callable[[PeerId, float], PeerId | None]
ASSUMED_RECORD_S = 60.0
"""Lifetime in seconds of the substitute record for a partner that is not in the directory."""


class PartnerMemory:
    """Records the outcomes of swaps for the parts of the daemon that judge and choose partners."""

    def __init__(
        self,
        run_id: RunId,
        clock: Clock,
        peer_table: PeerTable,
        reputation: Reputation,
        slow_peers: SlowPeerMonitor,
        emit: Callable[[events.Event], None],
        receipts: PairReceipts | None = None,
        relay_gone: RelayGone = lambda partner, within_s: None,
    ) -> None:
        """`receipts`: exchanges signed receipts of our swaps; None: this run has none. `relay_gone`: see
        `SwapCalls.relay_gone`."""
        self._relay_gone = relay_gone
        self._broken_paths = BrokenPaths()
        self._run_id = run_id
        self.clock = clock
        self._peer_table = peer_table
        self._reputation = reputation
        self._slow_peers = slow_peers
        self._emit = emit
        self._receipts = receipts

    def record_of(self, peer: PeerId) -> PeerRecord:
        """Return the peer's record. A locked partner that called us may not be in the directory yet. It gets a
        substitute record without addresses, which suffices because the partner has to dial."""
        if (known := self._peer_table.peers.get(peer)) is not None:
            return known
        now = self.clock.now()
        return PeerRecord(peer, self._run_id, (), False, 1, 1, 0, 0.0, Status.TRAINING, now, now + ASSUMED_RECORD_S)

    def exchanged(self, partner: PeerId, key: RoundKey, report: SwapReport) -> None:
        """Record a successful swap."""
        self._peer_table.acquaintance.met(partner, key.round)
        self._peer_table.detector.exchanged(partner)
        self._reputation.stranger_budget.mark_known(partner)
        self._slow_peers.exchanged(partner, report)

    def failed(self, partner: PeerId, key: RoundKey, error: ExchangeError, held_s: float) -> None:
        """Record a failed swap, and penalize the partner unless it refused or its relay is to blame. `held_s`: seconds
        for which the partner held us up."""
        self._reputation.held_up(partner, held_s)
        if (relay := self._to_blame(partner, error, held_s)) is not None:
            reason = f"the relay {relay} was gone in the middle of it: {error}"
            self._emit(events.PartnerFailed(peer=partner, round=key.round, code=Code.PATH, reason=reason))
            return
        self._slow_peers.failed(partner, error)
        code: AnyCode
        if isinstance(error, PartnerRefused):  # a refusal is no offence
            code = error.code
        else:
            code = offence = _offence_of(error, held_s)
            self._reputation.penalize(partner, offence, str(error))
        self._emit(events.PartnerFailed(peer=partner, round=key.round, code=code, reason=str(error)))

    def released(self, partner: PeerId, key: RoundKey, *, heard: bool) -> None:
        """Journal a locked partner that we released before a byte was sent. `heard`: whether it answered our
        withdrawal."""
        self._emit(events.PartnerLetGo(peer=partner, round=key.round, heard=heard))

    def _to_blame(self, partner: PeerId, error: ExchangeError, held_s: float) -> PeerId | None:
        """Return the relay that is to blame for the failed swap in place of the partner. None: no relay failed, or a
        relay was blamed in place of this partner lately."""
        if not isinstance(error, PartnerLost) or (relay := self._relay_gone(partner, held_s)) is None:
            return None
        return relay if self._broken_paths.excuses(partner, self.clock.now()) else None

    def judged(
        self, partner: PeerId, key: RoundKey, report: SwapReport, opinion: SwapOpinion, *, dialled: bool
    ) -> None:
        """Record whether the partner's params were accepted, for the trust in it, and create the receipt of the
        swap."""
        if opinion.accepted:
            self._reputation.proven.accepted(partner)
            self._reputation.last_choices.accepted(partner)
        else:
            self._reputation.last_choices.refused(partner, key.round)
        if self._receipts is not None:
            self._receipts.record_swap(partner, key, report, opinion, dialled=dialled)


def _offence_of(error: ExchangeError, held_s: float) -> Code:
    """Return the code of the partner's offence. A partner that disconnects just before it would count as late is
    penalized as late."""
    if isinstance(error, BadPayload | PartnerSilent):
        return error.code
    return Code.LATE if held_s > HELD_S else Code.LOST
