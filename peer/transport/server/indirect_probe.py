"""Indirect probes (SWIM's ping-req): a caller asks whether we reach a peer that does not answer it.

If that peer called us recently, the answer is yes without dialling. Otherwise it is dialled at the addresses of its own
signed record, where its key has to answer. Results are cached, so that a peer is dialled at most once per `EVERY_S`,
however many callers ask. At most `MAX_AT_ONCE` dials run at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TypeVar

from peer.errors import NotDialled
from peer.protocol.messages import PeerId, PeerRecord, Reach, Vouched
from peer.protocol.swarm.failure_detection import HEARD_S
from peer.transport.server.dial_back import SILENT, Dial

V = TypeVar("V")
CallOverRelays = Callable[[PeerRecord, float], Awaitable[str]]
"""Function (record, timeout) that returns why the peer does not answer over its relays; empty: it does."""

EVERY_S = 10.0
"""Seconds for which the result of a dial is cached."""
CALLER_EVERY_S = 0.5
"""Shortest time between two answers to one caller, in seconds."""
DIAL_S = 3.5
MAX_ENDPOINTS_DIALLED = 2
MAX_AT_ONCE = 4
MAX_REMEMBERED = 1024
MAX_PEER_ID = 64


class IndirectProbe:
    """Answers indirect probes. `dial` makes the connection or raises NotDialled. `now`: seconds. `relayed` calls a peer
    over its relays; None: such peers are not called."""

    def __init__(self, dial: Dial, now: Callable[[], float], relayed: CallOverRelays | None = None) -> None:
        self._dial = dial
        self._relayed = relayed
        self._now = now
        self._found: OrderedDict[PeerId, tuple[float, Vouched]] = OrderedDict()
        self._asked: OrderedDict[PeerId, float] = OrderedDict()
        self._running: set[PeerId] = set()

    async def vouch(
        self, caller: PeerId, about: PeerId, record: PeerRecord | None, heard_ago_s: float | None
    ) -> Vouched:
        """Return whether we reach the peer `about`. Takes at most `DIAL_S`; never raises.

        `record` and `heard_ago_s` are what we know of that peer: its record, and the seconds since it last called;
        None: unknown."""
        now = self._now()
        if why := self._too_often(caller, now):
            return Vouched(None, why)
        if about == caller:
            return Vouched(None, "nobody vouches for himself")
        if heard_ago_s is not None and heard_ago_s <= HEARD_S:
            return Vouched(True, f"heard from {heard_ago_s:.0f} s ago")
        at, found = self._found.get(about, (0.0, None))
        if found is not None and 0 <= now - at < EVERY_S:
            return found
        if record is None or not record.reach or (self._relayed is None and record.reach is Reach.RELAYED):
            return Vouched(None, "no address of it is known here")
        if len(self._running) >= MAX_AT_ONCE or about in self._running:
            return Vouched(None, "busy with other calls")
        return await self._probe(about, record)

    async def _probe(self, about: PeerId, record: PeerRecord) -> Vouched:
        self._running.add(about)
        try:
            tried = await self._tried(about, record)
        finally:
            self._running.discard(about)
        whys = [why for why in tried if why is not None]
        if not whys:
            return Vouched(None, "its addresses are not dialled from here now")
        found = Vouched(True, "it answers") if not all(whys) else Vouched(False, SILENT)
        _remember(self._found, about, (self._now(), found))
        return found

    async def _tried(self, about: PeerId, record: PeerRecord) -> list[str | None]:
        """Dial a peer, or call it over its relays. Return why each attempt failed; empty: it answered; None: not
        dialled."""
        if record.reach is Reach.RELAYED and self._relayed is not None:
            return [await self._relayed(record, DIAL_S)]
        endpoints = record.endpoints[:MAX_ENDPOINTS_DIALLED]
        return list(await asyncio.gather(*(self._try(about, endpoint) for endpoint in endpoints)))

    async def _try(self, about: PeerId, endpoint: str) -> str | None:
        """Return the result of `Dial`; None: this address may not be dialled."""
        try:
            return await self._dial(about, endpoint, DIAL_S)
        except NotDialled:
            return None

    def _too_often(self, caller: PeerId, now: float) -> str:
        """Return why the caller is refused for probing too often; empty: it is not."""
        if 0 <= now - self._asked.get(caller, float("-inf")) < CALLER_EVERY_S:
            return f"asked again within {CALLER_EVERY_S} s"
        _remember(self._asked, caller, now)
        return ""


def _remember(table: OrderedDict[PeerId, V], peer: PeerId, value: V) -> None:
    table[peer] = value
    table.move_to_end(peer)
    while len(table) > MAX_REMEMBERED:
        table.popitem(last=False)
