"""The calls with one request and one reply, as methods of every transport."""

from __future__ import annotations

from peer.transport.calls.artifacts import ask as ask_artifacts
from peer.transport.calls.call import Channel
from peer.transport.calls.group import ask_held, ask_join_round
from peer.transport.calls.manifest import ask as ask_manifest
from peer.transport.calls.offer import ask as ask_offer
from peer.transport.calls.operator_word import ask_amendments, ask_papers
from peer.transport.calls.peers import ask as ask_peers
from peer.transport.calls.probe import ask as ask_probe
from peer.transport.calls.receipts import ask_receipt, ask_shown
from peer.transport.calls.state import ask as ask_state
from peer.transport.calls.summary import ask as ask_summary
from peer.transport.calls.vouch import ask as ask_vouch


class SmallCalls(Channel):
    """What a transport offers once it carries a request and brings the reply; see `peer.ports.transport`."""

    offer = ask_offer
    probe = ask_probe
    vouch = ask_vouch
    receipt = ask_receipt
    shown_receipts = ask_shown
    send_summary = ask_summary
    fetch_amendments = ask_amendments
    fetch_papers = ask_papers
    fetch_peers = ask_peers
    join_round = ask_join_round
    held = ask_held
    fetch_manifest = ask_manifest
    describe_state = ask_state
    ask_artifacts = ask_artifacts
