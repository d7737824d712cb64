"""Which piece of a state comes from which donor. Pure: told the time, in seconds.

Each donor has one piece in flight and takes the next as fast as it sends. What a lost or slow donor had goes to
another at once. Nothing is fetched twice but what is in flight: at the end, a donor without work races the piece
that would be last."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from peer.protocol.messages import PeerId

RACE = 2.0
"""A piece in flight is raced by a donor that would bring it in less than this part of the time left."""
RACE_S = 0.25
SLACK_S = 4.0
FACTOR = 4.0
FLOOR = 32_000.0
"""Bytes per second expected of a donor before anything was measured."""
WEIGHT = 0.5
"""Of the last piece in a donor's rate."""


class DonorRates:
    """What donors gave, in bytes per second; kept over several attempts."""

    def __init__(self) -> None:
        self._rates: dict[PeerId, float] = {}

    def of(self, peer: PeerId) -> float:
        """0: nothing was measured yet."""
        return self._rates.get(peer, 0.0)

    def observe(self, peer: PeerId, nbytes: int, seconds: float) -> None:
        rate = max(1.0, nbytes / max(seconds, 1e-6))
        before = self._rates.get(peer)
        self._rates[peer] = rate if before is None else (1 - WEIGHT) * before + WEIGHT * rate

    def failed(self, peer: PeerId) -> None:
        """It did not keep its deadline: half of what it seemed able to do."""
        if peer in self._rates:
            self._rates[peer] = max(1.0, self._rates[peer] / 2)

    def deadline_s(self, peer: PeerId, nbytes: int) -> float:
        """How long this donor may take for so many bytes."""
        return SLACK_S + FACTOR * nbytes / (self.of(peer) or FLOOR)


class PieceScheduler:
    """`sizes`: bytes of each piece; `have`: those that are here already."""

    def __init__(self, sizes: Sequence[int], have: Collection[int], rates: DonorRates) -> None:
        self._sizes = sizes
        self._rates = rates
        self._missing = deque(number for number in range(len(sizes)) if number not in have)
        self._flying: dict[int, dict[PeerId, float]] = {}
        self.raced = 0
        """Bytes asked for a second time while the first was in flight."""

    @property
    def complete(self) -> bool:
        return not self._missing and not self._flying

    def take(self, peer: PeerId, now: float) -> int | None:
        """A piece for this donor to fetch now; None: there is nothing for it, for the moment."""
        if self._missing:
            piece = self._missing.popleft()
        elif (late := self._latest(peer, now)) is not None:
            piece = late
            self.raced += self._sizes[piece]
        else:
            return None
        self._flying.setdefault(piece, {})[peer] = now
        return piece

    def may_race(self, peer: PeerId) -> bool:
        """Whether time alone may give this donor a piece: that of another that turns out slow."""
        return bool(self._rates.of(peer))

    def landed(self, piece: int) -> Collection[PeerId]:
        """It is here; who else is still fetching it may stop."""
        return self._flying.pop(piece, {}).keys()

    def failed(self, peer: PeerId, piece: int) -> None:
        """This donor will not bring it: first in line again, unless another one does."""
        flights = self._flying.get(piece)
        if flights is None:
            return
        flights.pop(peer, None)
        if not flights:
            del self._flying[piece]
            self._missing.appendleft(piece)

    def _latest(self, peer: PeerId, now: float) -> int | None:
        """The piece in flight, with one donor alone, that would come last, if this one would be much sooner."""
        own = self._rates.of(peer)
        alone = {piece: next(iter(f.items())) for piece, f in self._flying.items() if len(f) == 1 and peer not in f}
        if not own or not alone:
            return None
        left = {piece: self._left_s(piece, other, now - began) for piece, (other, began) in alone.items()}
        piece = max(left, key=lambda number: (left[number], number))
        return piece if left[piece] > RACE * self._sizes[piece] / own + RACE_S else None

    def _left_s(self, piece: int, peer: PeerId, elapsed: float) -> float:
        """Who is late will take as long again as it is late."""
        expected = self._sizes[piece] / (self._rates.of(peer) or FLOOR)
        return abs(expected - elapsed)
