"""Transfers over the in-memory network that resume after an interruption, as in `peer.transport.wire.resumption`. A
transfer continues where it stopped, until the caller's deadline, unless the other end died, restarted or left."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from blake3 import blake3

from peer.errors import PartnerLost
from peer.lab.sim.virtual_clock import nap
from peer.protocol.messages import PeerId, Way
from peer.protocol.wire.payload import Arrived, Sink, Source, ignore_arrival
from peer.transport.wire.resumption import FIRST_PAUSE_S, LINGER_S, LONGEST_PAUSE_S, REACH_S

if TYPE_CHECKING:
    from peer.lab.sim.network import Network


FIRST_REACH_S = 1.0
"""Timeout of the first attempt to reconnect, in seconds. Short, because a lost message stays lost here, while TCP
repeats a first packet after 1, 2 and 4 s."""


class ReconnectingSink:
    """The receiver's side of a resumable transfer. Writes the payload into a sink up to where it has arrived; the sink
    gets every byte once, in order."""

    def __init__(
        self, nbytes: int, sink: Sink | None = None, source: Source | None = None, arrived: Arrived = ignore_arrival
    ) -> None:
        self.nbytes = nbytes
        self._arrived = arrived
        self._sink, self._source = sink, source
        self.at = 0
        self._digest = blake3()
        self.broken: PartnerLost | None = None
        """The error that interrupted the transfer. None: not interrupted."""

    def mark_broken(self, error: PartnerLost) -> None:
        """Mark the transfer as interrupted by this error."""
        self.broken = error

    def mark_mended(self) -> None:
        """Mark the transfer as running again."""
        self.broken = None

    @property
    def digest(self) -> bytes:
        """BLAKE3 of the bytes written so far."""
        return self._digest.digest()

    def advance_to(self, mark: int) -> None:
        """Write the payload up to `mark`, in bytes from the start."""
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
    """Transfer the payload, reconnecting after interruptions. Return the path of the connection that completed it.

    calls: which of the two made the call, and therefore reconnects. is_lost: whether the transfer can no longer be
    resumed. patience_s: the longest interruption, in seconds. giving: the payload is a part of a donated state. Raises
    the error that interrupted it when it cannot be resumed."""
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
    """Return the longest interruption in seconds. `finished`: the sender already has everything it waits for, and
    leaves soon."""
    return LINGER_S if finished else math.inf
