"""Schedule of pieces over donors. The module is pure: it is given the time, in seconds.

Each donor has one piece in flight and takes the next as fast as it sends. A lost or slow donor's piece goes to another
donor at once. Only pieces in flight are fetched twice: at the end, a donor without work races the piece that would be
last."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Sequence

from peer.protocol.messages import PeerId

RACE = 2.0
"""Share of the time left in which a donor must bring a piece in flight in order to race it."""
RACE_S = 0.25
SLACK_S = 4.0
FACTOR = 4.0
FLOOR = 32_000.0
"""Bytes per second expected of a donor without a measurement."""
WEIGHT = 0.5
"""Weight of the last piece in a donor's rate."""


class DonorRates:
    """Rates of donors in bytes per second, kept over several attempts."""

    def __init__(self) -> None:
        self._rates: dict[PeerId, float] = {}

    def of(self, peer: PeerId) -> float:
        """Return the donor's rate; 0: nothing was measured yet."""
        return self._rates.get(peer, 0.0)

    def observe(self, peer: PeerId, nbytes: int, seconds: float) -> None:
        rate = max(1.0, nbytes / max(seconds, 1e-6))
        before = self._rates.get(peer)
        self._rates[peer] = rate if before is None else (1 - WEIGHT) * before + WEIGHT * rate

    def failed(self, peer: PeerId) -> None:
        """Halve the rate of a donor that missed its deadline."""
        if peer in self._rates:
            self._rates[peer] = max(1.0, self._rates[peer] / 2)

    def deadline_s(self, peer: PeerId, nbytes: int) -> float:
        """Return the seconds that this donor may take for so many bytes."""
        return SLACK_S + FACTOR * nbytes / (self.of(peer) or FLOOR)


class PieceScheduler:
    """Schedule of one download. `sizes` are the bytes of each piece, and `have` the pieces that are here already."""

    def __init__(self, sizes: Sequence[int], have: Container[int], rates: DonorRates) -> None:
        self._sizes = sizes
        self._rates = rates
        self._missing = deque(number for number in range(len(sizes)) if number not in have)
        self._flying: dict[int, dict[PeerId, float]] = {}
        self.raced = 0
        """Bytes asked for a second time while the first request was in flight."""

    @property
    def complete(self) -> bool:
        return not self._missing and not self._flying

    def take(self, peer: PeerId, now: float) -> int | None:
        """Return a piece for this donor to fetch now; None: there is none for it at the moment."""
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
        """Return whether waiting may give this donor a piece to race. It needs a measured rate."""
        return bool(self._rates.of(peer))

    def landed(self, piece: int) -> Collection[PeerId]:
        """Take note that a piece is here; return the donors that still fetch it and may stop."""
        return self._flying.pop(piece, {}).keys()

    def failed(self, peer: PeerId, piece: int) -> None:
        """Take note that this donor will not bring the piece. The piece comes first again, unless another donor fetches
        it."""
        flights = self._flying.get(piece)
        if flights is None:
            return
        flights.pop(peer, None)
        if not flights:
            del self._flying[piece]
            self._missing.appendleft(piece)

    def _latest(self, peer: PeerId, now: float) -> int | None:
        """Return the piece in flight that would come last, if this donor would be much sooner.

        Only pieces that a single donor fetches are raced."""
        own = self._rates.of(peer)
        alone = {piece: next(iter(f.items())) for piece, f in self._flying.items() if len(f) == 1 and peer not in f}
        if not own or not alone:
            return None
        left = {piece: self._left_s(piece, other, now - began) for piece, (other, began) in alone.items()}
        piece = max(left, key=lambda number: (left[number], number))
        return piece if left[piece] > RACE * self._sizes[piece] / own + RACE_S else None

    def _left_s(self, piece: int, peer: PeerId, elapsed: float) -> float:
        """Return the seconds left of a fetch. A late donor is expected to take as long again as it is late."""
        expected = self._sizes[piece] / (self._rates.of(peer) or FLOOR)
        return abs(expected - elapsed)
