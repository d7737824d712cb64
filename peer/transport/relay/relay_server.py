"""A relay's side: it holds places for closed peers, and splices circuits to them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.codes import Code
from peer.errors import PartnerRefused, RelayBusy
from peer.observe.status.value import RelayingStatus
from peer.protocol.messages import PeerId
from peer.protocol.relay.circuits import CLAIM_S, Circuit, CircuitRefused, CircuitTable
from peer.protocol.swarm.relay_load import RelayLoad
from peer.transport.relay.pipe import Stream, join_streams
from peer.transport.relay.throttle import RelayThrottle
from peer.transport.relay.wire import encode_address

IDLE_S = 120.0
"""Seconds without a byte after which a circuit ends. gRPC asks a silent caller after 60 s whether it is there."""
TOTAL_S = 3600.0
"""Seconds after which a circuit ends. Both ends open another one unnoticed."""
MAX_CALLS_WAITING = 16
"""Calls that a closed peer was not told of yet."""
OFF = "this peer relays nothing"


@dataclass(slots=True)
class Reservation:
    """A closed peer's place. `calls`: the slips of circuits that wait for it."""

    peer: PeerId
    calls: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MAX_CALLS_WAITING))
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the place went to another peer."""


@dataclass(slots=True)
class _Ends:
    circuit: Circuit
    here: dict[bool, tuple[Stream, str]] = field(default_factory=dict)
    """The ends that are there, by whether it is the caller's, with the address that each was seen from."""

    def abort(self) -> None:
        for stream, _ in self.here.values():
            stream.abort()


