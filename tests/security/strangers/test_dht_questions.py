"""DHT requests that cost more to answer than to send. Anyone who connects to a p2pd may send them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peer.discovery.dht_node.node import DHTID, DhtNode, DhtNodeOptions, PeerID, dht_pb2
from peer.discovery.dht_node.question_gate import (
    FIND,
    LEAST_S,
    MAX_ANSWER_BYTES,
    MAX_ASKED_BYTES,
    MAX_KEYS,
    MAX_STORE_BYTES,
    MAX_STORED,
    OF_A_BLOCK,
    OF_ALL,
    STORE,
    QuestionGate,
    QuestionRefused,
    bounded,
)
from peer.discovery.keys import slot
from peer.identity import Identity
from tests.security.strangers.test_full_store import LISTEN, key_file

ASKER = Identity.generate()
PLACE = slot(ASKER.public_key)


class Gate:
    """A gate with clocks that can be set, and callers of one block each."""

    def __init__(self, cost_s: float = 0.0, answer: int = 10) -> None:
        self.now = self.spent = 0.0
        self.cost_s, self.answer, self.asked = cost_s, answer, 0
        self.gate = QuestionGate(self, lambda: self.now, lambda: self.spent)  # type: ignore[arg-type]

    async def of(self, peer_id: str) -> str:
        return self.block

    block = "192.0.2.0/24"

    async def handler(self, request: Any, context: Any) -> Any:
        self.asked += 1
        self.spent += self.cost_s
        return SimpleNamespace(ByteSize=lambda: self.answer)

    def ask(self, name: str, keys: list[bytes], node_id: bytes = PLACE) -> str:
        """Return why the request is refused; empty: it was answered."""

        async def play() -> None:
            request = SimpleNamespace(keys=keys, peer=SimpleNamespace(node_id=node_id))
            context = SimpleNamespace(remote_id=SimpleNamespace(to_base58=lambda: ASKER.peer_id))
            await self.gate.check_raw(name, 100, ASKER.peer_id)
            await self.gate.wrap(name, self.handler)(request, context)

        before = self.gate.refused.copy()
        try:
            asyncio.run(play())
        except QuestionRefused:
            return next(iter(self.gate.refused - before))
        return ""


def keys(count: int) -> list[bytes]:
    return [bytes([number // 256, number % 256]) * 10 for number in range(count)]


@pytest.mark.parametrize(
    ("name", "asked", "refused"),
    [
        (f"DHTProtocol{FIND}", keys(MAX_KEYS), ""),
        (f"DHTProtocol{FIND}", keys(MAX_KEYS + 1), "keys"),
        (f"DHTProtocol{FIND}", keys(1) * 2, "keys"),
        (f"DHTProtocol{STORE}", keys(MAX_STORED), ""),
        (f"DHTProtocol{STORE}", keys(MAX_STORED + 1), "keys"),
        ("DHTProtocol.rpc_ping", [], ""),
    ],
)
def test_a_question_names_few_keys_and_each_once(name: str, asked: list[bytes], refused: str) -> None:
    gate = Gate()
    assert gate.ask(name, asked) == refused
    assert gate.asked == (not refused)


def test_nobody_has_another_place_than_its_keys() -> None:
    gate = Gate()
    assert gate.ask("DHTProtocol.rpc_ping", [], b"x" * 20) == "place"
    assert gate.ask("DHTProtocol.rpc_ping", [], b"") == "", "a node that cannot be called names none"
    assert gate.asked == 1


@pytest.mark.parametrize(
    ("name", "most"), [(FIND, MAX_ASKED_BYTES), (STORE, MAX_STORE_BYTES), (".rpc_ping", MAX_ASKED_BYTES)]
)
def test_a_large_question_is_not_even_parsed(name: str, most: int) -> None:
    parsed = list[int]()

    async def parse(raw: bytes, remote_id: object) -> bytes:
        parsed.append(len(raw))
        return raw

    async def play() -> None:
        handler = bounded(f"DHTProtocol{name}", parse, Gate().gate)
        caller = SimpleNamespace(to_base58=lambda: ASKER.peer_id)
        await handler(bytes(most), caller)
        with pytest.raises(QuestionRefused):
            await handler(bytes(most + 1), caller)

    asyncio.run(play())
    assert parsed == [most]


def test_an_answer_that_p2pd_would_not_pass_on_is_given_up() -> None:
    assert Gate(answer=MAX_ANSWER_BYTES).ask(FIND, keys(1)) == ""
    assert Gate(answer=MAX_ANSWER_BYTES + 1).ask(FIND, keys(1)) == "answer"


def test_a_block_has_its_share_of_the_event_loop_and_all_have_theirs() -> None:
    gate, questions = Gate(cost_s=0.5), 0
    while not gate.ask(FIND, keys(1)):
        questions += 1
    assert questions * 0.5 == pytest.approx(OF_A_BLOCK.burst, abs=0.5)
    gate.block = "198.51.100.0/24"
    assert gate.ask(FIND, keys(1)) == "", "another block still has its own share"
    for number in range(100):
        gate.block = f"198.51.{number}.0/24"
        gate.ask(FIND, keys(1))
    assert gate.asked * 0.5 == pytest.approx(OF_ALL.burst, abs=1.0)
    assert gate.ask(FIND, keys(1)) == "rate"
    gate.now += 2 * LEAST_S / OF_ALL.per_s
    gate.block = "203.0.113.0/24"
    assert gate.ask(FIND, keys(1)) == ""


async def attack(folder: Path) -> None:
    """Send requests from a real p2pd to another one."""
    owner, path = key_file(folder, "victim")
    victim = await DhtNode.start(DhtNodeOptions(path, owner.public_key), LISTEN, None)
    stranger, path = key_file(folder, "stranger")
    attacker = await DhtNode.start(DhtNodeOptions(path, stranger.public_key), LISTEN, None)
    try:
        assert await attacker.link((await victim.addresses())[0], 5.0)
        stub = attacker._dht.protocol.get_stub(PeerID.from_base58(owner.peer_id))

        async def asked(count: int) -> int:
            named = [DHTID.generate().to_bytes() for _ in range(count)]
            answer = await stub.rpc_find(dht_pb2.FindRequest(keys=named), timeout=10.0)
            return len(answer.results)

        assert await asked(MAX_KEYS) == MAX_KEYS
        for count in (MAX_KEYS + 1, 60_000):
            with pytest.raises(Exception, match=r"keys|bytes") as refused:
                await asked(count)
            assert "Refused" in str(refused.value)
        assert await asked(1) == 1
        assert victim._process.gate.refused == {"keys": 1, "size": 1}
    finally:
        await attacker.close()
        await victim.close()


@pytest.mark.processes
def test_a_real_question_for_very_many_keys_is_refused(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(attack(tmp_path), 60.0))
