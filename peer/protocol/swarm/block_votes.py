"""Votes of peers, one for each address block.

Keys are free, addresses are not. So all peers of a block have one vote together, however many keys it holds. Where all
of them are in one block, as on one machine or in one laboratory, each key has a vote. The module is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from peer.protocol.messages import PeerId

T = TypeVar("T")


class Weight(NamedTuple):
    """What the votes of some peers weigh against those of others: the first difference decides."""

    proven: int
    """Votes of peers that are proven to us."""
    blocks: int
    """Votes of all."""
    keys: int


class BlockVotes:
    """The votes of some peers. `blocks` names the address block of each (`peer.protocol.endpoints.block_of`), and
    `proven` has those that are proven to us."""

    def __init__(self, blocks: Mapping[PeerId, str], proven: Container[PeerId] = frozenset()) -> None:
        by_key = len(set(blocks.values())) < 2
        self._voters: dict[PeerId, str] = {peer: peer if by_key else block for peer, block in blocks.items()}
        self._proven = proven

    @property
    def networks(self) -> int:
        """How many votes there are in all."""
        return len(set(self._voters.values()))

    def weigh(self, peers: Iterable[PeerId]) -> Weight:
        """Return what these of the voters weigh."""
        some = list(peers)
        return Weight(self.count(peer for peer in some if peer in self._proven), self.count(some), len(set(some)))

    def count(self, peers: Iterable[PeerId]) -> int:
        """Return how many votes these of the voters have."""
        return len({self._voters[peer] for peer in peers})


def in_turn(given: Sequence[T], block: Callable[[T], str]) -> list[T]:
    """Return the same in another order: the first of each block, then the second of each, and so on. So no block
    crowds out another where only the first few are taken."""
    places = Counter[str]()
    turns = list[tuple[int, int]]()
    for number, one in enumerate(given):
        turns.append((places[block(one)], number))
        places[block(one)] += 1
    return [given[number] for _, number in sorted(turns)]