class RelayServer:
    """All reservations and circuits of one relay. `now`: seconds of any origin."""

    def __init__(
        self, throttle: RelayThrottle | None, now: Callable[[], float], rng: random.Random | None = None
    ) -> None:
        """`throttle` None: nothing is relayed. `rng` draws slips; None: the system does."""
        self.throttle = throttle
        self._now = now
        self._table = CircuitTable(rng or random.SystemRandom())
        self._reservations: dict[PeerId, Reservation] = {}
        self._ends: dict[int, _Ends] = {}
        self._carried: dict[asyncio.Task[None], _Ends] = {}
        self._closed = False

    @property
    def rate(self) -> float:
        """The cap in bytes per second; 0: nothing is relayed."""
        return 0.0 if self.throttle is None else self.throttle.rate

    def report(self) -> RelayingStatus:
        """Return the numbers for `peer status`."""
        return RelayingStatus(
            rate=self.rate,
            reservations=self._table.reserved,
            circuits=self._table.open,
            bytes=0 if self.throttle is None else self.throttle.passed,
            why_not=OFF if self.throttle is None else self.throttle.refusal_reason(),
        )

    # -- calls of the gRPC service -------------------------------------------------------------------------------------

    def reserve(self, peer: PeerId, block: str, *, proven: bool) -> Reservation:
        """Hold a place for a closed peer until `release`. A second reservation takes the place of the first.

        Raises PartnerRefused when nothing is relayed here, or all places are taken."""
        self._ensure_on()
        try:
            evicted = self._table.reserve(peer, block, proven=proven)
        except CircuitRefused as refused:
            raise PartnerRefused(refused.code, refused.reason) from None
        for loser in (evicted, peer):
            if loser is not None and (held := self._reservations.pop(loser, None)) is not None:
                held.lost.set()
        made = self._reservations[peer] = Reservation(peer)
        return made

    def release(self, reservation: Reservation) -> None:
        """Take a place back, unless the peer has reserved again meanwhile."""
        if self._reservations.get(reservation.peer) is reservation:
            del self._reservations[reservation.peer]
            self._table.release(reservation.peer)

    def call(
        self, caller: PeerId, target: PeerId, block: str, *, bulk: bool, proven: bool, needs: float = 0.0
    ) -> bytes:
        """Open a circuit to a closed peer and tell it; return the caller's slip. `block`: the caller's address block.
        `needs`: bytes per second each way of a swap; 0: not known. Raises PartnerRefused, and RelayBusy where a swap
        would be too slow."""
        self._ensure_on()
        self._ensure_room(needs, block)
        held = self._reservations.get(target)
        if held is not None and held.calls.full():
            raise PartnerRefused(Code.BUSY, "too many callers wait for that peer")
        try:
            circuit, ended = self._table.open_circuit(
                caller, target, block, bulk=bulk, proven=proven, now=self._now(), needs=needs
            )
        except CircuitRefused as refused:
            raise PartnerRefused(refused.code, refused.reason) from None
        if ended is not None:
            self._end(ended)
        assert held is not None, "a peer with a place has a reservation"
        held.calls.put_nowait(circuit.target.code)
        return circuit.caller.code

    def _ensure_room(self, needs: float, block: str) -> None:
        """Raises RelayBusy where one more swap would be too slow.

        Blocks share the cap. So no block counts for more swaps than this one would have, and no claim for more than
        this one: who asks much, or often, would else keep all others out."""
        load, counted, swaps = RelayLoad(self.rate), Counter[str](), self._table.swaps(self._now())
        ours = sum(circuit.block == block for circuit in swaps)
        for circuit in swaps:
            counted[circuit.block] += 1
            if circuit.block == block or counted[circuit.block] <= ours + 1:
                load.begins(circuit.number, min(circuit.needs, needs))
        if needs > 0 and (why := load.why_not(needs)):
            raise RelayBusy(why)

    def _ensure_on(self) -> None:
        if self.throttle is None:
            raise PartnerRefused(Code.OFF, OFF)
        if why := self.throttle.refusal_reason():
            raise PartnerRefused(Code.BUDGET, why)

    # -- ends of circuits, from the front ------------------------------------------------------------------------------

    def claim(self, slip: bytes | None) -> tuple[Circuit, bool] | None:
        """Take a slip that a connection shows: its circuit, and whether it is the caller's end. None: it is no slip."""
        return None if slip is None else self._table.claim(slip, self._now())

    def arrived(self, circuit: Circuit, stream: Stream, address: str, *, caller: bool) -> None:
        """Take one end of a circuit. Once both are there, bytes pass. An end whose other end does not come is dropped.

        `address`: from where this end calls, as gRPC writes it."""
        if self._closed:
            stream.abort()
            return
        ends = self._ends.setdefault(circuit.number, _Ends(circuit))
        ends.here[caller] = stream, address
        if len(ends.here) == 2:
            del self._ends[circuit.number]
            task = asyncio.create_task(self._carry(ends), name="circuit")
            self._carried[task] = ends
            task.add_done_callback(self._carried.pop)
        else:
            asyncio.get_running_loop().call_later(CLAIM_S, self._give_up, ends)

    def _give_up(self, ends: _Ends) -> None:
        if self._ends.get(ends.circuit.number) is ends:
            del self._ends[ends.circuit.number]
            self._table.close(ends.circuit)
            ends.abort()

    def _end(self, circuit: Circuit) -> None:
        """End a circuit that gave way to another one."""
        if (waiting := self._ends.get(circuit.number)) is not None:
            self._give_up(waiting)
        for ends in self._carried.values():
            if ends.circuit is circuit:
                ends.abort()

    async def _carry(self, ends: _Ends) -> None:
        circuit, throttle = ends.circuit, self.throttle
        assert throttle is not None
        (one, one_seen), (other, other_seen) = ends.here[True], ends.here[False]
        one.send(encode_address(other_seen))
        other.send(encode_address(one_seen))
        turn = throttle.turn(circuit.number, circuit.block, bulk=circuit.bulk)
        try:
            await join_streams(one, other, turn=turn, chunk=throttle.chunk, idle_s=IDLE_S, total_s=TOTAL_S)
        finally:
            self._table.close(circuit)

    async def close(self) -> None:
        """End all circuits and reservations, and begin no more."""
        self._closed = True
        for held in self._reservations.values():
            held.lost.set()
        for ends in list(self._ends.values()):
            self._give_up(ends)
        carried = dict(self._carried)
        for task, ends in carried.items():
            task.cancel()
            ends.abort()  # a task that has not begun closes nothing
        await asyncio.gather(*carried, return_exceptions=True)
