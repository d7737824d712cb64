"""Peers that show each other records, over a directory that hides some."""

from __future__ import annotations

import asyncio
import random
from typing import Any, cast

from peer.errors import PartnerLost
from peer.identity import Identity
from peer.lab.sim.directory import MemoryDirectory, MemoryDirectoryHub
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.membership.peer_exchange import AT_ONCE, SELDOM_S, SOON_S, PeerExchange, TrustedPeers
from peer.ports.directory import Shown
from peer.protocol.messages import MAX_SHOWN_RECORDS, PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal

RUN = RunId(b"r" * 32)
LIFE_S = 45.0


class Node:
    """One peer: the records it found in the directory, and its side of the exchange."""

    def __init__(self, swarm: Swarm, ticket: frozenset[PeerId] = frozenset()) -> None:
        self.identity = Identity.generate()
        self.me = PeerId(self.identity.peer_id)
        self.directory = MemoryDirectory(swarm.hub, self.identity, RUN)
        self.exchange = PeerExchange(self.directory, TrustedPeers(ticket), swarm.clock, random.Random(7))
        self.asked_by: list[PeerId] = []
        self._swarm = swarm
        swarm.nodes[self.me] = self

    def record(self, **changes: Any) -> PeerRecord:
        now = self._swarm.clock.now()
        fields: dict[str, Any] = {"reachable": True, "status": Status.TRAINING} | changes
        return PeerRecord(
            self.me, RUN, ("host:1",), fields["reachable"], 1, 1, 0, 1.0, fields["status"], now, now + LIFE_S
        )

    async def sees(self) -> set[PeerId]:
        return set(await self.directory.peers())

    async def fetch_peers(self, to: PeerRecord, own: Shown, timeout_s: float) -> list[Shown]:
        """Call the other peer directly. Raises PartnerLost if it is gone."""
        other = self._swarm.nodes.get(to.peer_id)
        if other is None:
            raise PartnerLost("gone")
        other.asked_by.append(self.me)
        return other.exchange.on_peers(self.me, own)

    async def ask(self) -> None:
        await self.exchange.request_records(cast(Any, self))


class Swarm:
    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.hub = MemoryDirectoryHub(self.clock.now)
        self.nodes: dict[PeerId, Node] = {}

    async def peers(self, count: int, ticket: frozenset[PeerId] = frozenset()) -> list[Node]:
        made = [Node(self, ticket) for _ in range(count)]
        for node in made:
            await node.directory.announce(node.record())
        return made


def test_a_newcomer_that_sees_only_its_ticket_finds_everybody_and_is_found() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        [bootstrap] = await swarm.peers(1)
        ticket = frozenset({bootstrap.me})
        swarm.hub.hide = lambda reader, other: other not in ticket
        nodes = [bootstrap, *await swarm.peers(3, ticket)]
        assert [await node.sees() for node in nodes[1:]] == [set(ticket)] * 3, "the directory shows no other"
        for _ in range(2):
            for node in nodes[1:]:
                await node.ask()
        assert [await node.sees() for node in nodes] == [swarm.nodes.keys() - {node.me} for node in nodes]

    run_virtual(scenario())


def test_a_peer_that_only_peers_show_stays_known_as_long_as_they_do() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        [bootstrap] = await swarm.peers(1)
        ticket = frozenset({bootstrap.me})
        swarm.hub.hide = lambda reader, other: other not in ticket
        nodes = [bootstrap, *await swarm.peers(2, ticket)]
        duties = [asyncio.create_task(node.exchange.run(cast(Any, node))) for node in nodes]
        for _ in range(40):
            for node in nodes:
                await node.directory.announce(node.record())
                await node.sees()
            await swarm.clock.sleep(LIFE_S / 3)
            for node in nodes:
                assert await node.sees() == swarm.nodes.keys() - {node.me}
        for duty in duties:
            duty.cancel()
        await asyncio.wait(duties)
        await swarm.clock.sleep(LIFE_S + 1.0)
        assert await nodes[1].sees() == set()

    run_virtual(scenario())


def test_questions_are_rare_while_the_directory_shows_everybody() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        nodes = await swarm.peers(4)
        swarm.hub.hide = lambda reader, other: False
        await nodes[0].sees()
        duty = asyncio.create_task(nodes[0].exchange.run(cast(Any, nodes[0])))
        for _ in range(240):
            for node in nodes:
                await node.directory.announce(node.record())
                await node.sees()
            await swarm.clock.sleep(15.0)
        duty.cancel()
        await asyncio.wait({duty})
        assert 3600.0 / SELDOM_S * 0.8 <= nodes[0].exchange.asked <= 3600.0 / SELDOM_S * 1.3

    run_virtual(scenario())


