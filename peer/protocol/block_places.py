"""A limited number of places for callers, shared fairly among address blocks.

A key costs nothing, an address does. When all places are taken, a newcomer takes a place from the address block that
has most, if its own block has fewer. Proven peers cannot lose their place, and some places are reserved for them. The
module is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class _Place:
    block: str
    host: str
    proven: bool


@dataclass(frozen=True, slots=True)
class Placing(Generic[K]):
    """The result of `BlockPlaces.enter`."""

    admitted: bool
    evicted: K | None = None
    """The holder that lost its place to the newcomer."""


class BlockPlaces(Generic[K]):
    """At most `places` holders. Peers that are not proven get all places but `reserve`."""

    def __init__(self, places: int, reserve: int = 0) -> None:
        assert 0 <= reserve < places, (reserve, places)
        self._places = places
        self._reserve = reserve
        self._held: dict[K, _Place] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, holder: K) -> bool:
        return holder in self._held

    def enter(self, holder: K, block: str, *, host: str = "", proven: bool = False) -> Placing[K]:
        """Give `holder` a place. `block`: the address block it calls from (`peer.protocol.endpoints.block_of`).

        If all places are taken, the block with most places loses one, provided that the newcomer's block still has
        fewer when the newcomer is counted. Otherwise, with `host`, the same rule applies between the hosts of the
        newcomer's own block. In the chosen block, the youngest holder of the host with most places is evicted. A holder
        that enters again keeps its place."""
        if holder in self._held:
            self._held[holder].proven |= proven
            return Placing(True)
        room = self._has_room(proven=proven)
        victim = None if room else self._victim(block, host, proven=proven)
        if not room and victim is None:
            return Placing(False)
        if victim is not None:
            del self._held[victim]
        self._held[holder] = _Place(block, host, proven)
        return Placing(True, victim)

    def would_admit(self, block: str, *, proven: bool = False) -> bool:
        """Return whether a newcomer from this block would get a place."""
        return self._has_room(proven=proven) or self._victim(block, "", proven=proven) is not None

    def prove(self, holder: K) -> None:
        """Mark the holder as a proven peer, which cannot be evicted."""
        if (place := self._held.get(holder)) is not None:
            place.proven = True

    def is_proven(self, holder: K) -> bool:
        """Return whether the holder has a place and cannot be evicted."""
        return holder in self._held and self._held[holder].proven

    def leave(self, holder: K) -> None:
        """Free the place of `holder`, if it has one."""
        self._held.pop(holder, None)

    def _has_room(self, *, proven: bool) -> bool:
        strangers = sum(not place.proven for place in self._held.values())
        return len(self._held) < self._places and (proven or strangers < self._places - self._reserve)

    def _victim(self, block: str, host: str, *, proven: bool) -> K | None:
        """Return the holder to evict by the rule of `enter`. None: the rule evicts nobody, or all holders are proven
        and cannot be evicted."""
        strangers = [(holder, place) for holder, place in self._held.items() if not place.proven]
        blocks = Counter(place.block for _, place in strangers)
        if not blocks:
            return None
        largest, most = _largest(blocks)
        own = not proven and most <= blocks[block] + 1
        hosts = Counter(place.host for _, place in strangers if place.block == (block if own else largest))
        greediest, most = _largest(hosts) if hosts else ("", 0)
        if own and (not host or most <= hosts[host] + 1):
            return None
        at = (block if own else largest, greediest)
        return next(holder for holder, place in reversed(strangers) if (place.block, place.host) == at)


def _largest(counted: Counter[str]) -> tuple[str, int]:
    return max(counted.items(), key=lambda item: (item[1], item[0]))
