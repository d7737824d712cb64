"""What the pool of connections asks of the relays."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Protocol

from peer.protocol.messages import PeerId, RelayAddress
from peer.transport.relay.tunnel import RelayTunnel


class Circuits(Protocol):
    """The way to closed peers."""

    def tunnel(self, relay: RelayAddress, target: PeerId) -> RelayTunnel:
        """Make a tunnel to a closed peer over this relay, not started."""

    def standing(self, relays: Iterable[PeerId]) -> Collection[PeerId]:
        """Return which of these relays are to be used."""

    def may_punch(self, target: PeerId) -> bool:
        """Return whether a punched connection to a closed peer may be had."""

    def failed(self, relay: PeerId, other: PeerId, why: str) -> None:
        """Note that a relay did not lead to a peer."""
