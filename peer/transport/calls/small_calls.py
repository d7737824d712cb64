"""The calls with one request and one reply, as methods of every transport."""

from __future__ import annotations

from peer.transport.calls.artifacts import invoke as invoke_artifacts
from peer.transport.calls.call import Channel
from peer.transport.calls.group import invoke_held, invoke_join_round
from peer.transport.calls.manifest import invoke as invoke_manifest
from peer.transport.calls.offer import invoke as invoke_offer
from peer.transport.calls.operator_word import invoke_amendments, invoke_papers
from peer.transport.calls.peers import invoke as invoke_peers
from peer.transport.calls.probe import invoke as invoke_probe
from peer.transport.calls.receipts import invoke_receipt, invoke_shown
from peer.transport.calls.state import invoke as invoke_state
from peer.transport.calls.summary import invoke as invoke_summary
from peer.transport.calls.vouch import invoke as invoke_vouch


class SmallCalls(Channel):
    """Base of transports: implements the methods of `peer.ports.transport` that are calls with one request and one
    reply. A subclass only has to carry the messages."""

    offer = invoke_offer
    probe = invoke_probe
    vouch = invoke_vouch
    receipt = invoke_receipt
    shown_receipts = invoke_shown
    send_summary = invoke_summary
    fetch_amendments = invoke_amendments
    fetch_papers = invoke_papers
    fetch_peers = invoke_peers
    join_round = invoke_join_round
    held = invoke_held
    fetch_manifest = invoke_manifest
    describe_state = invoke_state
    query_artifacts = invoke_artifacts
