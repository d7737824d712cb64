from __future__ import annotations

import asyncio

import pytest

from peer.protocol.endpoints import host_of_caller
from peer.protocol.messages import PeerId, Probed
from peer.transport.server.dial_back import EVERY_S, MAX_REMEMBERED, DialBack

CALLER = PeerId("caller")
SEEN = "ipv4:10.0.0.5:55312"


@pytest.mark.parametrize(
    ("seen", "host"),
    [
        ("ipv4:192.0.2.7:55312", "192.0.2.7"),
        ("ipv6:%5B2001:db8::7%5D:55312", "2001:db8::7"),
        ("ipv6:[::1]:1", "::1"),
        ("ipv6:[::ffff:192.0.2.7]:9", "192.0.2.7"),
        ("ipv6:[fe80::1%25eth0]:9", "fe80::1"),
        ("unix:/tmp/x", ""),
        ("ipv4:no.such:1", ""),
        ("", ""),
    ],
)
def test_the_host_of_a_caller(seen: str, host: str) -> None:
    assert host_of_caller(seen) == host


class Dialled:
    """Notes what was dialled; answers at the given endpoints."""

    def __init__(self, *answering: str) -> None:
        self.endpoints: list[str] = []
        self.answering = answering
        self.now = 1000.0
        self.prober = DialBack(self.dial, lambda: self.now)

    async def dial(self, peer: PeerId, endpoint: str, timeout_s: float) -> str:
        self.endpoints.append(endpoint)
        return "" if endpoint in self.answering else "no answer"

    def probe(self, *endpoints: str, port: int = 4810, seen: str = SEEN, caller: PeerId = CALLER) -> Probed:
        return asyncio.run(self.prober.probe(caller, seen, list(endpoints), port))


def test_it_dials_where_the_caller_calls_from() -> None:
    world = Dialled("10.0.0.5:4810")
    assert world.probe() == Probed(("10.0.0.5:4810",), ("10.0.0.5:4810",), "")


def test_it_says_why_not() -> None:
    found = Dialled().probe()
    assert found.answered == ()
    assert found.reason == "10.0.0.5:4810: no answer"


@pytest.mark.parametrize(
    "endpoint",
    ["10.0.0.6:22", "127.0.0.1:6379", "192.168.1.1:80", "169.254.169.254:80", "[::1]:80", "localhost:80"],
)
def test_it_does_not_look_about_in_private_networks_for_others(endpoint: str) -> None:
    world = Dialled()
    world.probe(endpoint)
    assert world.endpoints == ["10.0.0.5:4810"]


def test_public_addresses_and_the_callers_own_are_dialled() -> None:
    world = Dialled("8.8.8.8:4810")
    found = world.probe("8.8.8.8:4810", "10.0.0.5:9")
    assert world.endpoints == ["10.0.0.5:4810", "8.8.8.8:4810", "10.0.0.5:9"]
    assert found.answered == ("8.8.8.8:4810",)


@pytest.mark.parametrize(
    "endpoint", ["", "x", "1.1.1.1", "1.1.1.1:0", "1.1.1.1:99999", "a b:1", "[::1:4", "\0:1", "x:1:2"]
)
def test_nonsense_is_not_dialled(endpoint: str) -> None:
    world = Dialled()
    world.probe(endpoint, port=0)
    assert world.endpoints == []


def test_a_caller_is_dialled_back_now_and_then_only() -> None:
    world = Dialled()
    world.probe()
    world.now += EVERY_S - 1
    assert "again within" in world.probe().reason
    world.now += 1
    assert world.probe().tried
    assert len(world.endpoints) == 2


def test_many_callers_are_not_remembered_for_ever() -> None:
    world = Dialled()
    for number in range(MAX_REMEMBERED + 10):
        world.probe(caller=PeerId(str(number)))
    assert len(world.prober._last) == MAX_REMEMBERED
