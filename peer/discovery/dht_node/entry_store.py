"""Store of a DHT node, with places shared among runs, keys and the address blocks of callers.

This module, `node.py` and `process.py` are the only ones that know hivemind, private parts included. They are written
against hivemind 1.1.12."""

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
"""Block of the callers whose address p2pd does not tell."""
_ASK_AGAIN_S = 1.0
_caller: ContextVar[tuple[bytes, str] | None] = ContextVar("caller of the DHT", default=None)
"""The public key and the address block of the node that asks us to store; None: we do so ourselves."""


class CallerBlocks:
    """Address blocks of the nodes that p2pd is connected to."""

    def __init__(self, connections: Callable[[], Awaitable[dict[str, list[str]]]], now: Callable[[], float]) -> None:
        """`connections` returns, per peer id, the remote addresses. `now`: seconds, of any origin."""
        self._connections, self._now = connections, now
        self._blocks: dict[str, str] = {}
        self._asked_at = float("-inf")

    async def of(self, peer_id: str) -> str:
        """Return the block of a caller.

        p2pd is asked at most once in `_ASK_AGAIN_S`, for callers that it has lost already never end."""
        if peer_id not in self._blocks and self._now() - self._asked_at >= _ASK_AGAIN_S:
            self._asked_at = self._now()
            try:
                connections = await self._connections()
            except (OSError, TimeoutError, EOFError):
                return _UNKNOWN
            self._blocks = {peer: block_of_address(seen[0]) for peer, seen in connections.items() if seen}
        return self._blocks.get(peer_id, _UNKNOWN)


def noting_callers(handler: Handler, callers: CallerBlocks) -> Handler:
    """Wrap hivemind's handler of requests to store, so that the store knows who asks."""

    async def wrapped(request: Any, context: Any) -> Any:
        peer_id = context.remote_id.to_base58()
        _caller.set((key_in_id(peer_id), await callers.of(peer_id)))  # each request is handled in a task of its own
        return await handler(request, context)

    return wrapped


def key_in_id(peer_id: str) -> bytes:
    """Return the public key in a peer id; empty for a key of another kind than ours."""
    try:
        return public_key_of(peer_id)
    except ValueError:
        return b""


class EntryStore(DHTLocalStorage):  # type: ignore[misc]
    """Entries that passed the gate, as many as `EntryPlaces` gives places."""

    def __init__(self, gate: RecordGate) -> None:
        super().__init__()
        self._gate = gate
        self._places = EntryPlaces(gate.own_run)

    def store(self, key: DHTID, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: DHTID, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Keep an entry that the gate has admitted; return whether it is kept and was not there yet."""
        now, place = self._gate.now(), (key.to_bytes(), bytes(subkey))
        if expiration_time <= max(now, self._until(place)):
            return False  # known, or outdated: hivemind would keep a note of each such attempt until it ends
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
