"""Votes of peers, one vote for each address block.

A key costs nothing, an address does. So all peers of a block share one vote, whatever the number of keys. If all peers
are in one block, as on one machine or in one laboratory, each key has a vote. The module is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from peer.protocol.messages import PeerId

T = TypeVar("T")


class Weight(NamedTuple):
    """The votes of some peers, compared in order: the first field that differs decides."""

    proven: int
    """Votes of peers that are proven to us."""
    blocks: int
    """Votes of all these peers."""
    keys: int


class BlockVotes:
    """Counts votes. `blocks`: address block of each voter (`peer.protocol.endpoints.block_of`). `proven`: the voters
    that are proven to us."""

    def __init__(self, blocks: Mapping[PeerId, str], proven: Container[PeerId] = frozenset()) -> None:
        by_key = len(set(blocks.values())) < 2
        self._voters: dict[PeerId, str] = {peer: peer if by_key else block for peer, block in blocks.items()}
        self._proven = proven

    @property
    def networks(self) -> int:
        """Total number of votes."""
        return len(set(self._voters.values()))

    def weigh(self, peers: Iterable[PeerId]) -> Weight:
        """Return the weight of these voters."""
        some = list(peers)
        return Weight(self.count(peer for peer in some if peer in self._proven), self.count(some), len(set(some)))

    def count(self, peers: Iterable[PeerId]) -> int:
        """Return the number of votes of these voters."""
        return len({self._voters[peer] for peer in peers})


def in_turn(given: Sequence[T], block: Callable[[T], str]) -> list[T]:
    """Return the items in another order: first one of each block, then the second of each, and so on, so that no block
    displaces another where only the first few are used."""
    places = Counter[str]()
    turns = list[tuple[int, int]]()
    for number, one in enumerate(given):
        turns.append((places[block(one)], number))
        places[block(one)] += 1
    return [given[number] for _, number in sorted(turns)]
