"""Who exchanges with whom. `peer.exchange.build` has the exchanges themselves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What a topology means for those that do not exchange. `Method` has the same properties."""

    name: str
    exchanges: bool = True
    """Whether anything crosses the wire."""
    paired: bool = False
    """Whether it is two partners that exchange: they judge each other's params, and sign receipts."""
    one_state: bool = False
    """Whether all peers hold one state, outer_momentum included. A newcomer needs both, and anybody can give them."""
    payload: str = "params"
    """The kind of payload a peer sends (`peer.methods.codec_specs.KINDS`)."""
    peers: int = 0
    """How many exchange with each other. 0: as many as `max_group`."""
    message_bytes: int = 0
    """Bytes of a round's messages with one other peer, each way and encrypted: offers, rosters, heads and receipts."""

    def due(self, live: int) -> int:
        """Return how many of so many live peers have an exchange in a round."""
        return 2 * (live // 2) if self.paired else live


PAIR = Topology(name="pair", paired=True, peers=2, message_bytes=600)
"""A random partner a round."""
GROUP = Topology(name="group", one_state=True, payload="pseudo_gradient", message_bytes=1800)
"""Everybody of the round."""
SOLO = Topology(name="solo", exchanges=False, peers=1)
"""Nobody."""
TOPOLOGIES = {topology.name: topology for topology in (PAIR, GROUP, SOLO)}
