"""A directory node that returns thousands of records: none of their signatures is checked in the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from peer import signed_record
from peer.aio.threads import LowPriorityThread
from peer.clock.monotonic import run_time
from peer.discovery.dht_node import answers
from peer.discovery.dht_node.answers import MOST_BYTES, MOST_TAKEN, AnswerReader, reading_answers
from peer.discovery.dht_node.node import DictionaryDHTValue, _Validator
from peer.discovery.keys import bucket_key, slot
from peer.discovery.validator import RecordGate, dht_expiry
from peer.identity import Identity, verify
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.signed_record import seal

RUN, RECORDS = RunId(b"r" * 32), 2000
DICTIONARY = 2
KEYS = [Identity.generate() for _ in range(RECORDS)]
KNOWN = [PeerId(key.peer_id) for key in KEYS[:20]]


class Result:
    def __init__(self, value: bytes) -> None:
        self.type, self.value = DICTIONARY, value

    def Clear(self) -> None:  # noqa: N802
        self.type, self.value = 0, b""


class Node:
    """A DHT node that returns all of these records."""

    def __init__(self, *values: bytes) -> None:
        self.results = [Result(value) for value in values]

    async def rpc_find(self, question: object) -> Node:
        return self


def entries() -> Any:
    now, found = run_time(), DictionaryDHTValue()
    with found.freeze():
        for key in KEYS:
            record = PeerRecord(
                PeerId(key.peer_id), RUN, ("192.0.2.1:1",), True, 1, 1, 3, 1.0, Status.TRAINING, now, now + 60
            )
            sealed = seal(record, key)
            packed = b"\xc5" + len(sealed).to_bytes(2, "big") + sealed
            found.store(key.public_key, packed, dht_expiry(record))
    return found


def serializer() -> Any:
    from hivemind.utils.serializer import MSGPackSerializer

    return MSGPackSerializer


async def asked(node: Node) -> Node:
    thread = LowPriorityThread()
    try:
        packing = serializer()
        reader = AnswerReader(packing.loads, packing.dumps, lambda: [PeerId("no id"), *KNOWN], thread)
        stub = reading_answers(lambda peer: node, reader, DICTIONARY)("other")
        answer: Node = await stub.rpc_find("question")
        return answer
    finally:
        thread.close()


@pytest.fixture
def checked_by(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the threads in which signatures were checked."""
    threads = list[int]()

    def noting(*args: Any) -> bool:
        threads.append(threading.get_ident())
        return verify(*args)

    monkeypatch.setattr("peer.signed_record.verify", noting)
    signed_record._unsealed.clear()
    return threads


def test_the_loop_checks_no_signature_of_thousands(checked_by: list[int]) -> None:
    packing = serializer()
    (result,) = asyncio.run(asked(Node(packing.dumps(entries())))).results
    taken = packing.loads(result.value)
    before = len(taken.data)
    assert before == MOST_TAKEN
    assert {key.public_key for key in KEYS[:20]} <= set(taken.data), "whom we know comes first"
    assert _Validator(RecordGate(run_time)).prune(slot(bucket_key(RUN)), taken)
    assert len(taken.data) == before, "what is taken is good"
    assert len(checked_by) == MOST_TAKEN
    assert threading.get_ident() not in checked_by


def test_a_small_answer_is_left_as_it_is(checked_by: list[int]) -> None:
    small, packing = entries(), serializer()
    for key in KEYS[50:]:
        del small[key.public_key]
    raw = packing.dumps(small)
    (result,) = asyncio.run(asked(Node(raw))).results
    assert result.value == raw
    assert len(checked_by) == 50


def test_a_huge_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST_BYTES", 1000)
    small = Node(b"x" * 1001)
    assert MOST_BYTES > 1000
    assert asyncio.run(asked(small)).results[0].type != DICTIONARY
