"""What the pool of connections asks of the relays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from peer.protocol.messages import PeerId, PeerRecord, RelayAddress
from peer.protocol.relay.testimony import RelayFault
from peer.transport.relay.tunnel import RelayTunnel


class Circuits(Protocol):
    """The way to closed peers."""

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        """Make a tunnel to a closed peer over this relay, not started."""

    def standing(self, relays: Iterable[PeerId], to: PeerId) -> Sequence[PeerId]:
        """Return which of these relays are to be used for a peer, the best first."""

    def known(self, peer: PeerId) -> PeerRecord | None:
        """Return the newest record of a peer that is known."""

    def may_punch(self, target: PeerId) -> bool:
        """Return whether a punched connection to a closed peer may be had."""

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault) -> None:
        """Note that a relay did not lead to a peer."""

    def tried(self, relay: PeerId, found: Mapping[PeerId, RelayFault | None]) -> None:
        """Note which peers, that are there, did not answer over a relay, and how. None: it answered."""
