"""Finds out why a peer did not answer over a relay: it is called again over that relay and, at the same time, over its
other relays.

If it answers over another relay, later calls use that one. If it then does not answer over the first relay, that relay
is suspected, and some other peers that we call over it are tested in the same way (`peer.protocol.relay.testimony`)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from peer.aio.staggered import first_of
from peer.aio.tasks import cancel_and_wait
from peer.codes import Code
from peer.protocol.messages import PeerId, PeerRecord, RelayAddress
from peer.protocol.relay.testimony import MOST_PATIENCE_S, RelayFault, fault_of, patience_s
from peer.transport.client.circuits import Circuits
from peer.transport.client.connections import SLOW_S, STAGGER_S, Connection, ConnectionPool

WITNESSES = 3
"""Most other peers that are called to test a relay."""
SILENT_HERE = RelayFault(Code.SILENT, "a peer was silent over it, and answered over another relay")
"""Fault of a relay over which a peer did not answer, although it answered over another relay."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Result of a test call to a peer over the suspected relay."""

    answered: bool
    fault: RelayFault | None = None
    """The relay's fault. None where the result says nothing about the relay: it is gone itself, or it refused."""


class RelayFaultFinder:
    """Finds the fault when peers do not answer over a relay. Its tasks run in the background of `pool`."""

    def __init__(self, pool: ConnectionPool, circuits: Circuits) -> None:
        self._pool = pool
        self._circuits = circuits
        self._sought = set[tuple[PeerId, PeerId]]()
        """Running tests: (peer, suspected relay)."""

    def seek(self, to: PeerRecord, used: Connection, *, silent: bool) -> None:
        """Start testing whether a peer answers, after a call to it over a relay was lost. `silent`: the connection
        stayed open, but nothing arrived."""
        if used.relay is None or (to.peer_id, used.relay) in self._sought:
            return
        over = next((one for one in to.relays if one.peer_id == used.relay), None)
        if over is not None and (others := self._others(to, over)):
            self._sought.add((to.peer_id, used.relay))
            self._pool.run_in_background(self._test(to.peer_id, over, others, silent=silent))

    async def _test(self, peer: PeerId, over: RelayAddress, others: Sequence[RelayAddress], *, silent: bool) -> None:
        callees = set[PeerId]()

        def there() -> None:
            if silent:
                self._circuits.failed(over.peer_id, peer, SILENT_HERE)
                callees.update(self._pool.retire_over(over.peer_id))

        try:
            async with self._calling(peer, over, others, there) as (elsewhere, again):
                if await elsewhere is None:
                    return
                answer = await again
            if answer.fault is not None:
                callees |= self._pool.retire_over(over.peer_id)
                found = await self._witnesses(callees - {peer}, over)
                self._circuits.tried(over.peer_id, {peer: answer.fault, **found})
        finally:
            self._sought.discard((peer, over.peer_id))

    async def _witnesses(self, peers: set[PeerId], over: RelayAddress) -> dict[PeerId, RelayFault | None]:
        """Test the relay with some other peers. Return the results of those that are reachable."""
        some = random.sample(sorted(peers), min(WITNESSES, len(peers)))
        answers = await asyncio.gather(*(self._witness(peer, over) for peer in some))
        return {
            peer: one.fault for peer, one in zip(some, answers, strict=True) if one.answered or one.fault is not None
        }

    async def _witness(self, peer: PeerId, over: RelayAddress) -> _Answer:
        record = self._circuits.known(peer)
        address = next((one for one in record.relays if one.peer_id == over.peer_id), None) if record else None
        if record is None or address is None:
            return _Answer(False)
        async with self._calling(peer, address, self._others(record, address)) as (elsewhere, again):
            answer = await again
            return answer if answer.answered or await elsewhere is not None else _Answer(False)

    @contextlib.asynccontextmanager
    async def _calling(
        self, peer: PeerId, over: RelayAddress, others: Sequence[RelayAddress], there: Callable[[], None] = lambda: None
    ) -> AsyncIterator[tuple[asyncio.Task[float | None], asyncio.Task[_Answer]]]:
        """Call a peer over its other relays and over the suspected one, during the block. `there` is called when the
        peer answers over another relay."""
        elsewhere = asyncio.create_task(self._elsewhere(peer, others, there), name="asked elsewhere")
        again = asyncio.create_task(self._call_again(peer, over, elsewhere), name="asked again")
        try:
            yield elsewhere, again
        finally:
            await cancel_and_wait(again)
            await cancel_and_wait(elsewhere)

    async def _elsewhere(self, peer: PeerId, others: Sequence[RelayAddress], there: Callable[[], None]) -> float | None:
        """Return the seconds until a peer answers over one of these relays, and store that connection; None: it does
        not answer."""
        began = time.monotonic()
        ways = [partial(self._pool.connect_over, peer, relay, SLOW_S) for relay in others]
        found: Connection | None = None
        with contextlib.suppress(OSError):  # no socket left: the test has no result
            found = await first_of(ways, STAGGER_S, lambda late: late.close())
        if found is None:
            return None
        answered_s = time.monotonic() - began
        there()
        await self._pool.store(peer, found)
        return answered_s

    async def _call_again(self, peer: PeerId, over: RelayAddress, elsewhere: asyncio.Task[float | None]) -> _Answer:
        """Call a peer over a new circuit of the suspected relay. The time allowed follows from how fast the relay
        itself answers."""
        began, tunnel = time.monotonic(), self._circuits.tunnel(over, peer)
        trying = asyncio.create_task(self._pool.connect_over(peer, over, MOST_PATIENCE_S + SLOW_S, tunnel))
        try:
            waits_s = SLOW_S
            while not trying.done() and waits_s > time.monotonic() - began:
                await asyncio.wait({trying}, timeout=waits_s - (time.monotonic() - began))
                took_s = elsewhere.result() if elsewhere.done() and not elsewhere.cancelled() else None
                waits_s = patience_s(SLOW_S, tunnel.asked_s, took_s)
            ended = trying.done()
            try:
                made = trying.result() if ended else None
            except OSError:  # no socket left: the test has no result
                return _Answer(False)
            if made is not None:
                await made.close()
                return _Answer(True)
            if tunnel.asked_s is None or tunnel.refused:
                return _Answer(False)
            return _Answer(False, fault_of(tunnel.asked_s, time.monotonic() - began, ended=ended))
        finally:
            await cancel_and_wait(trying)

    def _others(self, to: PeerRecord, over: RelayAddress) -> list[RelayAddress]:
        return [one for one in self._pool.relays_of(to) if one.peer_id != over.peer_id]
