"""Summaries over the real transport: a node stores summaries that its caller signed, and counts all others."""

from __future__ import annotations

import asyncio

import pytest

from peer.clock.run_clock import RunClock
from peer.errors import PartnerRefused
from peer.node.handler import RequestHandler
from peer.observe.status.codec import to_json
from peer.protocol.messages import WIRE_VERSION, PeerRecord, Status
from peer.transport.config import RunTerms
from peer.transport.grpc_transport import GrpcTransport
from tests.support.signed_receipts import RUN, Signing
from tests.support.summaries import NOW, SetClock, signed_summary, view_at

TIMEOUT = 10.0


async def _told() -> None:
    node, peer, victim, view = Signing(), Signing(), Signing(), view_at(SetClock())
    desk = RequestHandler()
    desk.register(summaries=view)
    here = GrpcTransport(node.identity, RUN, desk, RunClock().now)
    there = GrpcTransport(peer.identity, RUN, RequestHandler(), RunClock().now)
    for transport in (here, there):
        transport.begin_run(RunTerms(b"d" * 32, 1000, "fp32"))
    port = await here.start("127.0.0.1", 0)
    endpoints = (f"127.0.0.1:{port}",)
    record = PeerRecord(node.id, RUN, endpoints, True, WIRE_VERSION, WIRE_VERSION, 0, 0.0, Status.SERVING, 0.0, 1e12)
    try:
        assert await there.send_summary(record, signed_summary(peer), TIMEOUT) == ""
        assert await there.send_summary(record, signed_summary(peer), TIMEOUT) == "stale"
        with pytest.raises(PartnerRefused) as refused:
            await there.send_summary(record, signed_summary(victim, NOW + 1), TIMEOUT)
        assert refused.value.code == "record"
    finally:
        await there.close()
        await here.close()
    report = to_json(view.report())
    assert [line["peer_id"] for line in report["peers"]] == [peer.id]
    assert report["dropped"] == {"forged": 1, "stale": 1, "rate": 0}


def test_a_node_holds_what_its_caller_signed_and_counts_what_it_did_not() -> None:
    asyncio.run(_told())


def test_a_peer_that_is_no_node_wants_none() -> None:
    peer = Signing()
    assert RequestHandler().on_summary(peer.id, "home", signed_summary(peer)) == "unwanted"
