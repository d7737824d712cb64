"""Recorded messages of p2pd about failed dials, and the reasons that a person reads."""

from __future__ import annotations

import pytest

from peer.discovery.dial_report import dial_failure_reason

HERE = "/ip4/127.0.0.1/tcp/46312"
HEAD = "failed to dial: failed to dial 12D3KooWFKrM: all dials failed"
REFUSED = f"{HEAD}\n  * [{HERE}] dial tcp4 127.0.0.1:46312: connect: connection refused"
OTHER_KEY = (
    f"{HEAD}\n  * [{HERE}] failed to negotiate security protocol: peer id mismatch: expected 12D3KooWFKrM, "
    "but remote key matches 12D3KooWAWZQ\n  * [/ip4/127.0.0.1/tcp/46319] dial backoff"
)
STRANGER = f"{HEAD}\n  * [{HERE}] failed to negotiate security protocol: message did not have trailing newline"
NO_ROUTE = f"{HEAD}\n  * [/ip6/2001:db8::1/tcp/4810] dial tcp6 [2001:db8::1]:4810: connect: no route to host"
EARLY = f"{HEAD}\n  * [{HERE}] dial backoff"
ELSEWHERE = f"{HEAD}\n  * [/ip4/192.0.2.1/tcp/4810] dial tcp4 192.0.2.1:4810: connect: connection refused"


@pytest.mark.parametrize(
    ("said", "address", "words"),
    [
        (REFUSED, HERE, "connection refused: nothing listens there"),
        (OTHER_KEY, HERE, "answers with another key: it is 12D3KooWAWZQ"),
        (STRANGER, HERE, "something answers that is no peer"),
        (NO_ROUTE, "/ip6/2001:db8::1/tcp/4810", "no route to this host"),
        (EARLY, HERE, ""),
        (ELSEWHERE, HERE, ""),
        (ELSEWHERE, "/dns4/host.example/tcp/4810", "connection refused: nothing listens there"),
        (ELSEWHERE, "/dns4/host.example/tcp/4811", "the name is not known"),
        ("failed to dial: dial to self attempted", HERE, "this is our own address"),
        ("p2pd is gone", HERE, "p2pd is gone"),
    ],
)
def test_a_failed_dial_in_words(said: str, address: str, words: str) -> None:
    assert dial_failure_reason(said, address) == words
