"""Tests of when punching is tried."""

from __future__ import annotations

import pytest

from peer.protocol.messages import PeerId
from peer.protocol.relay.punching import FIRST_PAUSE_S, LONGEST_PAUSE_S, LOST, MAX_PEERS, OWN_PAUSE_S, PunchMemory

NOW = 1000.0
SEEN = "198.51.100.7:4810"
ONE = PeerId("one")


def skip_reason(
    memory: PunchMemory, peer: PeerId = ONE, seen: str = SEEN, now: float = NOW, private: bool = False
) -> str:
    return memory.skip_reason(peer, seen, private_run=private, now=now)


@pytest.mark.parametrize(
    ("seen", "private", "why"),
    [
        (SEEN, False, ""),
        ("[2001:4860::7]:4810", False, ""),
        ("", False, "does not tell"),
        ("a.name.example:4810", False, "does not tell"),
        ("192.168.1.7:4810", False, "private address"),
        ("127.0.0.1:4810", False, "private address"),
        ("[::1]:4810", False, "private address"),
        ("192.168.1.7:4810", True, ""),
    ],
)
def test_only_an_address_that_can_be_the_other_ends_is_punched_to(seen: str, private: bool, why: str) -> None:
    found = skip_reason(PunchMemory(), seen=seen, private=private)
    assert found == why if not why else why in found


def test_a_failure_with_a_peer_makes_a_pause_that_grows() -> None:
    memory, now = PunchMemory(), NOW
    memory.failed(ONE, now)
    assert "tried again in 30 s" in skip_reason(memory, now=now + FIRST_PAUSE_S - 30)
    assert skip_reason(memory, PeerId("two"), now=now) == "", "others are tried"
    pauses = []
    for _ in range(10):
        now += LONGEST_PAUSE_S
        assert skip_reason(memory, now=now) == ""
        memory.failed(ONE, now)
        pauses.append(next(s for s in range(0, 4000, 10) if not skip_reason(memory, now=now + s)))
    assert pauses[:3] == [2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S, 8 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_our_own_router_is_blamed_when_it_works_with_nobody() -> None:
    memory = PunchMemory()
    for number in range(LOST):
        assert skip_reason(memory, PeerId("new")) == ""
        memory.failed(PeerId(f"peer {number}"), NOW)
    assert "our router" in skip_reason(memory, PeerId("new"))
    assert skip_reason(memory, PeerId("new"), now=NOW + OWN_PAUSE_S) == ""


def test_one_peer_alone_says_nothing_of_our_router() -> None:
    memory = PunchMemory()
    for _ in range(2 * LOST):
        memory.failed(ONE, NOW)
    assert skip_reason(memory, PeerId("new")) == ""


def test_a_success_forgives_everything() -> None:
    memory = PunchMemory()
    for number in range(LOST):
        memory.failed(PeerId(f"peer {number}"), NOW)
    memory.worked(PeerId("peer 0"))
    assert skip_reason(memory, PeerId("peer 0")) == ""
    assert skip_reason(memory, PeerId("new")) == ""
    assert "failed with this peer" in skip_reason(memory, PeerId("peer 1"))


def test_what_is_remembered_is_bounded() -> None:
    memory = PunchMemory()
    for number in range(4 * MAX_PEERS):
        memory.failed(PeerId(f"peer {number}"), NOW)
    assert len(memory._tries) <= MAX_PEERS
    assert len(memory._lost) <= MAX_PEERS
