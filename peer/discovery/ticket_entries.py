"""The addresses that a peer can put into a ticket: its own, and those of other peers of the run that it met."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from peer.discovery.address_cache import AddressCache
from peer.discovery.multiaddr import split

MOST_OTHERS = 5
"""Others in a ticket: any of them may be gone, and each makes it 70 characters longer."""
HERE = ("/ip4/127.", "/ip6/::1/")
"""How addresses begin that mean something on one machine only."""


@dataclass(frozen=True, slots=True)
class TicketEntries:
    """Addresses for a ticket, best first. `remarks`: sentences that whoever hands it on should read."""

    addresses: tuple[str, ...]
    remarks: tuple[str, ...]


def entries_of(own: Iterable[str], reachable: bool | None, met: Iterable[str]) -> TicketEntries:
    """Choose the addresses. `own`: ours, best first. `reachable`: whether others got through to us; None: not known.
    `met`: those of other peers, latest first. Ours come last when nobody gets through to them."""
    ours, remarks = list(own), list[str]()
    names = {split(address)[1] for address in ours}
    others: dict[str, str] = {}
    for address in met:
        if (peer := split(address)[1]) not in names:
            others.setdefault(peer, address)
    chosen = list(others.values())[:MOST_OTHERS]
    if reachable is False and ours:
        remarks.append("nobody gets through to this peer, so the ticket needs the others in it")
    found = [*chosen, *ours] if reachable is False else [*ours, *chosen]
    if away := [address for address in found if not address.startswith(HERE)]:
        return TicketEntries(tuple(away), tuple(remarks))
    if found:
        remarks.append("only this machine can use the ticket: no other address is known")
    return TicketEntries(tuple(found), tuple(remarks))


def met_in(cache: Path) -> list[str]:
    """Read the addresses of peers with a record in a run's folder, latest seen first. A file that cannot be read has
    none."""
    return AddressCache(cache, time.time()).entries()
