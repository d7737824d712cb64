"""The relay's side: holds places for closed peers, and connects callers to them by circuits."""

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
"""Seconds without a byte after which a circuit is closed. gRPC pings an idle connection after 60 s."""
TOTAL_S = 3600.0
"""Seconds after which any circuit is closed. The two ends then open another one automatically."""
MAX_CALLS_WAITING = 16
"""Most calls that wait to be announced to a closed peer."""
OFF = "this peer relays nothing"
"""Reason of all refusals when this peer relays nothing."""


@dataclass(slots=True)
class Reservation:
    """The place of a closed peer. `calls`: slips of circuits to announce to it."""

    peer: PeerId
    calls: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(MAX_CALLS_WAITING))
    lost: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the place was given to another peer."""


@dataclass(slots=True)
class _Ends:
    """The ends of a circuit that have connected so far."""

    circuit: Circuit
    here: dict[bool, tuple[Stream, str]] = field(default_factory=dict)
    """Whether it is the caller's end -> its stream, and the address from which it connects."""

    def abort(self) -> None:
        for stream, _ in self.here.values():
            stream.abort()


class RelayServer:
    """All reservations and circuits of one relay. `now`: seconds from any origin."""

    def __init__(
        self, throttle: RelayThrottle | None, now: Callable[[], float], rng: random.Random | None = None
    ) -> None:
        """`throttle` None: nothing is relayed. `rng` draws slips; None: the system's secure generator."""
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
        """Hold a place for a closed peer until `release`. A second reservation replaces the peer's first.

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
        """End a reservation, unless the peer has made another one since."""
        if self._reservations.get(reservation.peer) is reservation:
            del self._reservations[reservation.peer]
            self._table.release(reservation.peer)

    def call(
        self, caller: PeerId, target: PeerId, block: str, *, bulk: bool, proven: bool, needs: float = 0.0
    ) -> bytes:
        """Open a circuit to a closed peer and announce it. Return the caller's slip.

        `block`: the caller's address block. `needs`: bytes per second in each direction for a swap; 0: unknown. Raises
        PartnerRefused, or RelayBusy when a swap would be too slow."""
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
        held.calls.put_nowait(circuit.target_slip.code)
        return circuit.caller_slip.code

    def _ensure_room(self, needs: float, block: str) -> None:
        """Raise RelayBusy if one more swap would be too slow.

        Address blocks share the cap. For this decision, each block is counted with at most as many swaps as the
        caller's block would have, and each swap with at most the `needs` of the requested one. Otherwise one block
        could keep out all others by many or large claims."""
        load, counted, swaps = RelayLoad(self.rate), Counter[str](), self._table.swaps(self._now())
        ours = sum(circuit.block == block for circuit in swaps)
        for circuit in swaps:
            counted[circuit.block] += 1
            if circuit.block == block or counted[circuit.block] <= ours + 1:
                load.begins(circuit.number, min(circuit.needs, needs))
        if needs > 0 and (why := load.refusal_reason(needs)):
            raise RelayBusy(why)

    def _ensure_on(self) -> None:
        if self.throttle is None:
            raise PartnerRefused(Code.OFF, OFF)
        if why := self.throttle.refusal_reason():
            raise PartnerRefused(Code.BUDGET, why)

    # -- ends of circuits, from the front ------------------------------------------------------------------------------

    def claim(self, slip: bytes | None) -> tuple[Circuit, bool] | None:
        """Redeem the slip that a connection presents. Return its circuit, and whether it is the caller's end; None: the
        slip is invalid."""
        return None if slip is None else self._table.claim(slip, self._now())

    def arrived(self, circuit: Circuit, stream: Stream, address: str, *, caller: bool) -> None:
        """Add one end of a circuit. When both ends are there, bytes are forwarded. If the other end does not come
        within `CLAIM_S`, this end is closed.

        `address`: from where this end connects, in gRPC's notation."""
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
        """Close a circuit that was evicted by another one."""
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
        """Close all circuits and reservations, and accept no new ones."""
        self._closed = True
        for held in self._reservations.values():
            held.lost.set()
        for ends in list(self._ends.values()):
            self._give_up(ends)
        carried = dict(self._carried)
        for task, ends in carried.items():
            task.cancel()
            ends.abort()  # needed for a task that was cancelled before it started
        await asyncio.gather(*carried, return_exceptions=True)
