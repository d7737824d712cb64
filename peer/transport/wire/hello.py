"""Proof of a caller's key in a Hello."""

from __future__ import annotations

from peer.protocol.messages import RunId

HELLO_DOMAIN = b"peer hello v1"
"""Domain of the signatures in Hellos; see `peer.identity`."""


def proof_message(run_id: RunId | bytes, server_key: bytes, nonce: bytes) -> bytes:
    """Return the bytes that a caller signs: they name the run, the server that asked, and its challenge."""
    return run_id + server_key + nonce
