"""Recovers after the machine slept (for example, a closed laptop) or the process was stopped. The suspension is noticed
within a second and journaled. Before the next exchange, connections are renewed, our record and the directory are
refreshed, and the clock is measured again. A step of the wall clock changes nothing and is only journaled
(`peer.protocol.swarm.suspend_detection`).

On failure: a peer that cannot be greeted gives no clock sample. The whole refresh is given up after `REFRESH_S`, and
the rounds continue without it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable

from peer.aio.events import Latch, Signal
from peer.clock.monotonic import boottime
from peer.errors import ExchangeError
from peer.membership.peer_table import PeerTable
from peer.observe import events
from peer.ports.clock import Clock
from peer.ports.transport import SwarmCalls
from peer.protocol.endpoints import voice_of
from peer.protocol.messages import PeerRecord, Welcome
from peer.protocol.swarm.block_votes import in_turn
from peer.protocol.swarm.suspend_detection import ClockReading, Slept, Stepped, SuspendDetector

BEAT_S = 1.0
REFRESH_S = 15.0
SETTLE_S = 6.0
"""Most seconds for which an exchange waits for the refresh."""
GREETED = 5
"""Number of peers that are asked for the time."""
ENOUGH = 3
"""Number of answers that suffice, from as many networks as possible. Fewer than GREETED, because a peer may be gone
while an exchange waits."""
HELLO_S = 5.0


def read_clocks() -> ClockReading:
    """Read the three clocks of this machine."""
    return ClockReading(boottime(), time.monotonic(), time.time())


class SuspendRecovery:
    """Detects that the machine slept or the process was stopped, and refreshes stale state before the next exchange.

    `refresh`: renews connections, records and clock; awaited after each suspension. `woke`: called as soon as a
    suspension is detected. `read`: reads the clocks."""

    def __init__(
        self,
        refresh: Callable[[], Awaitable[None]],
        emit: Callable[[events.Event], None],
        woke: Callable[[Slept], None] = lambda slept: None,
        read: Callable[[], ClockReading] = read_clocks,
    ) -> None:
        self._refresh = refresh
        self._emit = emit
        self._woke = woke
        self._read = read
        self._detector = SuspendDetector(BEAT_S, read())
        self._noticed = Signal()
        self._fresh = Latch()
        self._fresh.set()

    async def run(self) -> None:
        """Watch for suspensions until cancelled."""
        async with asyncio.TaskGroup() as refreshing:
            while True:
                await self._noticed.wait_for(BEAT_S)
                self._look()
                if self._noticed.is_set():
                    self._noticed.clear()
                    refreshing.create_task(self._make_good())

    async def settled(self) -> None:
        """Wait until a refresh under way has ended, at most `SETTLE_S`. Called before each exchange; returns at once if
        no refresh is under way."""
        self._look()
        if not self._fresh.is_set():
            await asyncio.wait({self._fresh.future}, timeout=SETTLE_S)

    def _look(self) -> None:
        for what in self._detector.observe(self._read()):
            if isinstance(what, Stepped):
                reason = "this machine's clock was set; rounds go by another one, which the others correct"
                self._emit(events.ClockStepped(seconds=round(what.seconds, 3), reason=reason))
                continue
            self._emit(
                events.Woke(
                    seconds=round(what.seconds, 3), suspended_s=round(what.suspended_s, 3), reason=f"was {what}"
                )
            )
            self._fresh.clear()
            self._noticed.set()
            self._woke(what)

    async def _make_good(self) -> None:
        try:
            async with asyncio.timeout(REFRESH_S):
                await self._refresh()
        except TimeoutError:
            return  # the peer table keeps looking and announcing by itself
        finally:
            self._fresh.set()


async def refresh(transport: SwarmCalls, clock: Clock, peer_table: PeerTable, rng: random.Random) -> None:
    """Renew connections, our record, the directory's records and the clock offset."""
    remembered = peer_table.remembered()
    await transport.forget_connections()
    asked = in_turn(rng.sample(remembered, len(remembered)), _named_network)[:GREETED]
    async with asyncio.TaskGroup() as group:
        group.create_task(peer_table.refresh())
        group.create_task(_greet(transport, clock, asked))


def _named_network(record: PeerRecord) -> str:
    return voice_of(next(iter(record.endpoints), ""))


async def _greet(transport: SwarmCalls, clock: Clock, asked: list[PeerRecord]) -> None:
    """Say Hello to peers until enough have answered, then set the clock offset from all answers together, so that the
    quickest answer alone cannot move the clock."""
    networks = min(ENOUGH, len(set(map(_named_network, asked))))
    waiting, heard = {asyncio.create_task(_measure(transport, record)) for record in asked}, list[Welcome]()
    try:
        while waiting and (len(heard) < ENOUGH or len({welcome.voice for welcome in heard}) < networks):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            heard += [welcome for task in done if (welcome := task.result()) is not None]
        clock.forget_offsets()
        for welcome in heard:
            clock.observe(welcome.clock_offset_s, welcome.voice)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _measure(transport: SwarmCalls, record: PeerRecord) -> Welcome | None:
    """Return the answer of a peer; None: it gave none."""
    try:
        return await transport.hello(record, HELLO_S)
    except ExchangeError:
        return None
