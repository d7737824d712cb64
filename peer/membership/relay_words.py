"""The words of relays on where closed peers call from, checked. A word holds for an hour and comes with every record of
its peer, so what a check came to is kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Mapping

from peer.membership.reputation import Reputation
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.swarm.relay_word import Verify, vouched_block

MAX_CHECKED = 4096
"""Checks that are remembered."""


class RelayWords:
    """Tells for which address block a closed peer counts."""

    def __init__(self, nodes: Callable[[], Container[PeerId]], verify: Verify, reputation: Reputation) -> None:
        """`nodes`: returns the operator's."""
        self._nodes = nodes
        self._verify = verify
        self._reputation = reputation
        self._checked: OrderedDict[tuple[PeerId, bytes, bytes], bool] = OrderedDict()

    def block_of(self, record: PeerRecord, records: Mapping[PeerId, PeerRecord], now: float) -> str:
        """Return the block, empty: no relay speaks for the peer. `records`: the live ones."""
        trusted = [relay.peer_id for relay in record.relays if self._reputation.trusts(relay.peer_id)]
        return vouched_block(record, now, self._nodes(), trusted, records, self._holds)

    def _holds(self, relay: PeerId, raw: bytes, signature: bytes) -> bool:
        key = (relay, raw, signature)
        found = self._checked.get(key)
        if found is None:
            found = self._checked[key] = self._verify(relay, raw, signature)
            if len(self._checked) > MAX_CHECKED:
                self._checked.popitem(last=False)
        return found
