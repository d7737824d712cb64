"""Real p2pd processes that find each other by the addresses they send, without a Kademlia of p2pd's own."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from peer.discovery.dht_node.node import DhtNode, DhtNodeOptions, PeerID, p2pd_pb2
from peer.discovery.directory import DhtDirectory, DirectoryListeners
from peer.discovery.keys import bucket_key
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal, unseal
from tests.discovery.dht_node.test_dht_node_supervisor import LISTEN, started

pytestmark = pytest.mark.processes

RUN = RunId(b"r" * 32)
KEY = bucket_key(RUN)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 40.0))


def record(identity: Identity, round_: int = 0, status: Status = Status.TRAINING) -> PeerRecord:
    now = time.time()
    return PeerRecord(
        PeerId(identity.peer_id), RUN, ("192.0.2.7:4810",), True, 1, 1, round_, 1.0, status, now, now + 900
    )


async def node(folder: Path, identity: Identity, stack: contextlib.AsyncExitStack) -> DhtNode:
    path = folder / f"{identity.peer_id}.key"
    path.write_bytes(identity.to_bytes())
    found = await DhtNode.start(DhtNodeOptions(path, identity.public_key), LISTEN, RecordGate(time.time))
    stack.push_async_callback(found.close, at_once=True)
    found.set_advertised(await found.addresses(), closed=False)
    return found


async def part(one: DhtNode, other: Identity) -> None:
    """End the connection between two nodes."""
    peer = PeerID.from_base58(other.peer_id).to_bytes()
    end = p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=p2pd_pb2.DisconnectRequest(peer=peer))
    await one._process.ask(end, 5.0)
    assert peer not in await one._process.connections(5.0)


def test_two_that_met_through_a_third_find_each_other_when_it_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            middle, first, second = (Identity.generate() for _ in range(3))
            nodes = [await node(tmp_path, identity, stack) for identity in (middle, first, second)]
            met = (await nodes[0].addresses())[0]
            assert await nodes[1].link(met, 5.0)
            assert await nodes[2].link(met, 5.0)
            own = record(second)
            nodes[2].hold([KEY], second.public_key, seal(own, second), dht_expiry(own))
            await nodes[1].refresh()
            assert second.peer_id in nodes[1].neighbours()
            await part(nodes[1], second)
            await nodes[0].close(at_once=True)
            assert await nodes[1].find_at([second.peer_id], KEY) == [seal(own, second)]

    run(scenario())


def stored(directory: DhtDirectory, identity: Identity) -> int:
    """Return the round in the record of a peer that a directory's own node holds for others; -1: it holds none."""
    found = directory._supervisor.node
    assert found is not None
    protocol = found._dht.protocol
    entry = protocol.storage.get(bytes_to_id(protocol))
    values = [protocol.serializer.loads(one.value) for _, one in entry.value.items()] if entry else []
    return max((one.round for one in map(unseal, values) if one.peer_id == identity.peer_id), default=-1)


def bytes_to_id(protocol: Any) -> Any:
    return type(protocol.node_id).generate(KEY)


async def until_shown(reader: DhtDirectory, of: Identity, round_: int) -> None:
    async with asyncio.timeout(60):
        while (found := (await reader.peers()).get(PeerId(of.peer_id))) is None or found.round < round_:
            await asyncio.sleep(0.1)


def test_peers_announce_at_the_operators_node_and_at_each_other_once_it_is_gone(tmp_path: Path) -> None:
    async def scenario() -> None:
        operator, one, other, liar = (Identity.generate() for _ in range(4))
        async with contextlib.AsyncExitStack() as stack:
            serving = await stack.enter_async_context(started(tmp_path, operator))
            ticket = serving.addresses()[:1]
            a = await stack.enter_async_context(started(tmp_path, one, initial_peers=ticket))
            b = await stack.enter_async_context(started(tmp_path, other, initial_peers=ticket))
            claims = await stack.enter_async_context(started(tmp_path, liar, initial_peers=ticket))
            await claims.announce(record(liar, status=Status.SERVING))
            await serving.announce(record(operator, status=Status.SERVING))
            for directory, identity in ((a, one), (b, other)):
                await directory.announce(record(identity, 1))
            for reader, identity in ((a, operator), (b, operator), (b, one), (a, other), (a, liar)):
                await until_shown(reader, identity, 0)
            await a.announce(record(one, 2))
            await until_shown(b, one, 2)
            assert stored(serving, one) == 2
            assert stored(b, one) < 2
            assert stored(claims, one) < 2, "its record says that it serves, and the ticket names another"
            await serving.close()
            await a.announce(record(one, 3))
            await until_shown(b, one, 3)
            assert stored(b, one) == 3

    run(scenario())


def test_no_node_is_told_to_call_one_that_others_cannot_call(tmp_path: Path) -> None:
    async def scenario() -> None:
        hub, closed = Identity.generate(), Identity.generate()
        async with started(tmp_path, hub) as reached:
            listeners = DirectoryListeners(is_closed=lambda: True)
            ticket = reached.addresses()[:1]
            async with started(tmp_path, closed, initial_peers=ticket, listeners=listeners) as home:
                await home.announce(record(closed, 1))
                await until_shown(reached, closed, 1)
                assert home.neighbours() == 1
                assert reached.neighbours() == 0

    run(scenario())
