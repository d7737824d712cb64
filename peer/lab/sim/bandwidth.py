"""Bulk transfers that share links. A link gives each of its transfers an equal part. A transfer goes at the smaller of
its parts at both ends and its stream's own cap. (Capacity that one end cannot use does not go to the other end's
neighbours: a mix of fast and slow partners is a little slower than in reality.)

Rates change only when a transfer begins or ends, or a link changes. Between two changes progress is a product, so a
transfer costs a few events, however long it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from peer.errors import PartnerLost, PartnerSilent
from peer.lab.sim.links import Link, stream_cap
from peer.protocol.messages import PeerId

STALL_S = 5.0
"""Seconds without progress after which a transfer fails, as in the real transport."""


class Flow:
    """One transfer under way. Bytes are those on the wire."""

    def __init__(self, sender: PeerId, receiver: PeerId, total: float, *, at: float, order: int) -> None:
        """`at`: when it begins, in the loop's time. `order`: its number in the network."""
        self.sender, self.receiver, self.total, self.order = sender, receiver, total, order
        self.done = self.rate = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self._at = at
        self._target = 0.0
        """Bytes for which `_waiter` waits."""
        self._waiter: asyncio.Future[None] | None = None

    def expect(self, nbytes: float, now: float) -> asyncio.Future[None]:
        """Return a future that is done when so many bytes are through."""
        self.settle(now)
        self._target = nbytes
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self.schedule(now)
        return waiter

    def change_rate(self, rate: float, now: float) -> None:
        """Go on at another rate, in bytes per second."""
        self.settle(now)
        self.rate = rate
        self.schedule(now)

    def settle(self, now: float) -> None:
        self.done = min(self.total, self.done + self.rate * (now - self._at))
        self._at = now

    def schedule(self, now: float) -> None:
        """Set the timer: the waiter is woken when the target is reached at the present rate, or told that nothing
        moves."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self._waiter is None or self._waiter.done():
            return
        left = self._target - self.done
        if left <= 1e-6 * max(1.0, self.total):
            self.done = max(self.done, self._target)
            self._waiter.set_result(None)
        elif self.rate > 0:
            self.timer = asyncio.get_running_loop().call_at(now + left / self.rate, self._arrived)
        else:
            self.timer = asyncio.get_running_loop().call_at(now + STALL_S, self._stalled)

    def _arrived(self) -> None:
        self.timer = None
        self.settle(asyncio.get_running_loop().time())
        self.done = max(self.done, self._target)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _stalled(self) -> None:
        self.fail(PartnerSilent(f"nothing came for {STALL_S:.0f} s in the middle of a payload", "silent"))

    def fail(self, error: PartnerLost) -> None:
        """Fail the waiter."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


@dataclass(slots=True)
class Flows:
    """The transfers of a network. `link`: of a peer. `open`: whether bytes pass from one to another now."""

    link: Callable[[PeerId], Link]
    open: Callable[[PeerId, PeerId], bool]
    path: Callable[[PeerId, PeerId], float] = lambda sender, to: math.inf
    """Bytes per second between two peers, whatever their links could carry."""
    _up: dict[PeerId, dict[Flow, None]] = field(default_factory=dict)
    _down: dict[PeerId, dict[Flow, None]] = field(default_factory=dict)
    _begun: int = 0

    def begin(self, sender: PeerId, receiver: PeerId, nbytes: float) -> Flow:
        """Begin a transfer, which takes its part of both links until `end`."""
        self._begun += 1
        flow = Flow(sender, receiver, nbytes, at=asyncio.get_running_loop().time(), order=self._begun)
        self._up.setdefault(sender, {})[flow] = None
        self._down.setdefault(receiver, {})[flow] = None
        self._share(sender, receiver)
        return flow

    def end(self, flow: Flow) -> None:
        """End a transfer, complete or not, and free its part."""
        self._up[flow.sender].pop(flow, None)
        self._down[flow.receiver].pop(flow, None)
        if flow.timer is not None:
            flow.timer.cancel()
        self._share(flow.sender, flow.receiver)

    async def until(self, flow: Flow, nbytes: float) -> None:
        """Wait until so many bytes are through. Raises PartnerLost when an end vanishes, PartnerSilent when
        nothing moves for `STALL_S`."""
        await flow.expect(nbytes, asyncio.get_running_loop().time())

    def changed(self, peer: PeerId | None = None) -> None:
        """Recompute rates after a change of a link, or of the open paths: of one peer, or (None) of all."""
        for one in sorted({*self._up, *self._down}) if peer is None else [peer]:
            self._share(one, one)

    def break_off(self, peer: PeerId) -> None:
        """Break all transfers with a peer that is gone."""
        for flow in [*self._up.get(peer, ()), *self._down.get(peer, ())]:
            flow.settle(asyncio.get_running_loop().time())
            flow.fail(PartnerLost(f"{peer} vanished in the middle"))

    def _share(self, sender: PeerId, receiver: PeerId) -> None:
        """Compute the parts of all transfers that meet one of these two."""
        now = asyncio.get_running_loop().time()
        touched = self._touching(sender) | self._touching(receiver)
        for flow in sorted(touched, key=lambda flow: flow.order):
            rate = self._rate(flow)
            if rate != flow.rate:
                flow.change_rate(rate, now)

    def _touching(self, peer: PeerId) -> set[Flow]:
        return {*self._up.get(peer, ()), *self._down.get(peer, ())}

    def _rate(self, flow: Flow) -> float:
        if not self.open(flow.sender, flow.receiver):
            return 0.0
        sender, receiver = self.link(flow.sender), self.link(flow.receiver)
        up = sender.up / max(1, len(self._up[flow.sender]))
        down = receiver.down / max(1, len(self._down[flow.receiver]))
        return min(up, down, stream_cap(sender, receiver), self.path(flow.sender, flow.receiver))


def milestones(total: int, rate: float) -> list[int]:
    """Return the marks at which a payload of `total` bytes is handed over while it arrives at about `rate` bytes per
    second. The part held back never exceeds half of the part handed over, nor a sixteenth of the payload. Nothing is
    cut finer than a quarter of a second."""
    least = max(1.0, rate / 4)
    marks, at = [], 0.0
    while at < total:
        at = min(total, at + max(least, min(at / 2, total / 16)))
        marks.append(math.ceil(at))
    return marks
