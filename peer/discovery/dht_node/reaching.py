"""Wraps calls of the DHT to other nodes: the node is first dialled at the addresses in the address book, and the
addresses in its answer are kept there."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from peer.discovery.address_book import MAX_NODES, AddressBook, note_others, note_sender

LEFT_ALONE_S = 120.0
"""Seconds for which a node of the operator that did not answer is not asked; other nodes are asked instead."""
CONNECTED_S = 10.0
"""A node that answered within this many seconds is called without being dialled first, since p2pd keeps new connections
longer than that."""


def reaching(
    get_stub: Callable[..., Any],
    book: AddressBook,
    dial: Callable[[Any], Awaitable[None]],
    now: Callable[[], float] = time.monotonic,
) -> Any:
    """Wrap hivemind's factory of stubs. `dial`: connects to a peer, or raises p2pd's error. `now`: returns monotonic
    seconds."""
    answering = _Answering(now)

    def wrapped(peer: Any) -> Any:
        return _ReachingStub(get_stub(peer), peer, book, dial, answering)

    return wrapped


class _Answering:
    """The nodes that answered lately, by peer id, with the time."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at: OrderedDict[bytes, float] = OrderedDict()

    def lately(self, peer: bytes) -> bool:
        return self._now() - self._at.get(peer, -math.inf) < CONNECTED_S

    def note(self, peer: bytes) -> None:
        self.forget(peer)
        self._at[peer] = self._now()
        if len(self._at) > MAX_NODES:
            self._at.popitem(last=False)

    def forget(self, peer: bytes) -> None:
        self._at.pop(peer, None)


class _ReachingStub:
    def __init__(
        self, stub: Any, peer: Any, book: AddressBook, dial: Callable[[Any], Awaitable[None]], answering: _Answering
    ) -> None:
        self._stub, self._peer, self._book, self._dial, self._answering = stub, peer, book, dial, answering

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stub, name)

        async def reached(*args: Any, **kwargs: Any) -> Any:
            peer = self._peer.to_bytes()
            if not self._answering.lately(peer):
                await self._dial(self._peer)
            self._answering.forget(peer)  # until it has answered again
            answer = await call(*args, **kwargs)
            self._answering.note(peer)
            note_sender(self._book, peer, answer)
            note_others(self._book, answer)
            return answer

        return reached


class AskedFirst:
    """The operator's nodes, which are asked before all others while they answer. `now`: returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def of(self, nodes: Sequence[str]) -> list[str]:
        """Return the nodes that have not failed lately."""
        now = self._now()
        self._until = {node: until for node, until in self._until.items() if until > now}
        return [node for node in nodes if node not in self._until]

    def failed(self, node: str) -> None:
        """Record that a node did not answer."""
        self._until[node] = self._now() + LEFT_ALONE_S
