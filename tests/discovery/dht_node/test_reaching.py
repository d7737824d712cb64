"""Calls of the DHT: when the other node is dialled first."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from peer.discovery.address_book import AddressBook
from peer.discovery.dht_node.node import dht_pb2
from peer.discovery.dht_node.reaching import CONNECTED_S, reaching


class Line:
    """Another node, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now, self.broken, self.dialled, self.called = 100.0, False, 0, 0
        peer = SimpleNamespace(to_bytes=lambda: b"peer")
        self.stub = reaching(lambda peer: self, AddressBook(), self.dial, lambda: self.now)(peer)

    async def dial(self, peer: Any) -> None:
        self.dialled += 1

    async def rpc_find(self, request: Any) -> Any:
        self.called += 1
        if self.broken:
            raise ConnectionResetError
        return dht_pb2.FindResponse()

    def call(self) -> None:
        asyncio.run(self.stub.rpc_find(dht_pb2.FindRequest()))


def test_a_node_that_has_just_answered_is_not_dialled_again() -> None:
    line = Line()
    for _ in range(5):
        line.call()
    assert (line.dialled, line.called) == (1, 5)
    line.now += CONNECTED_S
    line.call()
    assert line.dialled == 2


def test_a_node_that_did_not_answer_is_dialled_for_the_next_call() -> None:
    line = Line()
    line.call()
    line.broken = True
    with pytest.raises(ConnectionResetError):
        line.call()
    line.broken = False
    line.call()
    assert line.dialled == 2
