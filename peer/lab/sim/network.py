"""An in-memory network: the `Transport` interface without sockets, in virtual or real time. Every peer hangs on it by a
link (`peer.lab.sim.links`) that its transfers share (`peer.lab.sim.bandwidth`). Links can be cut, one way too. Peers
can be stopped or killed while they exchange."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from peer.errors import PartnerLost
from peer.lab.sim.bandwidth import Flows, milestones
from peer.lab.sim.links import CHUNK, PROFILES, Link, LinkLoad, message_s, wire_bytes
from peer.lab.sim.swap_rendezvous import Meetings
from peer.lab.sim.virtual_clock import Gate, nap
from peer.protocol.messages import (
    PeerId,
    RoundKey,
)
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
    ) -> None:
        """`link`: of every peer that has none of its own. `rng`: draws jitter and loss. `dialable`: whether others can
        open a connection to a peer. A call to one that is not dialable hangs, answers always pass. `weight`: bytes on
        the wire that a byte of a payload stands for, so that a small model takes as long as a large one."""
        self.link, self.weight, self.dialable = link, weight, dialable
        self.rng = random.Random(0) if rng is None else rng
        self.links: dict[PeerId, Link] = dict(links or {})
        """Links of single peers."""
        self.connected: Callable[[PeerId, PeerId], bool] = lambda one, other: True
        """Whether a message passes between two peers now, besides `cut` and `partition`."""
        self._homes: frozenset[PeerId] = frozenset()
        self.tamper: Callable[[PeerId, Source], Source] = lambda sender, source: source
        """Replaces a sender's payload by the one that receivers get."""
        self.path: Callable[[PeerId, PeerId], float] = lambda sender, to: math.inf
        """Bytes per second that the net between two links carries."""
        self.mute: Callable[[PeerId], bool] = lambda peer: False
        """Whether a peer locks and answers, but never comes to the swap."""
        self.gave: Callable[[PeerId, RoundKey | None, Source | None], None] = lambda sender, key, source: None
        """Called with every payload that is sent for a round, and with (None, None) for every state described."""
        self.carried: dict[PeerId, LinkLoad] = {}
        self.address: Callable[[PeerId], str] = lambda peer: ""
        """Where a peer answers, `host:port`. Empty: nobody has an address."""
        self.gates: dict[PeerId, Gate] = {}
        """Gates of the peers that can be stopped."""
        self.meetings = Meetings()
        self.flows = Flows(self.link_of, self._flows_between, lambda sender, to: self.path(sender, to))
        self._cut: set[tuple[PeerId, PeerId]] = set()
        self._side: dict[PeerId, int] = {}
        self._hosts: dict[PeerId, MemoryTransport] = {}

    # -- faults ------------------------------------------------------------------------------------------------------

    def kill(self, peer: PeerId) -> None:
        """Remove a peer: calls to it fail at once (connection refused), transfers with it break."""
        self._hosts.pop(peer, None)
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

    def _flows_between(self, sender: PeerId, to: PeerId) -> bool:
        """Whether bytes flow: a transfer needs its acknowledgements too, and two running processes."""
        stopped = any((gate := self.gates.get(peer)) is not None and gate.shut for peer in (sender, to))
        return not stopped and self.passes(sender, to) and self.passes(to, sender)

    def load(self, peer: PeerId) -> LinkLoad:
        carried = self.carried.get(peer)
        if carried is None:
            carried = self.carried[peer] = LinkLoad()
        return carried

    def put_on_one_router(self, homes: Iterable[PeerId]) -> None:
        """Let these dial each other, whatever others can."""
        self._homes = frozenset(homes)

    async def reach(self, sender: PeerId, to: PeerId, *, answer: bool = False, by: float = math.inf) -> MemoryTransport:
        """Take one way of a call. Raises TimeoutError when it is not there at `by`, a moment of the loop, and
        PartnerLost when nobody listens. A call to a peer that is cut off never arrives."""
        self.load(sender).sent_message()
        loop, seconds = asyncio.get_running_loop(), message_s(self.link_of(sender), self.link_of(to), self.rng)
        if seconds < by - loop.time():
            await nap(seconds)
            if loop.time() > by:  # we were stopped meanwhile
                raise TimeoutError
        else:
            await _until(seconds, by)
        if not self.passes(sender, to) or not (answer or self.dialable(to) or {sender, to} <= self._homes):
            await _until(math.inf, by)
        if (gate := self.gates.get(to)) is not None and gate.shut:
            async with asyncio.timeout_at(None if by == math.inf else by):
                await gate.opened()
        host = self._hosts.get(to)
        if host is None:
            raise PartnerLost(f"{to} does not answer: connection refused")
        return host

    async def carry(
        self,
        sender: PeerId,
        to: PeerId,
        nbytes: int,
        arrived: Callable[[int], None] = lambda upto: None,
        have: int = 0,
        *,
        giving: bool = False,
    ) -> None:
        """Move so many bytes of payload, at the rate that the links leave. `arrived` is called with the progress now
        and then, in bytes from the beginning. `have`: bytes that are there already. `giving`: they are a part of a
        state. Raises PartnerLost when an end vanishes, PartnerSilent when nothing moves for long, PartnerRefused when
        the sender's quota does not hold them."""
        await nap(message_s(self.link_of(sender), self.link_of(to), self.rng))
        rest, host = nbytes - have, self._hosts.get(sender)
        quota: UploadBudget = NoBudget() if host is None else host.quota
        payload = math.ceil(rest * self.weight)
        with quota.claim(payload, math.ceil(payload / CHUNK), giving=giving) as sent:
            await self._carry(sender, to, rest, arrived, have, sent)

    async def _carry(
        self,
        sender: PeerId,
        to: PeerId,
        rest: int,
        arrived: Callable[[int], None],
        have: int,
        sent: Callable[[int], None],
    ) -> None:
        """`sent` is told the bytes of payload that left, as it goes on."""
        total, before = wire_bytes(math.ceil(rest * self.weight)), 0.0
        flow = self.flows.begin(sender, to, total)
        try:
            for mark in milestones(rest, flow.rate * rest / max(total, 1.0)):
                try:
                    await self.flows.until(flow, total * mark / rest)
                except PartnerLost:
                    arrived(have + int(flow.done / total * rest))
                    raise
                finally:
                    sent(int((flow.done - before) / total * rest * self.weight))
                    self.load(sender).sent(flow.done - before)
                    self.load(to).received(flow.done - before)
                    before = flow.done
                arrived(have + mark)
        finally:
            self.flows.end(flow)

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
