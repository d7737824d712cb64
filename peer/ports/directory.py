"""Interface of the directory: the signed records of the peers of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from peer.protocol.messages import PeerId, PeerRecord


class Directory(Protocol):
    """Publishes this peer's record and reads the records of the others. When the network is down, no call raises; the
    implementation keeps reconnecting in the background."""

    async def announce(self, record: PeerRecord) -> None:
        """Sign and publish our record in place of the previous one. The caller repeats this every third of the record's
        lifetime."""

    async def withdraw(self) -> None:
        """Publish a record of status LEAVING that expires at once. Best effort, within one second."""

    async def peers(self) -> dict[PeerId, PeerRecord]:
        """Return the live records of this run, without our own: the latest of each peer, with signature, run id and
        expiry checked. The dictionary is never modified afterwards."""

    def own_network(self) -> Mapping[PeerId, tuple[str, ...]]:
        """Return the endpoints (`host:port`) of the peers in our local network that local discovery has found. Peers
        outside that network cannot discover them."""

    @property
    def good_until(self) -> float:
        """Time at which the first of the records that `peers` returned last expires."""

    def contact(self) -> DialReport:
        """Return the results of dialling the configured addresses, and the offset between our clock and those of the
        others."""


Shown = bytes | PeerRecord
"""Signed record as bytes. In simulations, where peers have no keys, the record itself."""


class SharedRecords(Protocol):
    """The records that a directory has cached, for peers that exchange records directly."""

    def own(self) -> Shown:
        """Return our own record as it was last announced; empty if there is none."""

    def known(self) -> dict[PeerId, PeerRecord]:
        """Return the cached live records without reading the directory."""

    def shown(self, peer: PeerId) -> Shown | None:
        """Return the signed record of a known peer, to pass it on. None: the peer is not known."""

    def learn(self, found: Shown, of: PeerId | None = None) -> bool:
        """Add a record that another peer passed on; return whether its peer was unknown. `of`: the peer it has to
        belong to. Raises InvalidRecord, which is also counted."""

    def is_lent(self, peer: PeerId) -> bool:
        """Return whether this peer's record came only from other peers, not from a read of the directory."""

    def looks_show_all(self) -> bool:
        """Return whether one read of the directory returns all live records. In a large run it returns a part of
        them."""


@dataclass(frozen=True, slots=True)
class DialReport:
    """Results of dialling the configured addresses so far."""

    tried: Mapping[str, str] = field(default_factory=dict)
    """Each configured address with the reason why it does not answer. Empty reason: it answered when it was last
    dialled."""
    clock_offset_s: float | None = None
    """Median of the clocks of the nodes that answered, minus ours, in seconds. None: no node has answered."""
