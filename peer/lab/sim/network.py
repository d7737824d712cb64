"""The in-memory network under `MemoryTransport`, without sockets. Every peer has a link (`peer.lab.sim.links`) that its
transfers share (`peer.lab.sim.bandwidth`). Closed peers are called by hole punching or over a relay
(`peer.lab.sim.paths`). Tests can cut links, in one direction too, and stop or kill peers in the middle of an
exchange."""

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
from peer.protocol.messages import PathKind, PeerId, RelayAttestation, RoundKey, Way
from peer.protocol.wire.payload import Source
from peer.transport.wire.payload_stream import NoBudget, UploadBudget

if TYPE_CHECKING:
    from peer.lab.sim.memory_transport import MemoryTransport


class Network:
    """The simulated net between the `MemoryTransport`s of a swarm: delivers calls, carries payloads, and applies
    faults."""

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
        """link: the link of peers that are not in `links`. rng: draws jitter and loss. dialable: whether others can
        open a connection to a peer; a call to a peer that is not dialable hangs, while answers always pass. weight:
        bytes on the wire for each byte of a payload, so that a small model takes as long as a large one. links: links
        of single peers. nats: the routers of closed peers, which are called over a punched hole or a relay. relays:
        bytes per second of each relay."""
        self.link, self.weight, self.dialable = link, weight, dialable
        self.paths = Paths(lambda peer: self.dialable(peer), nats, relays, self.passes)
        self.rng = random.Random(0) if rng is None else rng
        self.links: dict[PeerId, Link] = dict(links or {})
        """Links of single peers; the others have `link`."""
        self.connected: Callable[[PeerId, PeerId], bool] = lambda one, other: True
        """Whether messages pass between two peers now, in addition to `cut` and `partition`. A hook for tests."""
        self.tamper: Callable[[PeerId, Source], Source] = lambda sender, source: source
        """Returns the payload that the receiver gets in place of the sender's. A hook for tests with lying peers."""
        self.path_rate: Callable[[PeerId, PeerId], float] = lambda sender, to: math.inf
        """Most bytes per second of one transfer between two peers, besides their links."""
        self.is_mute: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer locks a pair and answers calls, but never sends its side of a swap."""
        self.on_payload_sent: Callable[[PeerId, RoundKey | None, Source | None], None] = lambda *sent: None
        """Called with (sender, round key, payload) for every payload sent in a round, and with (sender, None, None)
        when a donor describes its state."""
        self.link_loads: dict[PeerId, LinkLoad] = {}
        self.address: Callable[[PeerId], str] = lambda peer: ""
        """Returns the address of a peer, `host:port`. Empty: peers have no addresses."""
        self.relay_word: Callable[[PeerId, PeerId, float], RelayAttestation | None] = lambda relay, peer, now: None
        """Returns the signed statement of a relay about the address from which a closed peer calls. None: it signs
        none."""
        self.swap_paths: Counter[PathKind] = Counter()
        """How often each kind of path completed a swap, counted once for each side."""
        self.gates: dict[PeerId, Gate] = {}
        """The gates of peers that can be stopped (SIGSTOP)."""
        self.meetings = Meetings()
        self.flows = Flows(self.link_of, self._flows, lambda sender, to: self.path_rate(sender, to))
        self._cut: set[tuple[PeerId, PeerId]] = set()
        self._side: dict[PeerId, int] = {}
        self._hosts: dict[PeerId, MemoryTransport] = {}

    def set_addresses(
        self, address: Callable[[PeerId], str], word: Callable[[PeerId, PeerId, float], RelayAttestation | None]
    ) -> None:
        """Set the functions that return a peer's address and a relay's signed statement about it."""
        self.address, self.relay_word = address, word

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """Remove a peer: calls to it fail at once (connection refused), and its transfers break."""
        self._hosts.pop(peer, None)
        self.paths.remove(peer)
        self.flows.break_off(peer)

    def cut(self, one: PeerId, other: PeerId, *, both_ways: bool = True) -> None:
        """Drop everything from `one` to `other`, and with `both_ways` also back. Neither peer gets an error."""
        self._cut |= {(one, other), (other, one)} if both_ways else {(one, other)}
        self.changed(one)

    def mend(self, one: PeerId, other: PeerId) -> None:
        """Undo `cut`, both ways."""
        self._cut -= {(one, other), (other, one)}
        self.changed(one)

    def partition(self, *sides: Iterable[PeerId]) -> None:
        """Drop everything between two sides. Peers that are in none of `sides` form one more side."""
        self._side = {peer: index for index, side in enumerate(sides) for peer in side}
        self.changed()

    def heal(self) -> None:
        """Undo `partition`."""
        self.partition()

    def changed(self, peer: PeerId | None = None) -> None:
        """Update the transfers in progress. To be called after `links`, `gates` or `connected` changed."""
        self.flows.changed(peer)

    # -- delivery ----------------------------------------------------------------------------------------------------

    def link_of(self, peer: PeerId) -> Link:
        return self.links.get(peer, self.link)

    def passes(self, sender: PeerId, to: PeerId) -> bool:
        """Return whether a message from `sender` to `to` arrives now."""
        apart = bool(self._side) and self._side.get(sender) != self._side.get(to)
        return not apart and (sender, to) not in self._cut and self.connected(sender, to)

    def flows_between(self, sender: PeerId, to: PeerId) -> bool:
        """Return whether bytes of a call made by `to` flow. A transfer needs both directions, for the acknowledgements,
        and running processes at all its stops."""
        connection = self.paths.between(to, sender) or DIALLED
        return all(self._flows(*leg) for leg in pairwise(connection.stops(sender, to)))

    def _flows(self, sender: PeerId, to: PeerId) -> bool:
        stopped = any((gate := self.gates.get(peer)) is not None and gate.shut for peer in (sender, to))
        return not stopped and self.passes(sender, to) and self.passes(to, sender)

    def load(self, peer: PeerId) -> LinkLoad:
        """Return the traffic counters of a peer's link."""
        load = self.link_loads.get(peer)
        if load is None:
            load = self.link_loads[peer] = LinkLoad()
        return load

    async def reach(self, sender: PeerId, to: PeerId, *, answer: bool = False, by: float = math.inf) -> MemoryTransport:
        """Deliver one direction of a call, and return the transport of the receiver. `by`: deadline, in loop time.
        Raises TimeoutError at the deadline, and PartnerLost when no such peer runs. A message to a peer that is cut off
        never arrives."""
        loop, connection = asyncio.get_running_loop(), self.paths.between(*((to, sender) if answer else (sender, to)))
        stops = (connection or DIALLED).stops(sender, to)
        seconds = self._message_s(stops)
        if seconds < by - loop.time():
            await nap(seconds)
            if loop.time() > by:  # the caller's process was stopped meanwhile
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
        """Return the seconds that a small message takes over these stops, and count it for each sender."""
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
        """Transfer a payload of `nbytes` bytes, at the rate that links and pipes leave for it. Return the path taken.

        arrived: called now and then with the progress, in bytes from the start. have: bytes that have arrived in an
        earlier attempt. giving: the payload is a part of a donated state. calls: which of the two made the call; None:
        the receiver. Raises PartnerLost when an end vanishes or there is no path, PartnerSilent when nothing arrives
        for a while, PartnerRefused when the sender's upload quota is too small."""
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
        """Transfer `rest` bytes over a course. `sent` is called with the payload bytes that have left since its last
        call."""
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
        """Return the running transport of this peer. None: it does not run."""
        return self._hosts.get(peer)


async def _until(seconds: float, by: float) -> None:
    """Sleep for `seconds`. Raises TimeoutError at `by` (loop time), also when `by` has passed because the process was
    stopped."""
    loop = asyncio.get_running_loop()
    left = by - loop.time()
    if seconds == left == math.inf:
        await asyncio.get_running_loop().create_future()
    await nap(max(0.0, min(seconds, left)))
    if seconds >= left or loop.time() > by:
        raise TimeoutError
