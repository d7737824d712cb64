"""Strangers run the DHT nodes around a run's key and return no records: real p2pd processes, real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from peer.discovery.dht_node.entry_store import DHTLocalStorage
from peer.discovery.dht_node.node import DhtNode, DhtNodeOptions
from peer.discovery.keys import bucket_key, slot
from peer.identity import Identity
from peer.node.open import LocalNode, OpenNode, open_node
from peer.node.record import describe_self
from peer.protocol.messages import RunId, Status
from peer.run.options import NodeOptions
from peer.transport.config import RunTerms

pytestmark = [pytest.mark.processes, pytest.mark.nightly]

RUN = RunId(b"r" * 32)
LISTEN = ("/ip4/127.0.0.1/tcp/0",)
STRANGERS = 24
DRAWN = 100 * STRANGERS
ANNOUNCE_EVERY_S = 3.0
WITHIN_S = 30.0
"""A newcomer is known after this, as in a calm swarm."""


class Nothing(DHTLocalStorage):  # type: ignore[misc]
    """Store of a hostile node: it confirms every store request and returns nothing."""

    def store(self, *_: Any, **__: Any) -> bool:
        return True

    def store_subkey(self, *_: Any, **__: Any) -> bool:
        return True


def ground_keys() -> list[Identity]:
    """Draw keys until enough of them have DHT ids closer to the run's key than an honest one. Nodes whose id does not
    match their key are rejected."""
    here = int.from_bytes(slot(bucket_key(RUN)), "big")
    drawn = (Identity.generate() for _ in range(DRAWN))
    return sorted(drawn, key=lambda key: int.from_bytes(slot(key.public_key), "big") ^ here)[:STRANGERS]


async def stranger(stack: contextlib.AsyncExitStack, folder: Path, identity: Identity, bootstrap: str) -> None:
    """Run a node close to the run's key that returns no peers, until the end."""
    path = folder / f"stranger-{identity.peer_id}"
    path.write_bytes(identity.to_bytes())
    node = await DhtNode.start(DhtNodeOptions(path, identity.public_key), LISTEN, None)
    stack.push_async_callback(node.close, at_once=True)
    protocol = node._dht.protocol
    protocol.storage = Nothing()
    protocol.routing_table.get_nearest_neighbors = lambda *_, **__: []
    assert await node.link(bootstrap, 10.0)


async def announcing(node: OpenNode, status: Status) -> None:
    while True:
        record = describe_self(
            node.address(),
            status=status,
            round_=0,
            tokens_per_s=1.0,
            now=node.local.clock.now(),
            lifetime_s=45.0,
        )
        await node.directory.announce(record)
        await asyncio.sleep(ANNOUNCE_EVERY_S)


async def home(
    stack: contextlib.AsyncExitStack, folder: Path, initial: Sequence[str] = (), status: Status = Status.TRAINING
) -> OpenNode:
    """Open a node as `peer join` and `peer bootstrap` do, and announce it until the end."""
    options = NodeOptions(home=folder, initial_peers=tuple(initial), host_maddrs=LISTEN)
    local = LocalNode.of(options, RUN, lambda line: None)
    node = await stack.enter_async_context(open_node(local))
    node.transport.begin_run(RunTerms(b"l" * 32, 1 << 20))
    task = asyncio.create_task(announcing(node, status))
    stack.callback(task.cancel)
    return node


async def until_all_see_all(nodes: Sequence[OpenNode]) -> None:
    everybody = {node.local.me for node in nodes}

    async def sees_all(node: OpenNode) -> None:
        while not everybody - {node.local.me} <= set(await node.directory.peers()):
            await asyncio.sleep(0.25)

    async with asyncio.timeout(WITHIN_S):
        await asyncio.gather(*map(sees_all, nodes))


async def eclipse(folder: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        bootstrap = await home(stack, folder / "bootstrap", status=Status.SERVING)
        ticket = bootstrap.directory.addresses()[:1]
        for key in ground_keys():  # one after the other: if all started at once, they would starve each other
            await stranger(stack, folder, key, ticket[0])
        early = [await home(stack, folder / name, ticket) for name in ("first", "second")]
        await until_all_see_all([bootstrap, *early])
        newcomer = await home(stack, folder / "newcomer", ticket)
        await until_all_see_all([bootstrap, *early, newcomer])


def test_peers_find_each_other_past_the_nodes_around_their_key(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(eclipse(tmp_path), 120.0))
