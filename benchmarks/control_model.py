"""Unit costs of the directory, measured in a swarm of `benchmarks.control_directory`, and what they make of a swarm
that does not fit one machine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from peer.discovery.dht_node.node import DhtNode, PeerID, p2pd_pb2
from peer.discovery.dht_node.process import DhtNodeLimits
from peer.discovery.dht_node.supervisor import SupervisorTimes
from peer.discovery.directory import DhtDirectory
from peer.discovery.keys import bucket_key
from peer.identity import Identity
from peer.protocol.messages import MAX_RELAYS, RunId
from peer.protocol.swarm.buckets import SPLIT
from peer.v1 import exchange_pb2 as pb

IDLE_MB = 1.69
"""MB a day of a connection on which nothing is said: libp2p asks every 30 s from both ends whether it lives. Measured
for ten minutes between two p2pd without Kademlia and AutoNAT."""
DAY_S = 86_400.0
ASKED = 20
"""Nodes that hivemind asks in a search."""
REPEATS = 10


@dataclass(frozen=True)
class UnitCosts:
    """Bytes at the interface of the peer that begins it, both ways."""

    dial: float
    look: float
    """Without a record."""
    record: float
    """Each record in a look."""
    announcement: float
    question: float
    """About the nearest nodes, on a connection that is there."""


async def cost(count: Callable[[], int], action: Callable[[], Awaitable[object]]) -> float:
    """Return the bytes of one action, from `REPEATS`."""
    before = count()
    for _ in range(REPEATS):
        await action()
    await asyncio.sleep(1.0)
    return (count() - before) / REPEATS


async def unit_costs(
    one: DhtDirectory,
    node: DhtDirectory,
    run_id: RunId,
    count: Callable[[], int],
    announce: Callable[[], Awaitable[None]],
) -> UnitCosts:
    """Measure them between a peer and the node of its ticket."""
    asking, asked = _node(one), _node(node)
    peer = PeerID.from_base58(next(iter(node.addresses())).rpartition("/p2p/")[2])
    name, full, empty = peer.to_base58(), bucket_key(run_id), bucket_key(run_id, "0000000000")
    records = len(await asking.find_at([name], full))
    assert records, "the node holds no record"

    async def dial() -> None:
        end = p2pd_pb2.DisconnectRequest(peer=peer.to_bytes())
        await asking._process.ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=end), 5.0)
        await asking._connect(peer, [(await asked.addresses())[0].partition("/p2p/")[0]], 5.0)
        await asyncio.sleep(0.5)

    await dial()
    nothing = await cost(count, lambda: asking.find_at([name], empty))
    everything = await cost(count, lambda: asking.find_at([name], full))
    announcement = await cost(count, announce)
    return UnitCosts(
        dial=await cost(count, dial),
        look=nothing,
        record=(everything - nothing) / records,
        announcement=announcement,
        question=nothing,
    )


def _node(directory: DhtDirectory) -> DhtNode:
    node = directory._helper.node
    assert node is not None
    return node


def relays_in_record() -> int:
    """Return the bytes that three relays add to a record."""
    word = pb.RelayWord(block="192.0.2.0/24", until=1_800_000_000, signature=bytes(64))
    relay = pb.RelayAddress(peer_id=Identity.generate().peer_id, endpoint="192.0.2.70:4810", word=word)
    return pb.RecordBody(relays=[relay] * MAX_RELAYS).ByteSize()


def modelled(peers: int, unit: UnitCosts, look_s: float, renewal_s: float, relayed: int = 0) -> dict[str, float]:
    """Return MB a day of a peer in a swarm of so many while the operator's node answers. `relayed`: bytes of the relays
    in each record; 0: all can be called directly.

    Connections are twice as many as p2pd keeps, for others come meanwhile. Searches are those that a settled peer
    makes, and as many of others reach it. They find none of the nodes connected."""
    depth = 0
    while peers / 2**depth > SPLIT:
        depth += 1
    buckets = min(2, 2**depth)
    shown = peers / 2**depth
    searched = 2 * DAY_S / SupervisorTimes().refresh * min(ASKED, peers - 1)
    day = {
        "idle connections": min(2 * DhtNodeLimits().kept, peers) * IDLE_MB,
        "looks": DAY_S / look_s * buckets * (unit.look + shown * (unit.record + relayed)) / 1e6,
        "announcements": DAY_S / renewal_s * (unit.announcement + relayed) * buckets / 1e6,
        "searches for nodes": searched * (unit.dial + unit.question) / 1e6,
    }
    return {**day, "all": sum(day.values())}
