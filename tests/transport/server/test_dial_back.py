from __future__ import annotations

import asyncio

import pytest

from peer.protocol.endpoints import host_of_caller
from peer.protocol.messages import PeerId, Probed
from peer.transport.server.dial_back import (
    EVERY_S,
    MAX_AT_ONCE_OF_A_BLOCK,
    MAX_REMEMBERED,
    OF_A_BLOCK,
    SILENT,
    DialBack,
)

CALLER = PeerId("caller")
HOST = "10.0.0.5"


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
    """A fake `Dial` that records dials, and answers at the given endpoints."""

    def __init__(self, *answering: str, why: str = "no answer") -> None:
        self.endpoints: list[str] = []
        self.why = why
        self.answering = answering
        self.now = 1000.0
        self.prober = DialBack(self.dial, lambda: self.now)

    async def dial(self, peer: PeerId, endpoint: str, timeout_s: float) -> str:
        self.endpoints.append(endpoint)
        return "" if endpoint in self.answering else self.why

    def probe(self, *endpoints: str, port: int = 4810, host: str = HOST, caller: PeerId = CALLER) -> Probed:
        return asyncio.run(self.prober.probe(caller, host, list(endpoints), port))


def test_it_dials_where_the_caller_calls_from() -> None:
    world = Dialled("10.0.0.5:4810")
    assert world.probe() == Probed(("10.0.0.5:4810",), ("10.0.0.5:4810",), "")


@pytest.mark.parametrize("why", ["connection refused", "no answer within 4 s", "somebody else answers there"])
def test_a_failure_has_one_word_whatever_failed(why: str) -> None:
    found = Dialled(why=why).probe("10.0.0.5:22")
    assert found.answered == ()
    assert found.reason == SILENT


@pytest.mark.parametrize(
    "endpoint",
    ["10.0.0.6:22", "127.0.0.1:22", "169.254.169.254:22", "[::1]:22", "localhost:22", "8.8.8.8:22", "x.example:22"],
)
def test_it_dials_the_address_of_the_caller_alone(endpoint: str) -> None:
    world = Dialled()
    world.probe(endpoint)
    assert world.endpoints == ["10.0.0.5:4810", "10.0.0.5:22"]


def test_it_dials_a_few_ports() -> None:
    world = Dialled("10.0.0.5:9")
    found = world.probe(*(f"10.0.0.5:{port}" for port in (9, 9, 10, 11, 12, 13)))
    assert world.endpoints == ["10.0.0.5:4810", "10.0.0.5:9", "10.0.0.5:10"]
    assert found.answered == ("10.0.0.5:9",)


@pytest.mark.parametrize("endpoint", ["", "x", "1.1.1.1", "1.1.1.1:0", "1.1.1.1:99999", "a:1b", "x:\u0661"])
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


def test_the_keys_of_a_block_share_its_budget() -> None:
    world = Dialled()
    for number in range(1000):
        world.probe(caller=PeerId(str(number)), host=f"10.0.0.{number % 250}")
    assert len(world.endpoints) == OF_A_BLOCK.burst
    assert world.probe(caller=PeerId("another"), host="10.0.1.5").tried


def test_a_block_does_not_hold_all_places() -> None:
    world = Dialled()

    async def main() -> list[Probed]:
        never = asyncio.Event()

        async def hang(peer: PeerId, endpoint: str, timeout_s: float) -> str:
            await never.wait()
            return "hung"

        prober = DialBack(hang, lambda: world.now)
        greedy = [prober.probe(PeerId(str(n)), "10.0.0.5", [], 4810) for n in range(20)]
        hanging = [asyncio.create_task(one) for one in [*greedy, prober.probe(PeerId("home"), "10.0.1.5", [], 4810)]]
        await asyncio.wait(hanging, timeout=0.05)
        never.set()
        return list(await asyncio.gather(*hanging))

    found = asyncio.run(main())
    assert [bool(one.tried) for one in found].count(True) == MAX_AT_ONCE_OF_A_BLOCK + 1
    assert found[-1].tried


def test_many_callers_are_not_remembered_for_ever() -> None:
    world = Dialled()
    for number in range(MAX_REMEMBERED + 10):
        world.probe(caller=PeerId(str(number)), host=f"10.{number >> 8}.{number & 255}.5")
    assert len(world.prober._last) == MAX_REMEMBERED
