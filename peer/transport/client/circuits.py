"""The interface between the pool of connections and the relays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from peer.protocol.messages import PeerId, PeerRecord, RelayAddress
from peer.protocol.relay.testimony import RelayFault
from peer.transport.relay.tunnel import RelayTunnel


class Circuits(Protocol):
    """Access to closed peers over relays."""

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        """Create a tunnel to a closed peer over this relay. It is not started."""

    def standing(self, relays: Iterable[PeerId], to: PeerId) -> Sequence[PeerId]:
        """Return the relays to use for a peer, best first."""

    def known(self, peer: PeerId) -> PeerRecord | None:
        """Return the newest known record of a peer."""

    def may_punch(self, target: PeerId) -> bool:
        """Return whether hole punching to a closed peer may succeed."""

    def failed(self, relay: PeerId, other: PeerId, fault: RelayFault) -> None:
        """Record that a relay failed to connect us to a peer."""

    def tried(self, relay: PeerId, found: Mapping[PeerId, RelayFault | None]) -> None:
        """Record test results of a relay: for each reachable peer, how the relay failed; None: the peer answered over
        it."""
