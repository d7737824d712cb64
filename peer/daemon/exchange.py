"""One swap as the coordinator sees it: encode, exchange, decode, look at the values; give up when the partner died."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from torch import Tensor

from peer.codec.plain import Codec
from peer.daemon.interfaces import Clock, Transport
from peer.errors import BadPayload, ExchangeError, PartnerLost
from peer.outer.rules import all_finite
from peer.protocol.messages import PeerId, PeerRecord, RoundKey, SwapReport
from peer.protocol.payload import BufferSink, BytesSource

T = TypeVar("T")

HEARTBEAT_S = 1.0
TRANSFER_SLACK_S = 5.0
TRANSFER_FACTOR = 4.0
"""A transfer may take this many times what the measured rate predicts, and the slack."""
ASSUMED_RATE = 250_000.0
"""Bytes per second assumed of a partner nothing was measured of."""


class Offload(Protocol):
    """Runs heavy work off the event loop, at low priority."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Exchange:
    """Swaps fragments and remembers how fast each partner was."""

    def __init__(self, transport: Transport, clock: Clock, codec: Codec, offload: Offload, cap: float | None) -> None:
        self._transport = transport
        self._clock = clock
        self._codec = codec
        self._offload = offload
        self._cap = cap
        self._rates: OrderedDict[PeerId, float] = OrderedDict()

    def budget_s(self, partner: PeerId, elements: int) -> float:
        """How long the transfer itself may take, from measured rates: never a constant alone."""
        rate = self._rates.get(partner) or (min(self._rates.values()) if self._rates else ASSUMED_RATE)
        if self._cap is not None:
            rate = min(rate, self._cap)
        return TRANSFER_SLACK_S + TRANSFER_FACTOR * self._codec.nbytes(elements) / rate

    async def swap(
        self,
        partner: PeerRecord,
        key: RoundKey,
        own: Tensor,
        wait_s: float,
        alive: Callable[[], Awaitable[bool]],
    ) -> tuple[Tensor, SwapReport]:
        """The partner's params, decoded, fp32, of own's shape. `wait_s`: how long it may take until the partner is
        ready; `alive` is asked every second meanwhile.

        Raises PartnerLost, PartnerRefused or BadPayload; then nothing of it may be used."""
        elements = own.numel()
        payload = await self._offload(lambda: self._encode(own))
        sink = BufferSink(self._codec.nbytes(elements))
        timeout_s = wait_s + self.budget_s(partner.peer_id, elements)
        swap = self._transport.swap(partner, key, BytesSource(payload), sink, timeout_s)
        report = await self._unless_dead(swap, alive)
        self._remember(partner.peer_id, report)
        return await self._offload(lambda: self._decode(sink, elements)), report

    def _encode(self, own: Tensor) -> bytes:
        assert all_finite(own), "the trainer never leaves params that are not finite"
        return self._codec.encode(own)

    def _decode(self, sink: BufferSink, elements: int) -> Tensor:
        values = self._codec.decode(sink.data, elements)
        if not all_finite(values):
            raise BadPayload("not_finite", "the partner's params hold NaN or infinity")
        return values

    def _remember(self, partner: PeerId, report: SwapReport) -> None:
        rate = report.bytes_received / max(report.seconds, 1e-3)
        self._rates[partner] = 0.5 * (self._rates.get(partner, rate) + rate)
        while len(self._rates) > 256:
            self._rates.popitem(last=False)

    async def _unless_dead(self, swap: Awaitable[SwapReport], alive: Callable[[], Awaitable[bool]]) -> SwapReport:
        """The side that waits to be dialled would not see the other die: ask it every second."""
        running = asyncio.ensure_future(swap)
        try:
            while True:
                done, _ = await asyncio.wait({running}, timeout=HEARTBEAT_S)
                if done:
                    return running.result()
                await self._check(alive, running)
        finally:
            running.cancel()
            await asyncio.wait({running})

    async def _check(self, alive: Callable[[], Awaitable[bool]], running: asyncio.Future[SwapReport]) -> None:
        try:
            holds_us = await alive()
        except ExchangeError as error:
            if running.done():
                return
            raise PartnerLost(f"the partner stopped answering: {error}") from error
        if not holds_us and not running.done():
            raise PartnerLost("the partner let go of this round")
