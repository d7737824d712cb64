"""Calls of the DHT to other nodes: each is dialled first where the address book says, and what it tells is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from peer.discovery.address_book import AddressBook, note_others, note_sender

LEFT_ALONE_S = 120.0
"""A node of the operator that did not answer is asked again after so long. Meanwhile the other nodes are."""


def reaching(get_stub: Callable[..., Any], book: AddressBook, dial: Callable[[Any], Awaitable[None]]) -> Any:
    """Wrap hivemind's maker of stubs. `dial` connects with a peer, or raises what p2pd says."""

    def wrapped(peer: Any) -> Any:
        return _ReachingStub(get_stub(peer), peer, book, dial)

    return wrapped


class _ReachingStub:
    def __init__(self, stub: Any, peer: Any, book: AddressBook, dial: Callable[[Any], Awaitable[None]]) -> None:
        self._stub, self._peer, self._book, self._dial = stub, peer, book, dial

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._stub, name)

        async def reached(*args: Any, **kwargs: Any) -> Any:
            await self._dial(self._peer)
            answer = await call(*args, **kwargs)
            note_sender(self._book, self._peer.to_bytes(), answer)
            note_others(self._book, answer)
            return answer

        return reached


class AskedFirst:
    """The operator's nodes, which are asked before all others as long as they answer. `now`: seconds, of any origin."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._until: dict[str, float] = {}

    def of(self, nodes: Sequence[str]) -> list[str]:
        """Return those that have not failed lately."""
        now = self._now()
        self._until = {node: until for node, until in self._until.items() if until > now}
        return [node for node in nodes if node not in self._until]

    def failed(self, node: str) -> None:
        """One did not answer."""
        self._until[node] = self._now() + LEFT_ALONE_S
