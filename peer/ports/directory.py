"""Who takes part in the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from peer.protocol.messages import PeerId, PeerRecord


class Directory(Protocol):
    """Who takes part in the run. Never raises for an absent network: it goes on looking in the background."""

    async def announce(self, record: PeerRecord) -> None:
        """Sign and publish our record; replaces the former one. Repeated by the caller at a third of its life."""

    async def withdraw(self) -> None:
        """Publish a record of status LEAVING that expires at once, best effort within a second."""

    async def peers(self) -> dict[PeerId, PeerRecord]:
        """The live records of this run but our own: signature, run id and expiry checked, latest per peer. Not
        changed afterwards."""

    def own_network(self) -> Mapping[PeerId, tuple[str, ...]]:
        """Where peers of our own network listen, `host:port`. Only machines of that network can know."""

    @property
    def good_until(self) -> float:
        """No record that `peers` gave last expires before then."""

    def contact(self) -> DialReport:
        """How the addresses given at the start are answered, and how far our clock is from the others'."""


Shown = bytes | PeerRecord
"""A signed record as bytes; a record itself where peers have no keys, in simulations."""


class SharedRecords(Protocol):
    """The records of a directory, for peers that show each other what they know."""

    def own(self) -> Shown:
        """Our own record as it was announced last; empty: there is none."""

    def known(self) -> dict[PeerId, PeerRecord]:
        """The live records at hand, without a look."""

    def shown(self, peer: PeerId) -> Shown | None:
        """The record of a known peer, for others."""

    def learn(self, found: Shown, of: PeerId | None = None) -> bool:
        """Take a record that a peer showed; return whether its peer was unknown. `of`: it must be this one's. Raises
        InvalidRecord, counted."""

    def is_lent(self, peer: PeerId) -> bool:
        """Return whether only peers have shown the record of this one, and no look."""

    def looks_show_all(self) -> bool:
        """Return whether each look finds every live record. In a large run it reads a part of them."""


@dataclass(frozen=True, slots=True)
class DialReport:
    """What dialling came to, so far."""

    tried: Mapping[str, str] = field(default_factory=dict)
    """For each address given to us why it does not answer; empty: it did when it was last dialled."""
    clock_offset_s: float | None = None
    """The clocks of the nodes that answered minus ours, their median; None before anybody answered."""
