"""The topologies: which peers exchange with each other in a round. The exchanges themselves are in `peer.exchange`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The properties of a topology that other parts of the program depend on. `Method` offers the same properties."""

    name: str
    exchanges: bool = True
    """Whether anything crosses the wire."""
    paired: bool = False
    """Whether two partners exchange. Partners judge each other's params, and sign receipts."""
    one_state: bool = False
    """Whether all peers have the same outer_params and outer_momentum. A joiner needs both, and any peer can be its
    donor."""
    payload: str = "params"
    """Kind of payload that a peer sends, a key of `peer.methods.codec_specs.KINDS`."""
    peers: int = 0
    """Peers that exchange with each other, including this one. 0: up to `max_group`."""
    message_bytes: int = 0
    """Encrypted bytes per direction of a round's messages with one other peer: offers, rosters, heads and receipts."""

    def due(self, live: int) -> int:
        """Return how many of `live` peers can exchange in a round: in pairs, one of an odd number cannot."""
        return 2 * (live // 2) if self.paired else live


PAIR = Topology(name="pair", paired=True, peers=2, message_bytes=600)
"""Each peer exchanges with one random partner in a round."""
GROUP = Topology(name="group", one_state=True, payload="pseudo_gradient", message_bytes=1800)
"""All members of the round's roster exchange with each other."""
SOLO = Topology(name="solo", exchanges=False, peers=1)
"""No peer exchanges."""
TOPOLOGIES = {topology.name: topology for topology in (PAIR, GROUP, SOLO)}
