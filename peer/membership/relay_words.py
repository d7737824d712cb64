"""Verifies the statements of relays about the address from which a closed peer calls. A statement is valid for an hour
and comes with every record of its peer, so the outcome of a verification is cached."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping

from peer.membership.reputation import Reputation
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.swarm.relay_word import Verify, attested_block

MAX_CHECKED = 4096
"""Most verifications that are cached."""


class RelayWords:
    """Determines the address block that a closed peer counts for, from the statements of trusted relays."""

    def __init__(self, nodes: Callable[[], Container[PeerId]], verify: Verify, reputation: Reputation) -> None:
        """`nodes`: returns the operator's nodes."""
        self._nodes = nodes
        self._verify = verify
        self._reputation = reputation
        self._checked: OrderedDict[tuple[PeerId, bytes, bytes], bool] = OrderedDict()

    def block_of(self, record: PeerRecord, records: Mapping[PeerId, PeerRecord], now: float) -> str:
        """Return the address block of a closed peer; empty: no trusted relay vouches for it. `records`: the live
        records."""
        trusted = [relay.peer_id for relay in record.relays if self._reputation.trusts(relay.peer_id)]
        return attested_block(record, now, self._nodes(), trusted, records, self._holds)

    def _holds(self, relay: PeerId, raw: bytes, signature: bytes) -> bool:
        key = (relay, raw, signature)
        found = self._checked.get(key)
        if found is None:
            found = self._checked[key] = self._verify(relay, raw, signature)
            if len(self._checked) > MAX_CHECKED:
                self._checked.popitem(last=False)
        return found
