"""A real node discloses nothing of its own network to peers outside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from peer.identity import Identity
from peer.node.open import LocalNode, open_node
from peer.node.record import describe_self
from peer.protocol.endpoints import host_of
from peer.protocol.messages import PeerRecord, RunId, Status
from peer.run.options import NodeOptions

pytestmark = pytest.mark.processes

RUN = RunId(b"r" * 32)
OUTSIDE = "198.51.100.7"
"""Of the operator's node, and how it sees us."""
LISTEN = ("/ip4/127.0.0.1/tcp/0",)


async def record_of(folder: Path, ticket: str, seen_from: str) -> PeerRecord:
    """Open a node with this address in its ticket, and return the record that it announces."""
    nodes = f"/ip4/{ticket}/tcp/4810/p2p/{Identity.generate().peer_id}"
    local = LocalNode.of(
        NodeOptions(home=folder, initial_peers=(nodes,), host_maddrs=LISTEN, lan=False), RUN, lambda line: None
    )
    async with asyncio.timeout(180), open_node(local) as node:
        for _ in range(2):
            node.transport.dialler.record_seen_as(Identity.generate().peer_id, f"ipv4:{seen_from}:51234")
        return describe_self(
            node.address(), status=Status.TRAINING, round_=0, tokens_per_s=1.0, now=local.clock.now(), lifetime_s=45.0
        )


def test_a_public_record_names_no_address_of_the_own_network(tmp_path: Path) -> None:
    record = asyncio.run(record_of(tmp_path, OUTSIDE, "203.0.113.9"))
    assert [host_of(endpoint) for endpoint in record.endpoints] == ["203.0.113.9"]


@pytest.mark.parametrize("ticket", ["127.0.0.1", "192.168.1.2"])
def test_in_a_run_of_a_private_network_there_are_no_others(tmp_path: Path, ticket: str) -> None:
    record = asyncio.run(record_of(tmp_path, ticket, "127.0.0.1"))
    assert [host_of(endpoint) for endpoint in record.endpoints] == ["127.0.0.1"]
