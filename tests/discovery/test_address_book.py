"""Addresses that DHT nodes send each other: which nodes' reports count, and how many addresses are stored."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import base58

from peer.discovery.address_book import (
    MAX_ADDRESSES,
    MAX_NODES,
    MAX_TOLD,
    AddressBook,
    AddressSharing,
    add_known_addresses,
    add_own_addresses,
    addresses_in,
    note_others,
    note_sender,
)
from peer.discovery.dht_node.node import dht_pb2
from peer.identity import Identity


def key() -> bytes:
    return base58.b58decode(Identity.generate().peer_id)


def at(number: int) -> str:
    return f"/ip4/192.0.2.7/tcp/{number}"


def over_the_wire(message: Any) -> Any:
    """Return the message as hivemind delivers it to the other side."""
    return type(message).FromString(message.SerializeToString())


def test_hearsay_adds_to_what_a_node_says_of_itself_and_never_replaces_it() -> None:
    book, node = AddressBook(), key()
    book.set_own(node, [at(1)])
    for number in range(2, 20):
        book.add_reported(node, [at(number)])
    assert book.of(node)[0] == at(1)
    assert len(book.of(node)) == 1 + MAX_ADDRESSES
    book.set_own(node, [at(30)])
    assert book.of(node)[0] == at(30)
    assert at(1) not in book.of(node)


def test_the_latest_hearsay_comes_first() -> None:
    book, node = AddressBook(), key()
    book.add_reported(node, [at(1)])
    book.add_reported(node, [at(2)])
    assert book.of(node) == (at(2), at(1))


def test_what_is_no_address_and_who_is_no_peer_is_left_out() -> None:
    book, node = AddressBook(), key()
    book.set_own(node, ["/ip4/300.1.1.1/tcp/1", "/ip4/192.0.2.7/udp/1", "x" * 10_000, at(70_000)])
    assert book.of(node) == ()
    book.add_reported(b"\x12\x20" + bytes(32), [at(1)])
    assert book.of(b"\x12\x20" + bytes(32)) == ()


def test_it_forgets_the_oldest_nodes() -> None:
    book, first = AddressBook(), key()
    book.add_reported(first, [at(1)])
    for _ in range(MAX_NODES):
        book.add_reported(key(), [at(2)])
    assert book.of(first) == ()


def test_a_node_tells_its_own_addresses_in_whatever_it_says() -> None:
    book, node, info = AddressBook(), key(), dht_pb2.NodeInfo(node_id=bytes(20))
    add_own_addresses(info, [at(1), at(2)])
    for message in (dht_pb2.PingRequest(peer=info), dht_pb2.FindResponse(peer=info)):
        received = over_the_wire(message)
        assert received.peer.node_id == bytes(20)
        note_sender(book, node, received)
        assert book.of(node) == (at(1), at(2))


def test_an_answer_tells_where_the_nodes_are_that_it_names() -> None:
    theirs, ours, node, other = AddressBook(), AddressBook(), key(), key()
    theirs.set_own(node, [at(1)])
    theirs.set_own(other, [at(2)])

    async def handler(request: Any, context: Any) -> Any:
        return dht_pb2.FindResponse(results=[dht_pb2.FindResult(nearest_peer_ids=[node])])

    caller = SimpleNamespace(remote_id=SimpleNamespace(to_bytes=key))
    answer = asyncio.run(AddressSharing(theirs).wrap(handler)(dht_pb2.FindRequest(), caller))
    note_others(ours, over_the_wire(answer))
    assert ours.of(node) == (at(1),)
    assert ours.of(other) == ()


def test_no_answer_fills_the_book() -> None:
    book, theirs, answer = AddressBook(), AddressBook(), dht_pb2.FindResponse()
    nodes = [key() for _ in range(3 * MAX_TOLD)]
    for node in nodes:
        theirs.set_own(node, [at(1)])
    for part in (nodes[:MAX_TOLD], nodes[MAX_TOLD : 2 * MAX_TOLD], nodes[2 * MAX_TOLD :]):
        add_known_addresses(answer, part, theirs)
    note_others(book, over_the_wire(answer))
    assert sum(bool(book.of(node)) for node in nodes) == MAX_TOLD


def test_garbage_in_the_field_is_nothing() -> None:
    info = dht_pb2.NodeInfo()
    info.MergeFromString(bytes([0xAA, 0x06, 3]) + b"\xff\xff\xff")
    assert addresses_in(over_the_wire(info)) == []
