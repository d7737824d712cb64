"""Assigns pieces to donors. The module is pure: the time is an argument, in seconds.

Each donor has one piece in flight, so that faster donors get more pieces. The piece of a lost donor is assigned again
at once. Near the end, a donor without a piece races another one: it also fetches the piece in flight that would arrive
last. Donors are judged by rates measured here, not by their own claims."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass

from peer.protocol.messages import PeerId
from peer.protocol.policy.donors import LEAST_RATE, DonorRates

RACE = 2.0
"""A donor races a piece if the piece would need more than `RACE` times the seconds that the donor needs, plus
`RACE_S`."""
RACE_S = 0.25
MEASURED_S = 2.0
"""Seconds after which the bytes that have arrived of a piece determine its donor's rate."""
UNMEASURED_RACE_S = 10.0
"""A donor of unknown rate races a piece only if the piece would need more than this many further seconds."""


@dataclass(slots=True)
class _Flight:
    """A piece that one donor is sending."""

    began: float
    arrived: int = 0
    """Bytes that have arrived."""

    def rate(self, now: float) -> float | None:
        """Return the rate so far in bytes per second. None: it is too early to measure it."""
        elapsed = now - self.began
        return self.arrived / elapsed if elapsed >= MEASURED_S else None


class PieceScheduler:
    """The assignments of one download.

    `sizes`: bytes of each piece. `have`: pieces that are here already. `rates`: donors' rates by earlier pieces."""

    def __init__(self, sizes: Sequence[int], have: Container[int], rates: DonorRates) -> None:
        self._sizes = sizes
        self._rates = rates
        self._missing = deque(number for number in range(len(sizes)) if number not in have)
        self._in_flight: dict[int, dict[PeerId, _Flight]] = {}
        self.raced = 0
        """Bytes of pieces that were assigned to a second donor while in flight."""

    @property
    def complete(self) -> bool:
        return not self._missing and not self._in_flight

    def assign(self, peer: PeerId, now: float) -> int | None:
        """Assign a piece to a donor and return its number. None: there is none for this donor now."""
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
        """Count `nbytes` more of a piece in flight."""
        if (flight := self._in_flight.get(piece, {}).get(peer)) is not None:
            flight.arrived += nbytes

    @property
    def arriving(self) -> int:
        """Bytes of the pieces in flight that have arrived."""
        return sum(max((f.arrived for f in flights.values()), default=0) for flights in self._in_flight.values())

    def rates(self, now: float) -> Mapping[PeerId, float]:
        """Return the rate in bytes per second of each donor with a piece in flight. 0: not known yet."""
        found = dict[PeerId, float]()
        for flights in self._in_flight.values():
            for peer, flight in flights.items():
                rate = flight.rate(now)
                found[peer] = self._rates.of(peer) if rate is None else rate
        return found

    def complete_piece(self, piece: int) -> Collection[PeerId]:
        """Mark a piece as complete. Return the donors that it was assigned to, which may stop sending it."""
        return self._in_flight.pop(piece, {}).keys()

    def unassign(self, peer: PeerId, piece: int) -> None:
        """Take a piece back from a donor. Unless another donor is sending the piece, it is the next to be assigned."""
        flights = self._in_flight.get(piece)
        if flights is None:
            return
        flights.pop(peer, None)
        if not flights:
            del self._in_flight[piece]
            self._missing.appendleft(piece)

    def _latest(self, peer: PeerId, now: float) -> int | None:
        """Return the piece in flight that would arrive last, if this donor could bring it much sooner. None: no piece.

        Only a piece assigned to a single other donor is considered. A donor of unknown rate races only a piece that is
        measured to take long."""
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
        """Return the estimated seconds until a piece in flight is complete, by its rate so far.

        Before the piece's rate is known, the donor's usual rate is used. If the piece is late by that rate, it is
        expected to take as many further seconds as it is late."""
        if rate := flight.rate(now):
            return (self._sizes[piece] - flight.arrived) / rate
        expected = self._sizes[piece] / (self._rates.of(peer) or LEAST_RATE)
        return abs(expected - (now - flight.began))
