"""Keeps a port open at the router while this peer needs one, and closes it at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.aio.tasks import cancel_and_wait
from peer.observe.status.value import KnownFact
from peer.ports.clock import Clock
from peer.protocol.swarm.port_lease import PortLease, RouterRefusal, RouterRequest, Surroundings
from peer.transport.port_mapping.router import Router

TICK_S = 2.0
"""Seconds between two checks of the lease."""
ASK_S = 20.0
"""Timeout of one request to the router in seconds. Finding that there is no router takes six seconds."""
GIVE_BACK_S = 4.0
"""Timeout of closing the port at the end, in seconds. If the router is slower, the lease expires there."""


class PortMapper:
    """Keeps a port open at the router: asks `router` to open or close it whenever `lease` finds that due.

    `surroundings` returns the facts known about this machine's network. `notify` is called with the open port (0: none)
    and a message after every change. `store` is called with the port that the router may still hold open (0: none); it
    writes the port to disk, so that a later process can close it."""

    def __init__(
        self,
        lease: PortLease,
        inner: int,
        router: Router,
        clock: Clock,
        surroundings: Callable[[], Surroundings],
        notify: Callable[[int, str], None],
        store: Callable[[int], None],
    ) -> None:
        """`inner`: our own listening port, to which the router forwards."""
        self._lease = lease
        self._inner = inner
        self._router = router
        self._clock = clock
        self._surroundings = surroundings
        self._notify = notify
        self._store = store
        self._running: asyncio.Task[None] | None = None
        self._ending: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a task that runs until `close`."""
        assert self._running is None
        self._running = asyncio.create_task(self._run())

    def endpoints(self) -> tuple[str, ...]:
        """Return the endpoints of the router's port, which others may try. It is not proven that they work."""
        endpoint = self._lease.endpoint(self._surroundings().seen)
        return (endpoint,) if endpoint else ()

    def carries(self) -> bool:
        """Return whether others reach this peer through the router's port and in no other way."""
        return self._lease.carries(self._surroundings())

    def report(self) -> KnownFact:
        """Return the fact for `peer status`. `value` None: a port is open, but no one has connected through it yet."""
        here = self._surroundings()
        value = None if self._lease.held is not None and not self._lease.carries(here) else self._lease.carries(here)
        return KnownFact(value, self._lease.why(here, self._clock.now()))

    async def close(self) -> None:
        """Close the router's port, within `GIVE_BACK_S`. A second call waits for the first."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._running is not None:
            await cancel_and_wait(self._running)
            await self._close_port(GIVE_BACK_S)
            if not self._running.cancelled():
                self._running.result()  # the task ends only by an error, which this raises

    async def _run(self) -> None:
        while True:
            await self._renew()
            await self._clock.sleep(TICK_S)

    async def _renew(self) -> None:
        here, now = self._surroundings(), self._clock.now()
        self._report_change(self._lease.notice(here, now))
        match self._lease.next_request(here, now):
            case RouterRequest.OPEN:
                await self._open()
            case RouterRequest.CLOSE:
                await self._close_port(ASK_S)

    async def _open(self) -> None:
        lease = self._lease
        lease.begun(self._clock.now())
        self._store(lease.to_close())
        answer = await self._router.open(lease.ports(), self._inner, lease.terms.lease_s, ASK_S)
        here, now = self._surroundings(), self._clock.now()
        if isinstance(answer, RouterRefusal):
            self._report_change(lease.refused(answer, here, now))
        else:
            self._report_change(lease.opened(answer, here, now))
        self._store(lease.to_close())

    async def _close_port(self, timeout_s: float) -> None:
        if port := self._lease.to_close():
            why = await self._router.close(port, self._inner, timeout_s)
            self._report_change(self._lease.closed(why, self._clock.now()))
            if not why:
                self._store(0)

    def _report_change(self, news: str) -> None:
        if news:
            self._notify(self._lease.held.port if self._lease.held is not None else 0, news)
