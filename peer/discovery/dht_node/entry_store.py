"""The store of a DHT node, with places shared among runs, keys and the address blocks of callers.

Only this module, `node.py` and `process.py` use hivemind, including private parts of it. They are written against
hivemind 1.1.12."""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from peer.codes import Code
from peer.discovery.dht_node.hivemind_imports import without_the_rest
from peer.discovery.entry_places import EntryPlaces, Holder, Place
from peer.discovery.multiaddr import block_of_address
from peer.discovery.validator import RecordGate, run_of
from peer.identity import public_key_of

without_the_rest()
with warnings.catch_warnings():  # hivemind decorates functions with torch.jit.script, which torch deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    from hivemind.dht.routing import DHTID
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue

Handler = Callable[[Any, Any], Awaitable[Any]]
_UNKNOWN = "unknown"
"""Address block of callers whose address p2pd does not give."""
_ASK_AGAIN_S = 1.0
_caller: ContextVar[tuple[bytes, str] | None] = ContextVar("caller of the DHT", default=None)
"""The public key and the address block of the node that asks us to store; None: this node itself."""


class CallerBlocks:
    """Looks up the address blocks of the nodes that are connected to p2pd."""

    def __init__(self, connections: Callable[[], Awaitable[dict[str, list[str]]]], now: Callable[[], float]) -> None:
        """`connections`: returns the remote addresses of each peer id. `now`: returns monotonic seconds."""
        self._connections, self._now = connections, now
        self._blocks: dict[str, str] = {}
        self._asked_at = float("-inf")

    async def of(self, peer_id: str) -> str:
        """Return the address block of a caller.

        p2pd is asked at most once in `_ASK_AGAIN_S`, because there is no limit on the number of callers whose
        connection has already ended."""
        if peer_id not in self._blocks and self._now() - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = self._now()
            try:
                connections = await self._connections()
            except (OSError, TimeoutError, EOFError):
                return _UNKNOWN
            self._blocks = {peer: block_of_address(seen[0]) for peer, seen in connections.items() if seen}
        return self._blocks.get(peer_id, _UNKNOWN)


def noting_callers(handler: Handler, callers: CallerBlocks) -> Handler:
    """Wrap hivemind's handler of store requests, so that the store knows the caller."""

    async def wrapped(request: Any, context: Any) -> Any:
        peer_id = context.remote_id.to_base58()
        _caller.set((key_in_id(peer_id), await callers.of(peer_id)))  # each request is handled in a task of its own
        return await handler(request, context)

    return wrapped


def key_in_id(peer_id: str) -> bytes:
    """Return the public key in a peer id; empty for other kinds of keys than ours."""
    try:
        return public_key_of(peer_id)
    except ValueError:
        return b""


class EntryStore(DHTLocalStorage):  # type: ignore[misc]
    """Stores the entries that passed the gate and get a place from `EntryPlaces`."""

    def __init__(self, gate: RecordGate) -> None:
        super().__init__()
        self._gate = gate
        self._places = EntryPlaces(gate.own_run)

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store an entry that the gate has admitted. Return whether it is stored and was not there yet."""
        now, place = self._gate.now(), (key.to_bytes(), bytes(subkey))
        if expiration_time <= max(now, self._until(place)):
            return False  # known or outdated; hivemind would remember each such attempt until the entry's expiry
        caller = _caller.get()
        block = caller[1] if caller is not None else ""
        holder = Holder(run_of(value), block, expiration_time)
        gone = self._places.enter(place, holder, now, by_owner=caller is None or caller[0] == subkey)
        if gone is None:
            self._gate.refused[Code.FULL] += 1
            return False
        for victim in gone:
            self._remove(victim)
        return bool(super().store_subkey(key, subkey, value, expiration_time))

    def _until(self, place: Place) -> float:
        found = self._dictionary(place)
        entry = found.get(place[1]) if found is not None else None
        return entry.expiration_time if entry is not None else float("-inf")

    def _remove(self, place: Place) -> None:
        found = self._dictionary(place)
        if found is not None:
            del found[place[1]]
            if not found:
                del self[DHTID.from_bytes(place[0])]

    def _dictionary(self, place: Place) -> DictionaryDHTValue | None:
        found = self.get(DHTID.from_bytes(place[0]))
        return found.value if found is not None else None