def test_a_newcomer_calls_everybody_it_finds_once_and_is_known_within_half_a_minute() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        old = await swarm.peers(40)
        swarm.hub.hide = lambda reader, other: False
        for node in old:
            await node.sees()
            node.exchange._new_until = 0.0
        silent = old.pop()
        del swarm.nodes[silent.me]
        [late] = await swarm.peers(1)
        await late.sees()
        duties = [asyncio.create_task(node.exchange.run(cast(Any, node))) for node in (late, *old)]
        await swarm.clock.sleep(30.0)
        for duty in duties:
            duty.cancel()
        await asyncio.wait(duties)
        assert [node for node in old if late.me not in node.directory.known()] == [], "they have not looked again"
        called = [node.asked_by.count(late.me) for node in old]
        assert min(called) >= 1
        assert sum(called) < 2 * len(called), "each of them once, and a few by turns"
        assert not late.asked_by or len(late.asked_by) < len(old) / 2, "nobody calls a newcomer back"

    run_virtual(scenario())


def test_the_ticket_and_the_proven_are_asked_whatever_crowd_there_is() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        [bootstrap, old, me] = await swarm.peers(3)
        await swarm.peers(50)
        swarm.hub.hide = lambda reader, other: False
        await me.sees()
        trusted = TrustedPeers(frozenset({bootstrap.me}), lambda peer: peer == old.me)
        me.exchange = PeerExchange(me.directory, trusted, swarm.clock, random.Random(7))
        me.exchange._new_until = 0.0  # it is not a newcomer any more
        for _ in range(6):
            await me.ask()
        assert len(bootstrap.asked_by) == len(old.asked_by) == 6 * AT_ONCE // 3

    run_virtual(scenario())


def test_an_answer_is_bounded_and_tells_of_the_proven_in_any_crowd() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        [old, me] = await swarm.peers(2)
        await swarm.peers(100)
        swarm.hub.hide = lambda reader, other: False
        await me.sees()
        me.exchange = PeerExchange(
            me.directory, TrustedPeers(is_proven=lambda peer: peer == old.me), swarm.clock, me_rng()
        )
        for _ in range(5):
            given = me.exchange.on_peers(PeerId("caller"), b"")
            assert len(given) == len(set(given)) == MAX_SHOWN_RECORDS
            assert given[0] == me.directory.own()
            assert old.directory.own() in given

    run_virtual(scenario())


def me_rng() -> random.Random:
    return random.Random(3)


def test_bad_records_are_counted_and_nobodys_record_but_the_callers_is_taken_from_a_caller() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        [me, caller] = await swarm.peers(2)
        swarm.hub.hide = lambda reader, other: True
        stranger = Node(swarm)
        sealed = seal(stranger.record(), stranger.identity)
        me.exchange.on_peers(caller.me, sealed)
        me.exchange.on_peers(caller.me, b"junk")
        me.exchange.on_peers(stranger.me, sealed[:-1] + bytes([sealed[-1] ^ 1]))
        assert await me.sees() == set()
        assert me.directory.dropped.total() == 3
        me.exchange.on_peers(stranger.me, sealed)
        assert await me.sees() == {stranger.me}
        me.exchange.on_peers(stranger.me, seal(stranger.record(status=Status.LEAVING), stranger.identity))
        await swarm.clock.sleep(1.0)
        me.exchange.on_peers(stranger.me, seal(stranger.record(status=Status.LEAVING), stranger.identity))
        assert await me.sees() == set(), "a farewell counts"

    run_virtual(scenario())


def test_nobody_known_is_asked_for_soon_and_who_cannot_be_called_is_not_asked() -> None:
    async def scenario() -> None:
        swarm = Swarm()
        [me, other] = await swarm.peers(2)
        swarm.hub.hide = lambda reader, hidden: True
        assert me.exchange._pause() == SOON_S
        await me.ask()
        swarm.hub.hide = None
        await other.directory.announce(other.record(reachable=False))
        await me.sees()
        await me.ask()
        assert not other.asked_by

    run_virtual(scenario())
