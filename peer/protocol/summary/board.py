"""The contribution board: for each peer the swaps that partners signed for it. A claim alone counts for nothing here.

A receipt counts once a peer, round and fragment. Whether its signature holds is checked before it comes here. Two keys
of one person can sign for each other: the board shows what was signed, and how many partners did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peer.protocol.messages import PeerId
from peer.protocol.pair.receipt import ShownReceipt, SwapStatement

MAX_PEERS = 1024
RECENT = 256
"""Swaps of a peer that are remembered, so that none counts twice. Older ones than all of them count no more."""
MAX_PARTNERS = 128
"""Partners of a peer that are told apart; with more it shows this number."""


@dataclass(slots=True)
class BoardEntry:
    """What partners signed for one peer."""

    block: str
    """Address block that it called from first."""
    exchanges: int = 0
    """Swaps in which the partner took its payload."""
    bytes: int = 0
    """Of payloads, both ways."""
    partners: set[int] = field(default_factory=set)
    """Hashes of their peer ids."""
    recent: list[tuple[int, int]] = field(default_factory=list)
    """(round, fragment), ascending."""
    floor: tuple[int, int] = (-1, -1)
    """Swaps up to here are forgotten, and count no more."""

    def count(self, said: SwapStatement) -> None:
        """Count what a partner signed, once."""
        key = (said.key.round, said.key.fragment)
        if key <= self.floor or key in self.recent:
            return
        self.exchanges += 1
        self.bytes += said.received.nbytes + said.sent.nbytes
        if len(self.partners) < MAX_PARTNERS:
            self.partners.add(_hashed(said.signer))
        self.recent = sorted([*self.recent, key])
        if len(self.recent) > RECENT:
            self.floor = self.recent.pop(0)


class ContributionBoard:
    """At most `most` peers. When it is full, the address block that holds most loses its peer of fewest exchanges to a
    newcomer of a smaller block."""

    def __init__(self, most: int = MAX_PEERS) -> None:
        self._most = most
        self._entries: dict[PeerId, BoardEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def exchanges(self, peer: PeerId) -> int:
        """Return how many swaps were signed for this peer."""
        entry = self._entries.get(peer)
        return 0 if entry is None else entry.exchanges

    def take(self, peer: PeerId, block: str, receipts: Sequence[ShownReceipt]) -> None:
        """Count receipts that others signed for `peer`. Those that were counted, or name a refused payload, are
        dropped."""
        good = [one.statement for one in receipts if one.statement.partner == peer and one.statement.opinion.accepted]
        if not good:
            return
        entry = self._entries.get(peer)
        if entry is None and (entry := self._enter(peer, block)) is None:
            return
        for statement in good:
            entry.count(statement)

    def _enter(self, peer: PeerId, block: str) -> BoardEntry | None:
        """Give a new peer its place; None: its block holds as many as any."""
        if len(self._entries) >= self._most:
            sizes = Counter(entry.block for entry in self._entries.values())
            largest, size = max(sizes.items(), key=lambda item: (item[1], item[0]))
            if size <= sizes[block] + 1:
                return None
            of_it = [one for one, entry in self._entries.items() if entry.block == largest]
            del self._entries[min(of_it, key=self.exchanges)]
        return self._entries.setdefault(peer, BoardEntry(block))

    def report(self) -> list[dict[str, Any]]:
        """JSON-able, those with the most exchanges first."""
        ranked = sorted(self._entries.items(), key=lambda item: (-item[1].exchanges, item[0]))
        return [
            {"peer_id": peer, "exchanges": entry.exchanges, "bytes": entry.bytes, "partners": len(entry.partners)}
            for peer, entry in ranked
        ]

    def kept(self) -> dict[str, Any]:
        """Return all of it, JSON-able, for `restore`."""
        return {
            peer: [entry.block, entry.exchanges, entry.bytes, sorted(entry.partners), entry.recent, entry.floor]
            for peer, entry in self._entries.items()
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        """Go on from what `kept` returned. Raises TypeError or ValueError for anything else."""
        for peer, (block, exchanges, nbytes, partners, recent, floor) in list(kept.items())[: self._most]:
            self._entries[PeerId(peer)] = BoardEntry(
                str(block),
                int(exchanges),
                int(nbytes),
                {int(partner) for partner in partners[:MAX_PARTNERS]},
                [(int(round_), int(fragment)) for round_, fragment in recent[:RECENT]],
                (int(floor[0]), int(floor[1])),
            )


def _hashed(peer: PeerId) -> int:
    """Return 64 bits of a peer id, the same in every process."""
    return int.from_bytes(peer.encode()[-8:], "big")
