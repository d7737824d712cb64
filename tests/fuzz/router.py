"""Fuzz targets: answers of the router, through the child process that queries it."""

from __future__ import annotations

import json

from peer.protocol.swarm.nearness import address_of
from peer.protocol.swarm.port_lease import RouterRefusal
from peer.transport.port_mapping.router import MAX_LEASE_S, MOST_ANSWER_BYTES, MOST_WORDS, answer_of, mapping_of
from tests.fuzz.engine import Target


def router_answer() -> Target:
    """Decode an answer. No error is raised: every answer becomes a mapping or a refusal, both bounded and printable."""

    def run(raw: bytes) -> None:
        answer = answer_of(raw)
        found = answer if isinstance(answer, RouterRefusal) else mapping_of(answer)
        words = [found.why] if isinstance(found, RouterRefusal) else [found.router]
        assert all(word.isprintable() and len(word) <= MOST_WORDS for word in words)
        assert not found.address or address_of(found.address) is not None
        if not isinstance(found, RouterRefusal):
            assert 0 < found.port < 65536
            assert 0 <= found.lease_s <= MAX_LEASE_S

    answers = (
        {"router": "192.168.7.1", "address": "45.77.1.1", "port": 4811, "lease_s": 3600},
        {"router": "192.168.7.1", "address": "", "refused": "the router said: Action not authorized"},
        {"refused": "no router in this network answers UPnP"},
        {"closed": 4811},
    )
    corpus = tuple(json.dumps(answer).encode() for answer in answers)
    tokens = (b"1e999", b"null", b"NaN", b"[[[[", b'"\\u001b[2J"', b"-0", b"99999999999999999999")
    return Target(name="router-answer", run=run, corpus=corpus, tokens=tokens, limit=2 * MOST_ANSWER_BYTES)


TARGETS = (router_answer,)
