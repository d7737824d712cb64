"""The addresses of DHT nodes by peer id, and how nodes send them to each other.

hivemind's answers name nodes by their peer ids alone. p2pd could find their addresses with a Kademlia of its own, but
would then keep a connection to every node. Instead the nodes add addresses to hivemind's messages, in protobuf fields
that hivemind passes on without reading them: each node sends its own addresses in every message, and in answers also
those of the nodes that it names."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from peer.discovery.multiaddr import is_dialable
from peer.identity import key_in, peer_id_of
from peer.v1 import exchange_pb2 as pb

MAX_NODES = 1024
MAX_ADDRESSES = 4
"""Addresses of a node that are kept: as many that it sent itself, and as many that others reported."""
MAX_TOLD = 64
"""Most nodes whose addresses are read from one answer."""
_FIELD = pb.ToldAddresses.DESCRIPTOR.fields_by_name["nodes"].number


class AddressBook:
    """The addresses of the latest `MAX_NODES` nodes, without peer ids. Addresses that a node sent itself come before
    addresses that others reported."""

    def __init__(self) -> None:
        self._of: OrderedDict[bytes, tuple[tuple[str, ...], tuple[str, ...]]] = OrderedDict()

    def of(self, peer: bytes) -> tuple[str, ...]:
        """Return the addresses of a node, best first. `peer`: its peer id, in bytes."""
        own, reported = self._of.get(peer, ((), ()))
        return tuple(dict.fromkeys([*own, *reported]))

    def set_own(self, peer: bytes, addresses: Iterable[str]) -> None:
        """Set the addresses that a node sent of itself. Invalid ones are left out."""
        if own := _clean(peer, addresses):
            self._put(peer, own, self._of.get(peer, ((), ()))[1])

    def add_reported(self, peer: bytes, addresses: Iterable[str]) -> None:
        """Add addresses of a node that another node reported. The latest report comes first; it does not replace the
        node's own addresses."""
        own, before = self._of.get(peer, ((), ()))
        if found := _clean(peer, addresses):
            self._put(peer, own, tuple(dict.fromkeys([*found, *before]))[:MAX_ADDRESSES])

    def _put(self, peer: bytes, own: tuple[str, ...], reported: tuple[str, ...]) -> None:
        self._of.pop(peer, None)  # moves it to the end, so that the oldest entry is dropped first
        self._of[peer] = own, reported
        if len(self._of) > MAX_NODES:
            self._of.popitem(last=False)


def _clean(peer: bytes, addresses: Iterable[str]) -> tuple[str, ...]:
    try:
        name = peer_id_of(key_in(peer))
    except ValueError:  # a key of another kind than ours
        return ()
    found = [address for address in addresses if is_dialable(f"{address}/p2p/{name}")]
    return tuple(dict.fromkeys(found))[:MAX_ADDRESSES]


def add_own_addresses(message: Any, addresses: Sequence[str]) -> None:
    """Add a node's own addresses, without peer ids, to hivemind's description of the node."""
    _add(message, [pb.NodeAddresses(addresses=addresses[:MAX_ADDRESSES])])


def add_known_addresses(message: Any, peers: Iterable[bytes], book: AddressBook) -> None:
    """Add the known addresses of the nodes that an answer of the DHT names."""
    known = ((peer, book.of(peer)) for peer in dict.fromkeys(peers))
    nodes = [pb.NodeAddresses(peer_id=peer, addresses=found[:MAX_ADDRESSES]) for peer, found in known if found]
    _add(message, nodes[:MAX_TOLD])


def _add(message: Any, nodes: Sequence[pb.NodeAddresses]) -> None:
    message.MergeFromString(pb.ToldAddresses(nodes=nodes).SerializeToString())


def addresses_in(message: Any) -> list[tuple[bytes, list[str]]]:
    """Return the nodes in a message whose addresses it has: peer id and addresses. An empty peer id stands for the
    sender."""
    fields = UnknownFieldSet(message)
    found = [field.data for field in (fields[n] for n in range(len(fields))) if field.field_number == _FIELD]
    return [one for data in found[:MAX_TOLD] if isinstance(data, bytes) for one in _read(data)]


def _read(data: bytes) -> list[tuple[bytes, list[str]]]:
    try:
        node = pb.NodeAddresses.FromString(data)
    except DecodeError:
        return []
    return [(node.peer_id, list(node.addresses[: 2 * MAX_ADDRESSES]))]


class AddressSharing:
    """Wraps hivemind's request handlers: addresses that callers send are kept in the book, and answers get the known
    addresses of the nodes that they name."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book

    def wrap(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the wrapped handler."""

        async def wrapped(request: Any, context: Any) -> Any:
            note_sender(self._book, context.remote_id.to_bytes(), request)
            answer = await handler(request, context)
            if results := getattr(answer, "results", ()):
                add_known_addresses(
                    answer, (peer for result in results for peer in result.nearest_peer_ids), self._book
                )
            return answer

        return wrapped


def note_sender(book: AddressBook, peer: bytes, message: Any) -> None:
    """Keep the addresses that the sender of a message gave of itself. `peer`: its peer id, which p2pd has proved."""
    for _, addresses in addresses_in(message.peer):
        book.set_own(peer, addresses)


def note_others(book: AddressBook, answer: Any) -> None:
    """Keep the addresses that an answer gives of other nodes."""
    for peer, addresses in addresses_in(answer):
        book.add_reported(peer, addresses)
