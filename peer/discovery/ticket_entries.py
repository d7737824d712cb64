"""The addresses that a peer can put into a ticket: its own, and those of other peers of the run that it has met."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from peer.discovery.address_cache import AddressCache
from peer.discovery.multiaddr import split

MOST_OTHERS = 5
"""Addresses of other peers in a ticket. Any of them may be gone, and each adds about 70 characters."""
HERE = ("/ip4/127.", "/ip6/::1/")
"""Prefixes of loopback addresses, which are valid on one machine only."""


@dataclass(frozen=True, slots=True)
class TicketEntries:
    """Addresses for a ticket, best first. `remarks`: sentences for the person who passes it on."""

    addresses: tuple[str, ...]
    remarks: tuple[str, ...]


def entries_of(own: Iterable[str], reachable: bool | None, met: Iterable[str]) -> TicketEntries:
    """Choose the addresses for a ticket.

    `own`: our addresses, best first. `reachable`: whether others can dial us; None: not known. `met`: addresses of
    other peers, latest first. Our own come last if others cannot dial us."""
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
    """Return the addresses of peers with a record from a run's cache file, latest seen first; none if it cannot be
    read."""
    return AddressCache(cache, time.time()).entries()
