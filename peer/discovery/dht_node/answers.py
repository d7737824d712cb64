"""Reads and verifies the answers of other DHT nodes in a thread, before the event loop uses them.

Anybody can answer with thousands of entries, and verifying a signature takes time. An answer is therefore cut to
`MOST_TAKEN` entries of each key, those of known peers first. The thread verifies these, and `unseal` caches the
result."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from peer.aio.threads import Offload
from peer.discovery.validator import key_of, unpack
from peer.protocol.messages import PeerId
from peer.signed_record import InvalidRecord, unseal

MOST_TAKEN = 512
"""Most entries of one key that are read from an answer. A bucket of honest peers splits long before it has this
many."""
MOST_BYTES = 2**24
"""Bytes of one key's entries above which none of them is read."""


class AnswerReader:
    """Cuts and verifies answers. `load` and `dump` are hivemind's: bytes to a dictionary of entries, and back."""

    def __init__(
        self,
        load: Callable[[bytes], Any],
        dump: Callable[[Any], bytes],
        first: Callable[[], Iterable[PeerId]],
        offload: Offload,
    ) -> None:
        """`first`: returns the peers whose entries are kept before those of others, the most important first."""
        self._load, self._dump, self._first, self._offload = load, dump, first, offload

    async def read(self, values: list[bytes]) -> list[bytes | None]:
        """Return each of these dictionaries, cut and verified; None for one that is too large.

        Raises what `load` raises for invalid bytes; hivemind treats that as a node that did not answer."""
        peers = list(self._first())

        def work() -> list[bytes | None]:
            first = [key for peer in peers if (key := _key(peer))]
            return [self._cut_and_verify(value, first) for value in values]

        return await self._offload(work)

    def _cut_and_verify(self, value: bytes, first: Sequence[bytes]) -> bytes | None:
        if len(value) > MOST_BYTES:
            return None
        entries = self._load(value)
        there = {subkey: entry.value for subkey, entry in entries.data.items()}
        taken = [subkey for subkey in first if subkey in there][:MOST_TAKEN]
        if len(there) > MOST_TAKEN:
            known = set(taken)
            others = [subkey for subkey in there if subkey not in known]
            taken += random.sample(others, MOST_TAKEN - len(taken))
            for subkey in there.keys() - set(taken):
                del entries[subkey]
            value = self._dump(entries)
        else:
            taken = list(there)
        for subkey in taken:
            with contextlib.suppress(InvalidRecord):  # the gate refuses it later, with the reason
                unseal(unpack(there[subkey]))
        return value


def _key(peer: PeerId) -> bytes:
    try:
        return key_of(peer)
    except ValueError:  # this peer id does not contain its key
        return b""


def reading_answers(get_stub: Callable[..., Any], reader: AnswerReader, found: int) -> Callable[..., Any]:
    """Wrap hivemind's factory of stubs, so that every answer passes the reader. `found`: hivemind's type of a result
    that is a dictionary."""

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return _ReadingStub(get_stub(*args, **kwargs), reader, found)

    return wrapped


class _ReadingStub:
    def __init__(self, stub: Any, reader: AnswerReader, found: int) -> None:
        self._stub, self._reader, self._found = stub, reader, found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    async def rpc_find(self, *args: Any, **kwargs: Any) -> Any:
        answer = await self._stub.rpc_find(*args, **kwargs)
        results = [result for result in answer.results if result.type == self._found]
        read = await self._reader.read([result.value for result in results])
        for result, value in zip(results, read, strict=True):
            if value is None:
                result.Clear()  # as if the node had no entry
            else:
                result.value = value
        return answer
