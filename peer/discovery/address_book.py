"""Addresses of the DHT's nodes, by their peer ids, and how the nodes tell them to each other.

hivemind's answers name nodes by their peer ids alone. p2pd could find their addresses by a Kademlia of its own, which
keeps a connection to every node for good. So the nodes tell addresses themselves, in fields that hivemind passes on
unread: each tells its own in whatever it says, and those of others where it names them."""

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
"""The book keeps so many addresses of a node: its own, and as many that others told."""
MAX_TOLD = 64
"""The addresses of so many nodes are read from one answer."""
_FIELD = pb.ToldAddresses.DESCRIPTOR.fields_by_name["nodes"].number


class AddressBook:
    """The addresses of the latest `MAX_NODES` nodes heard of, without their peer ids. Those that a node told of itself
    come before hearsay."""

    def __init__(self) -> None:
        self._of: OrderedDict[bytes, tuple[tuple[str, ...], tuple[str, ...]]] = OrderedDict()

    def of(self, peer: bytes) -> tuple[str, ...]:
        """Return where a node may be, best first. `peer`: its id, in bytes."""
        own, reported = self._of.get(peer, ((), ()))
        return tuple(dict.fromkeys([*own, *reported]))

    def set_own(self, peer: bytes, addresses: Iterable[str]) -> None:
        """A node told its own addresses. What is no address is left out."""
        if own := _clean(peer, addresses):
            self._put(peer, own, self._of.get(peer, ((), ()))[1])

    def add_reported(self, peer: bytes, addresses: Iterable[str]) -> None:
        """Another told where a node is. The latest word comes first, and does not replace the node's own."""
        own, before = self._of.get(peer, ((), ()))
        if found := _clean(peer, addresses):
            self._put(peer, own, tuple(dict.fromkeys([*found, *before]))[:MAX_ADDRESSES])

    def _put(self, peer: bytes, own: tuple[str, ...], reported: tuple[str, ...]) -> None:
        self._of.pop(peer, None)  # the oldest goes first, as newcomers never end
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
    """Add a node's own addresses, without peer ids, to hivemind's description of it."""
    _add(message, [pb.NodeAddresses(addresses=addresses[:MAX_ADDRESSES])])


def add_known_addresses(message: Any, peers: Iterable[bytes], book: AddressBook) -> None:
    """Add to an answer of the DHT the known addresses of the nodes that it names."""
    known = ((peer, book.of(peer)) for peer in dict.fromkeys(peers))
    nodes = [pb.NodeAddresses(peer_id=peer, addresses=found[:MAX_ADDRESSES]) for peer, found in known if found]
    _add(message, nodes[:MAX_TOLD])


def _add(message: Any, nodes: Sequence[pb.NodeAddresses]) -> None:
    message.MergeFromString(pb.ToldAddresses(nodes=nodes).SerializeToString())


def addresses_in(message: Any) -> list[tuple[bytes, list[str]]]:
    """Return the peer id and the addresses of each node of which a message tells; no id: those of its sender."""
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
    """Wraps hivemind's handlers of questions: what callers tell goes into the book, and answers tell of others."""

    def __init__(self, book: AddressBook) -> None:
        self._book = book

    def wrap(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Return the handler, with the book kept."""

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
    """Keep what the sender of a message told of itself in it. `peer`: its id, which p2pd has proven."""
    for _, addresses in addresses_in(message.peer):
        book.set_own(peer, addresses)


def note_others(book: AddressBook, answer: Any) -> None:
    """Keep what an answer tells of the nodes that it names."""
    for peer, addresses in addresses_in(answer):
        book.add_reported(peer, addresses)
