"""Transfers over the in-memory network that resume after a link was away, as in `peer.transport.wire.resumption`. They
continue from where they were, until the caller's deadline, unless the other end died, was restarted or left."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from blake3 import blake3

from peer.errors import PartnerLost
from peer.lab.sim.virtual_clock import nap
from peer.protocol.messages import PeerId, Way
from peer.protocol.wire.payload import Arrived, Sink, Source, untold
from peer.transport.wire.resumption import FIRST_PAUSE_S, LINGER_S, LONGEST_PAUSE_S, REACH_S

if TYPE_CHECKING:
    from peer.lab.sim.network import Network


FIRST_REACH_S = 1.0
"""Seconds for the first attempt. A lost message stays lost here, while TCP sends a first packet again after 1, 2, 4
s."""


class ReconnectingSink:
    """The received part of a payload, handed over up to where it has arrived. The sink sees every byte once, in
    order."""

    def __init__(
        self, nbytes: int, sink: Sink | None = None, source: Source | None = None, arrived: Arrived = untold
    ) -> None:
        self.nbytes = nbytes
        self._arrived = arrived
        self._sink, self._source = sink, source
        self.at = 0
        self._digest = blake3()
        self.broken: PartnerLost | None = None
        """Why nothing moves now."""

    def mark_broken(self, error: PartnerLost) -> None:
        """Note why nothing moves any more."""
        self.broken = error

    def mark_mended(self) -> None:
        """Note that the ends reach each other again."""
        self.broken = None

    @property
    def digest(self) -> bytes:
        """BLAKE3 of what was handed over."""
        return self._digest.digest()

    def advance_to(self, mark: int) -> None:
        if mark > self.at and self._sink is not None and self._source is not None:
            data = self._source.read(self.at, mark - self.at)
            self._digest.update(data)
            self._sink.write(self.at, data)
        if mark > self.at:
            self._arrived(mark - self.at)
        self.at = max(self.at, mark)


async def carry_with_reconnects(
    network: Network,
    sender: PeerId,
    to: PeerId,
    arriving: ReconnectingSink,
    *,
    calls: PeerId,
    is_lost: Callable[[], bool] = lambda: False,
    patience_s: Callable[[], float] = lambda: math.inf,
    giving: bool = False,
) -> Way:
    """Move the payload, and return the way of the connection that brought its end. `calls`: which of the two made the
    call, and connects again. `is_lost`: whether it cannot be resumed. `patience_s`: how long a break may last.
    `giving`: it is a part of a state. Raises the error that broke it."""
    other = sender if calls == to else to
    known = network.host(other)
    while True:
        try:
            return await network.carry(
                sender, to, arriving.nbytes, arriving.advance_to, arriving.at, giving=giving, calls=calls
            )
        except PartnerLost as error:
            arriving.mark_broken(error)
        loop, pause, reach_s = asyncio.get_running_loop(), FIRST_PAUSE_S, FIRST_REACH_S
        began = loop.time()
        while arriving.broken is not None:
            if network.host(other) is not known or known is None or is_lost() or loop.time() - began > patience_s():
                raise arriving.broken
            await nap(pause)
            by = loop.time() + reach_s
            pause, reach_s = min(2 * pause, LONGEST_PAUSE_S), min(2 * reach_s, REACH_S)
            try:
                await network.reach(calls, other, by=by)
                await network.reach(other, calls, answer=True, by=by)
                arriving.mark_mended()
            except TimeoutError:
                continue


def longest_break_s(finished: bool) -> float:
    """Return how long a break may last: when the sender has everything itself, and when not."""
    return LINGER_S if finished else math.inf
