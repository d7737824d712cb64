"""An in-memory network: the `Transport` interface without sockets, in virtual or real time. Every peer hangs on it by a
link (`peer.lab.sim.links`) that its transfers share (`peer.lab.sim.bandwidth`). Calls to closed homes are punched or
relayed (`peer.lab.sim.paths`). Links can be cut, one way too. Peers can be stopped or killed while they exchange."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from peer.errors import PartnerLost
from peer.lab.sim.bandwidth import PARTS, SLOW_PARTS, Course, Flows, milestones
from peer.lab.sim.links import CHUNK, PROFILES, Link, LinkLoad, message_s, wire_bytes
from peer.lab.sim.nat import Nat
from peer.lab.sim.paths import DIALLED, Paths
from peer.lab.sim.swap_rendezvous import Meetings
from peer.lab.sim.virtual_clock import Gate, nap
from peer.protocol.messages import PathKind, PeerId, RelayWord, RoundKey, Way
from peer.protocol.wire.payload import Source
from peer.transport.wire.payload_stream import NoBudget, UploadBudget

if TYPE_CHECKING:
    from peer.lab.sim.memory_transport import MemoryTransport


class Network:
    """The simulated net between `MemoryTransport`s."""

    def __init__(
        self,
        link: Link = PROFILES["lan"],
        *,
        rng: random.Random | None = None,
        dialable: Callable[[PeerId], bool] = lambda peer: True,
        weight: float = 1.0,
        links: Mapping[PeerId, Link] | None = None,
        nats: Mapping[PeerId, Nat] | None = None,
        relays: Mapping[PeerId, float] | None = None,
    ) -> None:
        """`link`: of every peer that has none of its own. `rng`: draws jitter and loss. `dialable`: whether others can
        open a connection to a peer. A call to one that is not dialable hangs, answers always pass. `weight`: bytes on
        the wire that a byte of a payload stands for, so that a small model takes as long as a large one. `nats`: the
        routers of peers that can be called by a punched hole or a relay. `relays`: bytes per second of each relay."""
        self.link, self.weight, self.dialable = link, weight, dialable
        self.paths = Paths(lambda peer: self.dialable(peer), nats, relays, self.passes)
        self.rng = random.Random(0) if rng is None else rng
        self.links: dict[PeerId, Link] = dict(links or {})
        """Links of single peers."""
        self.connected: Callable[[PeerId, PeerId], bool] = lambda one, other: True
        """Whether a message passes between two peers now, besides `cut` and `partition`."""
        self.tamper: Callable[[PeerId, Source], Source] = lambda sender, source: source
        """Replaces a sender's payload by the one that receivers get."""
        self.path_rate: Callable[[PeerId, PeerId], float] = lambda sender, to: math.inf
        """Bytes per second that the net between two links carries."""
        self.is_mute: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer locks and answers, but never comes to the swap."""
        self.on_payload_sent: Callable[[PeerId, RoundKey | None, Source | None], None] = lambda *sent: None
        """Called with every payload that is sent for a round, and with (None, None) for every state described."""
        self.link_loads: dict[PeerId, LinkLoad] = {}
        self.address: Callable[[PeerId], str] = lambda peer: ""
        """Where a peer answers, `host:port`. Empty: nobody has an address."""
        self.relay_word: Callable[[PeerId, PeerId, float], RelayWord | None] = lambda relay, peer, now: None
        """What a relay signs of the address that a closed peer calls from."""
        self.swap_paths: Counter[PathKind] = Counter()
        """The paths of swaps, one for each side that got everything."""
        self.gates: dict[PeerId, Gate] = {}
        """Gates of the peers that can be stopped."""
        self.meetings = Meetings()
        self.flows = Flows(self.link_of, self._flows, lambda sender, to: self.path_rate(sender, to))
        self._cut: set[tuple[PeerId, PeerId]] = set()
        self._side: dict[PeerId, int] = {}
        self._hosts: dict[PeerId, MemoryTransport] = {}

    def set_addresses(
        self, address: Callable[[PeerId], str], word: Callable[[PeerId, PeerId, float], RelayWord | None]
    ) -> None:
        """Give each peer an address, and relays a word on it."""
        self.address, self.relay_word = address, word

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """Remove a peer: calls to it fail at once (connection refused), transfers with it break."""
        self._hosts.pop(peer, None)
        self.paths.remove(peer)
        self.flows.break_off(peer)

    def cut(self, one: PeerId, other: PeerId, *, both_ways: bool = True) -> None:
        """Stop everything from `one` to `other`, and (`both_ways`) back. Neither is told."""
        self._cut |= {(one, other), (other, one)} if both_ways else {(one, other)}
        self.changed(one)

    def mend(self, one: PeerId, other: PeerId) -> None:
        """Undo `cut`, both ways."""
        self._cut -= {(one, other), (other, one)}
        self.changed(one)

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Stop everything between two sides. Peers named nowhere form one more side."""
        self._side = {peer: index for index, side in enumerate(sides) for peer in side}
        self.changed()

    def heal(self) -> None:
        """Undo `partition`."""
        self.partition()

    def changed(self, peer: PeerId | None = None) -> None:
        """Update transfers under way, after `links`, `gates` or `connected` were changed."""
        self.flows.changed(peer)

    # -- what passes -------------------------------------------------------------------------------------------------

    def link_of(self, peer: PeerId) -> Link:
        return self.links.get(peer, self.link)

    def passes(self, sender: PeerId, to: PeerId) -> bool:
        """Whether a message from one to the other arrives now."""
        apart = bool(self._side) and self._side.get(sender) != self._side.get(to)
        return not apart and (sender, to) not in self._cut and self.connected(sender, to)

    def flows_between(self, sender: PeerId, to: PeerId) -> bool:
        """Whether bytes of a call that `to` made flow: a transfer needs its acknowledgements too, and running
        processes."""
        connection = self.paths.between(to, sender) or DIALLED
        return all(self._flows(*leg) for leg in pairwise(connection.stops(sender, to)))

    def _flows(self, sender: PeerId, to: PeerId) -> bool:
        stopped = any((gate := self.gates.get(peer)) is not None and gate.shut for peer in (sender, to))
        return not stopped and self.passes(sender, to) and self.passes(to, sender)

    def load(self, peer: PeerId) -> LinkLoad:
        load = self.link_loads.get(peer)
        if load is None:
            load = self.link_loads[peer] = LinkLoad()
        return load

    async def reach(self, sender: PeerId, to: PeerId, *, answer: bool = False, by: float = math.inf) -> MemoryTransport:
        """Take one way of a call. Raises TimeoutError when it is not there at `by`, a moment of the loop, and
        PartnerLost when nobody listens. A call to a peer that is cut off never arrives."""
        loop, connection = asyncio.get_running_loop(), self.paths.between(*((to, sender) if answer else (sender, to)))
        stops = (connection or DIALLED).stops(sender, to)
        seconds = self._message_s(stops)
        if seconds < by - loop.time():
            await nap(seconds)
            if loop.time() > by:  # we were stopped meanwhile
                raise TimeoutError
        else:
            await _until(seconds, by)
        if connection is None or not all(self.passes(*leg) for leg in pairwise(stops)):
            await _until(math.inf, by)
        for stop in stops[1:]:
            if (gate := self.gates.get(stop)) is not None and gate.shut:
                async with asyncio.timeout_at(None if by == math.inf else by):
                    await gate.opened()
        host = self._hosts.get(to)
        if host is None:
            raise PartnerLost(f"{to} does not answer: connection refused")
        return host

    def _message_s(self, stops: Iterable[PeerId]) -> float:
        """Return how long a small message takes."""
        took = 0.0
        for sender, to in pairwise(stops):
            self.load(sender).sent_message()
            took += message_s(self.link_of(sender), self.link_of(to), self.rng)
        return took

    async def carry(
        self,
        sender: PeerId,
        to: PeerId,
        nbytes: int,
        arrived: Callable[[int], None] = lambda upto: None,
        have: int = 0,
        *,
        giving: bool = False,
        calls: PeerId | None = None,
    ) -> Way:
        """Move so many bytes of payload, at the rate that the way leaves. `arrived` is called with the progress now
        and then, in bytes from the beginning. `have`: bytes that are there already. `giving`: they are a part of a
        state. `calls`: which of the two made the call; None: the receiver. Raises PartnerLost when an end vanishes or
        there is no way, PartnerSilent when nothing moves for long, PartnerRefused when the sender's quota does not hold
        them."""
        caller, called = (sender, to) if calls == sender else (to, sender)
        with self.paths.connected(caller, called) as connection:
            course = self.paths.course(sender, to, connection)
            await nap(sum(message_s(self.link_of(one), self.link_of(other), self.rng) for one, other in course.legs))
            rest, host = nbytes - have, self._hosts.get(sender)
            quota: UploadBudget = NoBudget() if host is None else host.quota
            payload = math.ceil(rest * self.weight)
            with quota.claim(payload, math.ceil(payload / CHUNK), giving=giving) as sent:
                await self._carry(course, rest, arrived, have, sent)
        return connection.way

    async def _carry(
        self, course: Course, rest: int, arrived: Callable[[int], None], have: int, sent: Callable[[int], None]
    ) -> None:
        """`sent` is told the bytes of payload that left, as it goes on."""
        total, before = wire_bytes(math.ceil(rest * self.weight)), 0.0
        flow = self.flows.begin(course, total)
        try:
            parts = SLOW_PARTS if course.pipes else PARTS
            for mark in milestones(rest, flow.rate * rest / max(total, 1.0), parts):
                try:
                    await self.flows.until(flow, total * mark / rest)
                except PartnerLost:
                    arrived(have + int(flow.done / total * rest))
                    raise
                finally:
                    sent(int((flow.done - before) / total * rest * self.weight))
                    self._count(course, flow.done - before)
                    before = flow.done
                arrived(have + mark)
        finally:
            self.flows.end(flow)

    def _count(self, course: Course, nbytes: float) -> None:
        self.load(course.stops[0]).sent(nbytes)
        self.load(course.stops[-1]).received(nbytes)
        for relay in course.stops[1:-1]:
            self.load(relay).passed_on(nbytes)

    def host(self, peer: PeerId) -> MemoryTransport | None:
        """Return the transport that answers under this name now."""
        return self._hosts.get(peer)


async def _until(seconds: float, by: float) -> None:
    """Let so much time pass. Raises TimeoutError at `by`, also when it is later already because we were stopped."""
    loop = asyncio.get_running_loop()
    left = by - loop.time()
    if seconds == left == math.inf:
        await asyncio.get_running_loop().create_future()
    await nap(max(0.0, min(seconds, left)))
    if seconds >= left or loop.time() > by:
        raise TimeoutError
