"""Tables of a relay: the closed peers that have a reservation, and the circuits to them.

A closed peer reserves a place. A caller requests a circuit to it. The relay draws a slip for each end, and each end
opens a plain connection on which it presents its slip. Circuits lead only to peers with a reservation, so a relay
cannot be used to reach third parties. All tables are bounded. Address blocks share the places for closed peers, the
circuits, and the circuits to one peer: keys cost nothing, so a limit per key would have no effect. The module is
pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from peer.codes import Code
from peer.protocol.block_places import BlockPlaces
from peer.protocol.messages import PeerId

RESERVATIONS, RESERVED_FOR_PROVEN = 64, 16
"""Maximum closed peers at once, and how many of these places are reserved for proven peers."""
CIRCUITS, CIRCUITS_FOR_PROVEN = 96, 16
"""Maximum circuits at once, and how many are reserved for proven callers. Each uses two connections of the relay."""
CIRCUITS_OF_CALLER = 12
"""Maximum circuits of one caller: two connections with control and bulk channels, and the stripes of one swap."""
CIRCUITS_OF_TARGET, OF_TARGET_FOR_PROVEN = 24, 4
"""Maximum circuits to one closed peer, and how many are reserved for proven callers."""
CLAIM_S = 8.0
"""Seconds within which both ends have to present their slips. TCP repeats a lost first packet after 1, 3 and 7 s."""
SLIP_BYTES = 16


@dataclass(frozen=True, slots=True)
class Slip:
    """The right to connect to one end of one circuit, once."""

    code: bytes
    """`SLIP_BYTES` random bytes."""
    owner: PeerId


@dataclass(frozen=True, slots=True)
class Circuit:
    """A connection between a caller and a closed peer through the relay."""

    number: int
    caller_slip: Slip
    target_slip: Slip
    bulk: bool
    """Whether it carries payloads. Control circuits have priority over those."""
    block: str
    """Address block of the caller."""
    until: float
    """Deadline for both ends to connect."""
    needs: float = 0.0
    """Bytes per second in each direction below which its swap would be too slow; 0: not given."""


class CircuitRefused(Exception):
    """Raised when the relay refuses a reservation or a circuit. `code` is stable, and `reason` is for people to
    read."""

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class CircuitTable:
    """Reservations and circuits of one relay."""

    def __init__(self, rng: random.Random) -> None:
        """`rng`: a generator that nobody can predict, which draws the slips."""
        self._rng = rng
        self._places: BlockPlaces[PeerId] = BlockPlaces(RESERVATIONS, RESERVED_FOR_PROVEN)
        self._circuits: dict[int, Circuit] = {}
        self._shares: BlockPlaces[int] = BlockPlaces(CIRCUITS, CIRCUITS_FOR_PROVEN)
        self._of_target: dict[PeerId, BlockPlaces[int]] = {}
        self._slips: dict[bytes, tuple[Circuit, bool]] = {}
        """Circuit of each slip that was not presented yet, and whether the slip is the caller's."""
        self._drawn = 0

    @property
    def reserved(self) -> int:
        """Number of closed peers with a reservation."""
        return len(self._places)

    @property
    def open(self) -> int:
        """Number of circuits, including those whose ends are not connected yet."""
        return len(self._circuits)

    def reserve(self, peer: PeerId, block: str, *, proven: bool) -> PeerId | None:
        """Give a closed peer a reservation. Return the peer that lost its reservation to this one, or None. Raises
        CircuitRefused."""
        placing = self._places.enter(peer, block, proven=proven)
        if not placing.admitted:
            raise CircuitRefused(Code.BUSY, "all places for closed peers are taken; ask another relay")
        return placing.evicted

    def release(self, peer: PeerId) -> None:
        """Remove a closed peer's reservation. Its circuits stay open."""
        self._places.leave(peer)

    def has_place(self, peer: PeerId) -> bool:
        """Return whether this peer has a reservation."""
        return peer in self._places

    def swaps(self, now: float) -> list[Circuit]:
        """Return the circuits with a known `needs`."""
        self._forget(now)
        return [circuit for circuit in self._circuits.values() if circuit.needs > 0]

    def open_circuit(
        self, caller: PeerId, target: PeerId, block: str, *, bulk: bool, proven: bool, now: float, needs: float = 0.0
    ) -> tuple[Circuit, Circuit | None]:
        """Open a circuit and draw its slips. Return it, and the circuit that was closed to make room: the youngest of
        the address block with most circuits. `block`: address block of the caller. `proven`: whether the caller is
        proven. Raises CircuitRefused."""
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
        """Reserve a place for a circuit, among those to its target and among all. Return the circuit that was closed to
        make room."""
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
        """Use a slip that a connection presents. Return its circuit and whether it is the caller's end. None: the slip
        is invalid."""
        self._forget(now)
        return self._slips.pop(code, None)

    def close(self, circuit: Circuit) -> None:
        """Close a circuit."""
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
        """Close the circuits whose ends did not both connect in time."""
        late = {circuit.number: circuit for circuit, _ in self._slips.values() if circuit.until <= now}
        for circuit in late.values():
            self.close(circuit)
