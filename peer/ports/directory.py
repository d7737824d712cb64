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

    @property
    def good_until(self) -> float:
        """No record that `peers` gave last expires before then."""

    def contact(self) -> DialReport:
        """How the addresses given at the start are answered, and how far our clock is from the others'."""


@dataclass(frozen=True, slots=True)
class DialReport:
    """What dialling came to, so far."""

    tried: Mapping[str, str] = field(default_factory=dict)
    """For each address given to us why it does not answer; empty: it did when it was last dialled."""
    clock_offset_s: float | None = None
    """The clocks of the nodes that answered minus ours, their median; None before anybody answered."""
