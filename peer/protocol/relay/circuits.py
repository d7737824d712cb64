"""The books of a relay: the closed peers that it holds a place for, and the circuits that it opens to them.

A closed peer reserves a place. A caller asks for a circuit to it. The relay draws a slip for each end, and both come
back over plain connections that show their slips. A circuit leads to a reserved peer and nowhere else, so nobody can
use a relay to reach a third party. Every table is bounded. Address blocks share the places for closed peers, the
circuits, and those to one peer: keys are free, so a limit for each of them alone would bound nobody. The module is
pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from peer.codes import Code
from peer.protocol.block_places import BlockPlaces
from peer.protocol.messages import PeerId

RESERVATIONS, RESERVED_FOR_PROVEN = 64, 16
"""Closed peers at once, and the places among them that strangers never get."""
CIRCUITS, CIRCUITS_FOR_PROVEN = 96, 16
"""Circuits at once, and those among them that strangers never open. Each takes two places of the accepting front."""
CIRCUITS_OF_CALLER = 12
"""Two connections with their control and bulk channels, and the stripes of one swap."""
CIRCUITS_OF_TARGET, OF_TARGET_FOR_PROVEN = 24, 4
"""Circuits to one closed peer, and those among them that strangers never open."""
CLAIM_S = 8.0
"""Seconds in which both ends have to show their slips. TCP sends a lost first packet again after 1, 3 and 7 s."""
SLIP_BYTES = 16


@dataclass(frozen=True, slots=True)
class Slip:
    """The right to one end of one circuit. It is good for one use."""

    code: bytes
    """`SLIP_BYTES` random bytes."""
    owner: PeerId


@dataclass(frozen=True, slots=True)
class Circuit:
    """A connection between a caller and a closed peer."""

    number: int
    caller_slip: Slip
    target_slip: Slip
    bulk: bool
    """Whether it carries payloads. Control circuits go before them."""
    block: str
    """The caller's address block."""
    until: float
    """When both ends have to be there."""
    needs: float = 0.0
    """Bytes per second each way without which its swap would be too slow; 0: nobody said."""


class CircuitRefused(Exception):
    """The relay opens no circuit. `code` is stable, and `reason` is for a person."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class CircuitTable:
    """Reservations and circuits of one relay."""

    def __init__(self, rng: random.Random) -> None:
        """`rng` draws the slips: a generator that nobody can predict."""
        self._rng = rng
        self._places: BlockPlaces[PeerId] = BlockPlaces(RESERVATIONS, RESERVED_FOR_PROVEN)
        self._circuits: dict[int, Circuit] = {}
        self._shares: BlockPlaces[int] = BlockPlaces(CIRCUITS, CIRCUITS_FOR_PROVEN)
        self._of_target: dict[PeerId, BlockPlaces[int]] = {}
        self._slips: dict[bytes, tuple[Circuit, bool]] = {}
        """Slips that nobody has shown yet, and whether each is the caller's."""
        self._drawn = 0

    @property
    def reserved(self) -> int:
        """How many closed peers have a place."""
        return len(self._places)

    @property
    def open(self) -> int:
        """How many circuits there are, with those that wait for their ends."""
        return len(self._circuits)

    def reserve(self, peer: PeerId, block: str, *, proven: bool) -> PeerId | None:
        """Give a closed peer a place, and return the peer that lost its own to it. Raises CircuitRefused."""
        placing = self._places.enter(peer, block, proven=proven)
        if not placing.admitted:
            raise CircuitRefused(Code.BUSY, "all places for closed peers are taken; ask another relay")
        return placing.evicted

    def release(self, peer: PeerId) -> None:
        """Take a closed peer's place back. Its circuits go on."""
        self._places.leave(peer)

    def has_place(self, peer: PeerId) -> bool:
        """Return whether this peer has a place."""
        return peer in self._places

    def swaps(self, now: float) -> list[Circuit]:
        """Return the circuits that said what they need."""
        self._forget(now)
        return [circuit for circuit in self._circuits.values() if circuit.needs > 0]

    def open_circuit(
        self, caller: PeerId, target: PeerId, block: str, *, bulk: bool, proven: bool, now: float, needs: float = 0.0
    ) -> tuple[Circuit, Circuit | None]:
        """Open a circuit, and draw its slips. Return it, and the circuit that has just ended for it: the youngest of
        the address block that has most. `block`: the caller's. `proven`: whether the caller is. Raises
        CircuitRefused."""
        self._forget(now)
        if target not in self._places or target == caller:
            raise CircuitRefused(Code.UNRESERVED, "that peer has no place at this relay")
        if sum(circuit.caller_slip.owner == caller for circuit in self._circuits.values()) >= CIRCUITS_OF_CALLER:
            raise CircuitRefused(Code.LIMIT, f"you have {CIRCUITS_OF_CALLER} circuits here, and nobody has more")
        self._drawn += 1
        ended = self._share(self._drawn, target, block, proven=proven)
        circuit = Circuit(self._drawn, self._draw(caller), self._draw(target), bulk, block, now + CLAIM_S, needs)
        self._circuits[circuit.number] = circuit
        self._slips[circuit.caller_slip.code] = circuit, True
        self._slips[circuit.target_slip.code] = circuit, False
        return circuit, ended

    def _share(self, number: int, target: PeerId, block: str, *, proven: bool) -> Circuit | None:
        """Find room for a circuit among those to its target and among all. Return the one that ended for it."""
        of_target = self._of_target.get(target) or BlockPlaces(CIRCUITS_OF_TARGET, OF_TARGET_FOR_PROVEN)
        placing, ended = of_target.enter(number, block, proven=proven), None
        if placing.evicted is not None:
            self.close(ended := self._circuits[placing.evicted])
        if placing.admitted:
            placing = self._shares.enter(number, block, proven=proven)
            if placing.evicted is not None:
                self.close(ended := self._circuits[placing.evicted])
        if not placing.admitted:
            of_target.leave(number)
            raise CircuitRefused(Code.BUSY, "too many circuits are open here; ask another relay")
        self._of_target[target] = of_target
        return ended

    def claim(self, code: bytes, now: float) -> tuple[Circuit, bool] | None:
        """Take a slip that somebody shows: its circuit, and whether it is the caller's end. None: it is no slip."""
        self._forget(now)
        return self._slips.pop(code, None)

    def close(self, circuit: Circuit) -> None:
        """End a circuit."""
        self._circuits.pop(circuit.number, None)
        self._shares.leave(circuit.number)
        if (of_target := self._of_target.get(circuit.target_slip.owner)) is not None:
            of_target.leave(circuit.number)
            if not len(of_target):
                del self._of_target[circuit.target_slip.owner]
        self._slips.pop(circuit.caller_slip.code, None)
        self._slips.pop(circuit.target_slip.code, None)

    def _draw(self, owner: PeerId) -> Slip:
        return Slip(self._rng.randbytes(SLIP_BYTES), owner)

    def _forget(self, now: float) -> None:
        """End the circuits whose ends did not both come in time."""
        late = {circuit.number: circuit for circuit, _ in self._slips.values() if circuit.until <= now}
        for circuit in late.values():
            self.close(circuit)
