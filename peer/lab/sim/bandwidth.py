"""Bulk transfers that share links. A link gives each of its transfers an equal part. A transfer goes at the smallest of
its parts at both ends, its parts of the pipes between, and its stream's own cap. (Capacity that one end cannot use does
not go to the other end's neighbours: a mix of fast and slow partners is a little slower than in reality.)

Rates change only when a transfer begins or ends, or a link changes. Between two changes progress is a product, so a
transfer costs a few events, however long it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from peer.codes import Code
from peer.errors import PartnerLost, PartnerSilent
from peer.lab.sim.links import Link, stream_cap
from peer.protocol.messages import PeerId

STALL_S = 5.0
"""Seconds without progress after which a transfer fails, as in the real transport."""
PARTS, SLOW_PARTS = 16, 64
"""Parts in which a payload is handed over at least, over links alone and over pipes. The rate of a pipe may fall far
while many share it, and a receiver must not take a part that is long under way for silence."""
OWN_SHARE = 0.5
"""Part of its own link that a relay keeps for itself at least, whatever its cap."""


class Pipe:
    """A part of the way that transfers share besides their links: a relay's cap, or the line between two sites. Each of
    them gets an equal part."""

    def __init__(self, rate: float, at: PeerId | None = None) -> None:
        """`rate`: bytes per second. `at`: the relay on whose link it lies."""
        self.rate, self.at = rate, at
        self.flows: dict[Flow, None] = {}

    @property
    def part(self) -> float:
        return self.rate / max(1, len(self.flows))


@dataclass(frozen=True, slots=True)
class Course:
    """The way that the bytes of a transfer take."""

    stops: tuple[PeerId, ...]
    """The sender, the relay if there is one, the receiver."""
    pipes: tuple[Pipe, ...] = ()

    @property
    def legs(self) -> tuple[tuple[PeerId, PeerId], ...]:
        return tuple(pairwise(self.stops))


class Flow:
    """One transfer under way. Bytes are those on the wire."""

    def __init__(self, course: Course, total: float, *, at: float, order: int) -> None:
        """`at`: when it begins, in the loop's time. `order`: its number in the network."""
        self.sender, self.receiver, self.legs, self.pipes = course.stops[0], course.stops[-1], course.legs, course.pipes
        self.total, self.order = total, order
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
        self.fail(PartnerSilent(f"nothing came for {STALL_S:.0f} s in the middle of a payload", Code.SILENT))

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
    _relaying: dict[PeerId, Pipe] = field(default_factory=dict)
    """The pipes that lie on a relay's link."""
    _begun: int = 0

    def begin(self, course: Course, nbytes: float) -> Flow:
        """Begin a transfer, which takes its part of both links and of the pipes between until `end`."""
        self._begun += 1
        flow = Flow(course, nbytes, at=asyncio.get_running_loop().time(), order=self._begun)
        self._up.setdefault(flow.sender, {})[flow] = None
        self._down.setdefault(flow.receiver, {})[flow] = None
        for pipe in flow.pipes:
            pipe.flows[flow] = None
            if pipe.at is not None:
                self._relaying[pipe.at] = pipe
        self._share_beside(flow)
        return flow

    def end(self, flow: Flow) -> None:
        """End a transfer, complete or not, and free its part."""
        self._up[flow.sender].pop(flow, None)
        self._down[flow.receiver].pop(flow, None)
        for pipe in flow.pipes:
            pipe.flows.pop(flow, None)
        if flow.timer is not None:
            flow.timer.cancel()
        self._share_beside(flow)

    async def until(self, flow: Flow, nbytes: float) -> None:
        """Wait until so many bytes are through. Raises PartnerLost when an end vanishes, PartnerSilent when
        nothing moves for `STALL_S`."""
        await flow.expect(nbytes, asyncio.get_running_loop().time())

    def changed(self, peer: PeerId | None = None) -> None:
        """Recompute rates after a change of a link, or of the open paths: of one peer, or (None) of all."""
        for one in sorted({*self._up, *self._down}) if peer is None else [peer]:
            self._share(self._touching(one))

    def break_off(self, peer: PeerId) -> None:
        """Break all transfers with a peer that is gone, and those that it relayed."""
        relayed = self._relaying[peer].flows if peer in self._relaying else ()
        for flow in [*self._up.get(peer, ()), *self._down.get(peer, ()), *relayed]:
            flow.settle(asyncio.get_running_loop().time())
            flow.fail(PartnerLost(f"{peer} vanished in the middle"))

    def _share_beside(self, flow: Flow) -> None:
        """Compute the parts of all transfers that this one meets somewhere."""
        touched = self._touching(flow.sender) | self._touching(flow.receiver)
        for pipe in flow.pipes:
            touched |= pipe.flows.keys()
            if pipe.at is not None:
                touched |= self._touching(pipe.at)
        self._share(touched)

    def _share(self, touched: set[Flow]) -> None:
        """Compute the parts of these."""
        now = asyncio.get_running_loop().time()
        for flow in sorted(touched, key=lambda flow: flow.order):
            rate = self._rate(flow)
            if rate != flow.rate:
                flow.change_rate(rate, now)

    def _touching(self, peer: PeerId) -> set[Flow]:
        relayed = self._relaying[peer].flows if peer in self._relaying else ()
        return {*self._up.get(peer, ()), *self._down.get(peer, ()), *relayed}

    def _rate(self, flow: Flow) -> float:
        if not all(self.open(sender, to) for sender, to in flow.legs):
            return 0.0
        up = self._own(flow.sender, self.link(flow.sender).up) / max(1, len(self._up[flow.sender]))
        down = self._own(flow.receiver, self.link(flow.receiver).down) / max(1, len(self._down[flow.receiver]))
        rate = min(up, down)
        for sender, to in flow.legs:
            rate = min(rate, stream_cap(self.link(sender), self.link(to)), self.path(sender, to))
        for pipe in flow.pipes:
            rate = min(rate, pipe.part, self._lent(pipe) / max(1, len(pipe.flows)))
        return rate

    def _own(self, peer: PeerId, rate: float) -> float:
        """Return what a peer has for its own transfers of a link's rate while it relays those of others."""
        pipe = self._relaying.get(peer)
        return rate if pipe is None or not pipe.flows else max(rate - pipe.rate, OWN_SHARE * rate)

    def _lent(self, pipe: Pipe) -> float:
        """Return what the link that a pipe lies on has for it."""
        if pipe.at is None:
            return math.inf
        link = self.link(pipe.at)
        return (1 - OWN_SHARE) * min(link.up, link.down)


def milestones(total: int, rate: float, parts: int = 16) -> list[int]:
    """Return the marks at which a payload of `total` bytes is handed over while it arrives at about `rate` bytes per
    second. The part held back never exceeds half of the part handed over, nor one of so many `parts` of the payload.
    Nothing is cut finer than a quarter of a second."""
    least = max(1.0, rate / 4)
    marks, at = [], 0.0
    while at < total:
        at = min(total, at + max(least, min(at / 2, total / parts)))
        marks.append(math.ceil(at))
    return marks
