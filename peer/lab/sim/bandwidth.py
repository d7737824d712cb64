"""Bandwidth shares of bulk transfers. A link divides its rate equally between its transfers. The rate of a transfer is
the smallest of its share of the sender's uplink, its share of the receiver's downlink, its shares of the pipes between
them, and the cap of its TCP stream. (Capacity that a transfer leaves unused at one end is not given to that link's
other transfers, so a mix of fast and slow partners is a little slower than in reality.)

Rates change only when a transfer begins or ends, or a link changes. Between two changes the progress is rate times
time, so the cost of simulating a transfer does not depend on its length."""

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
"""Least number of parts in which a payload is handed to its receiver: over links alone, and over pipes. Pipes need
more, because their rate may fall far while many transfers share them, and the receiver must not take a slow part for a
silent sender."""
OWN_SHARE = 0.5
"""Least share of its own link that a relay reserves for its own transfers, whatever its cap."""


class Pipe:
    """A bottleneck between two links: the cap of a relay, or the line between two sites. Its transfers get equal
    shares."""

    def __init__(self, rate: float, at: PeerId | None = None) -> None:
        """`rate`: bytes per second. `at`: the relay on whose link the pipe lies. None: on no peer's link."""
        self.rate, self.at = rate, at
        self.flows: dict[Flow, None] = {}

    @property
    def part(self) -> float:
        """Return the share of each of its transfers, in bytes per second."""
        return self.rate / max(1, len(self.flows))


@dataclass(frozen=True, slots=True)
class Course:
    """The route of a transfer: the peers and the pipes that its bytes pass."""

    stops: tuple[PeerId, ...]
    """The sender, then the relay if there is one, then the receiver."""
    pipes: tuple[Pipe, ...] = ()

    @property
    def legs(self) -> tuple[tuple[PeerId, PeerId], ...]:
        """Return the (sender, receiver) of each hop."""
        return tuple(pairwise(self.stops))


class Flow:
    """One transfer in progress. All byte counts are bytes on the wire, not bytes of payload."""

    def __init__(self, course: Course, total: float, *, at: float, order: int) -> None:
        """`at`: loop time of its begin. `order`: its serial number in the network, which makes the order of updates
        reproducible."""
        self.sender, self.receiver, self.legs, self.pipes = course.stops[0], course.stops[-1], course.legs, course.pipes
        self.total, self.order = total, order
        self.done = self.rate = 0.0
        self.timer: asyncio.TimerHandle | None = None
        self._at = at
        self._target = 0.0
        """The number of bytes at which `_waiter` is resolved."""
        self._waiter: asyncio.Future[None] | None = None

    def expect(self, nbytes: float, now: float) -> asyncio.Future[None]:
        """Return a future that resolves when `nbytes` bytes have arrived, counted from the start of the transfer."""
        self.settle(now)
        self._target = nbytes
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self.schedule(now)
        return waiter

    def change_rate(self, rate: float, now: float) -> None:
        """Continue at another rate, in bytes per second."""
        self.settle(now)
        self.rate = rate
        self.schedule(now)

    def settle(self, now: float) -> None:
        """Add the bytes that arrived at the present rate up to `now`."""
        self.done = min(self.total, self.done + self.rate * (now - self._at))
        self._at = now

    def schedule(self, now: float) -> None:
        """Set the timer for the waiter: for the moment at which its target is reached at the present rate, or for the
        stall timeout at rate 0."""
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
        """Raise `error` in the task that waits for progress, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)


@dataclass(slots=True)
class Flows:
    """All transfers of a network, and their rates.

    link: returns the link of a peer. open: returns whether bytes pass from the first peer to the second now."""

    link: Callable[[PeerId], Link]
    open: Callable[[PeerId, PeerId], bool]
    path: Callable[[PeerId, PeerId], float] = lambda sender, to: math.inf
    """Most bytes per second of one transfer between two peers, besides the limits of their links."""
    _up: dict[PeerId, dict[Flow, None]] = field(default_factory=dict)
    _down: dict[PeerId, dict[Flow, None]] = field(default_factory=dict)
    _relaying: dict[PeerId, Pipe] = field(default_factory=dict)
    """Relay -> the pipe on its link."""
    _begun: int = 0

    def begin(self, course: Course, nbytes: float) -> Flow:
        """Begin a transfer. It uses its shares of both links and of the pipes between them until `end`."""
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
        """End a transfer, complete or not, and free its shares."""
        self._up[flow.sender].pop(flow, None)
        self._down[flow.receiver].pop(flow, None)
        for pipe in flow.pipes:
            pipe.flows.pop(flow, None)
        if flow.timer is not None:
            flow.timer.cancel()
        self._share_beside(flow)

    async def until(self, flow: Flow, nbytes: float) -> None:
        """Wait until `nbytes` bytes of the transfer have arrived. Raises PartnerLost when an end vanishes,
        PartnerSilent when nothing arrives for `STALL_S`."""
        await flow.expect(nbytes, asyncio.get_running_loop().time())

    def changed(self, peer: PeerId | None = None) -> None:
        """Recompute the rates after a link or the set of open paths changed. `peer`: whose transfers are affected;
        None: all."""
        for one in sorted({*self._up, *self._down}) if peer is None else [peer]:
            self._share(self._touching(one))

    def break_off(self, peer: PeerId) -> None:
        """Fail all transfers of a vanished peer with PartnerLost: those it sends, receives or relays."""
        relayed = self._relaying[peer].flows if peer in self._relaying else ()
        for flow in [*self._up.get(peer, ()), *self._down.get(peer, ()), *relayed]:
            flow.settle(asyncio.get_running_loop().time())
            flow.fail(PartnerLost(f"{peer} vanished in the middle"))

    def _share_beside(self, flow: Flow) -> None:
        """Recompute the rates of all transfers that share a link or a pipe with this one."""
        touched = self._touching(flow.sender) | self._touching(flow.receiver)
        for pipe in flow.pipes:
            touched |= pipe.flows.keys()
            if pipe.at is not None:
                touched |= self._touching(pipe.at)
        self._share(touched)

    def _share(self, touched: set[Flow]) -> None:
        """Recompute the rates of these transfers."""
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
        """Return how much of a link's rate is left for the peer's own transfers while it relays those of others."""
        pipe = self._relaying.get(peer)
        return rate if pipe is None or not pipe.flows else max(rate - pipe.rate, OWN_SHARE * rate)

    def _lent(self, pipe: Pipe) -> float:
        """Return how much of its link a relay gives to the pipe. Infinite for a pipe that lies on no peer's link."""
        if pipe.at is None:
            return math.inf
        link = self.link(pipe.at)
        return (1 - OWN_SHARE) * min(link.up, link.down)


def milestones(total: int, rate: float, parts: int = 16) -> list[int]:
    """Return the marks, in bytes from the start, at which the next part of a payload of `total` bytes is handed to its
    receiver. `rate`: the expected bytes per second. A part has half as many bytes as were handed over before it, at
    most one of `parts` equal parts of the payload, and in any case the bytes of a quarter of a second."""
    least = max(1.0, rate / 4)
    marks, at = [], 0.0
    while at < total:
        at = min(total, at + max(least, min(at / 2, total / parts)))
        marks.append(math.ceil(at))
    return marks
