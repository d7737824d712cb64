"""Schedule of pieces over donors. The module is pure: it is given the time, in seconds.

Each donor has one piece in flight and takes the next as fast as it sends. A lost or slow donor's piece goes to another
donor at once. Only pieces in flight are fetched twice: at the end, a donor without work races the piece that would be
last. A donor counts for what it sends, as measured here, whatever it says of itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from peer.protocol.messages import PeerId
from peer.protocol.policy.donors import LEAST_RATE, DonorRates

RACE = 2.0
"""Share of the time left in which a donor must bring a piece in flight in order to race it."""
RACE_S = 0.25
MEASURED_S = 2.0
"""Seconds after which the bytes that have come of a piece tell its donor's rate."""
UNMEASURED_RACE_S = 10.0
"""A donor whose rate is not known races a piece that would take so many seconds more."""


@dataclass(slots=True)
class _Flight:
    """A piece under way from one donor."""

    began: float
    arrived: int = 0

    def rate(self, now: float) -> float | None:
        """Return the rate so far; None: it is too early to tell."""
        elapsed = now - self.began
        return self.arrived / elapsed if elapsed >= MEASURED_S else None


class PieceScheduler:
    """Schedule of one download. `sizes` are the bytes of each piece, and `have` the pieces that are here already."""

    def __init__(self, sizes: Sequence[int], have: Container[int], rates: DonorRates) -> None:
        self._sizes = sizes
        self._rates = rates
        self._missing = deque(number for number in range(len(sizes)) if number not in have)
        self._in_flight: dict[int, dict[PeerId, _Flight]] = {}
        self.raced = 0
        """Bytes asked for a second time while the first request was in flight."""

    @property
    def complete(self) -> bool:
        return not self._missing and not self._in_flight

    def assign(self, peer: PeerId, now: float) -> int | None:
        """Return a piece for this donor to fetch now; None: there is none for it at the moment."""
        if self._missing:
            piece = self._missing.popleft()
        elif (late := self._latest(peer, now)) is not None:
            piece = late
            self.raced += self._sizes[piece]
        else:
            return None
        self._in_flight.setdefault(piece, {})[peer] = _Flight(now)
        return piece

    def count_arrived(self, peer: PeerId, piece: int, nbytes: int) -> None:
        """Take note of more bytes of a piece in flight."""
        if (flight := self._in_flight.get(piece, {}).get(peer)) is not None:
            flight.arrived += nbytes

    @property
    def arriving(self) -> int:
        """Bytes that are here of pieces in flight."""
        return sum(max((f.arrived for f in flights.values()), default=0) for flights in self._in_flight.values())

    def rates(self, now: float) -> Mapping[PeerId, float]:
        """Return the rates of the donors with a piece in flight, in bytes per second; 0: not known yet."""
        found = dict[PeerId, float]()
        for flights in self._in_flight.values():
            for peer, flight in flights.items():
                rate = flight.rate(now)
                found[peer] = self._rates.of(peer) if rate is None else rate
        return found

    def complete_piece(self, piece: int) -> Collection[PeerId]:
        """Take note that a piece is here; return the donors that still fetch it and may stop."""
        return self._in_flight.pop(piece, {}).keys()

    def unassign(self, peer: PeerId, piece: int) -> None:
        """Take note that this donor will not bring the piece. The piece comes first again, unless another donor fetches
        it."""
        flights = self._in_flight.get(piece)
        if flights is None:
            return
        flights.pop(peer, None)
        if not flights:
            del self._in_flight[piece]
            self._missing.appendleft(piece)

    def _latest(self, peer: PeerId, now: float) -> int | None:
        """Return the piece in flight that would come last, if this donor would be much sooner.

        Only pieces that a single donor fetches are raced. A donor of unknown rate is tried where much could be won."""
        own = self._rates.of(peer)
        alone = {piece: next(iter(f.items())) for piece, f in self._in_flight.items() if len(f) == 1 and peer not in f}
        if not own:
            alone = {piece: one for piece, one in alone.items() if one[1].rate(now) is not None}
        if not alone:
            return None
        left = {piece: self._left_s(piece, other, flight, now) for piece, (other, flight) in alone.items()}
        piece = max(left, key=lambda number: (left[number], number))
        worth = RACE * self._sizes[piece] / own + RACE_S if own else UNMEASURED_RACE_S
        return piece if left[piece] > worth else None

    def _left_s(self, piece: int, peer: PeerId, flight: _Flight, now: float) -> float:
        """Return the seconds left of a fetch, at its rate so far. Where that is not known, a late donor is expected to
        take as long again as it is late."""
        if rate := flight.rate(now):
            return (self._sizes[piece] - flight.arrived) / rate
        expected = self._sizes[piece] / (self._rates.of(peer) or LEAST_RATE)
        return abs(expected - (now - flight.began))
