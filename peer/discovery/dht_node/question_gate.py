"""Limits the requests of other DHT nodes.

The DHT is open: any node that connects to our p2pd may send requests, and hivemind answers each of them in full. A
request of 2 MB can name 90,000 keys, and hivemind packs a key's dictionary again each time it is named. The gate limits
the bytes of a request before it is parsed, its keys before hivemind handles it, and the bytes of the answer. It also
limits the processor time for all callers of one address block, and for all callers together."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from peer.discovery.dht_node.entry_store import CallerBlocks, Handler, key_in_id
from peer.discovery.keys import slot
from peer.protocol.token_bucket import Rate, TokenBuckets

FIND, STORE = ".rpc_find", ".rpc_store"
MAX_KEYS = 16
"""Most keys of a lookup, which is also the most that hivemind's own callers name (`chunk_size`)."""
MAX_STORED = 256
"""Most keys of a store request. A node gives a newcomer all entries that are nearer to it."""
MAX_STORE_BYTES = 2**19
"""Most bytes of a store request: about 900 records, whose signatures take 0.15 s to verify."""
MAX_ASKED_BYTES = 2**14
"""Most bytes of any other request, including the addresses of its sender."""
MAX_ANSWER_BYTES = 2**21
"""Most bytes of an answer. p2pd forwards no larger one."""
LEAST_S = 5e-4
"""Seconds that a request costs besides its handler: p2pd, parsing, a task."""
OF_A_BLOCK = Rate(per_s=0.05, burst=3.0)
"""Seconds of the event loop for all callers of one address block. A lookup takes one or two milliseconds."""
OF_ALL = Rate(per_s=0.2, burst=6.0)
"""Seconds of the event loop for all callers together."""


class QuestionRefused(Exception):
    """A request is not answered. Its caller gets the text through p2pd, and hivemind asks another node."""


class QuestionGate:
    """Limits the requests to one p2pd."""

    def __init__(self, callers: CallerBlocks, now: Callable[[], float], work: Callable[[], float] = time.thread_time):
        """`now`: returns monotonic seconds. `work`: returns the seconds of processor time of this thread."""
        self._callers, self._now, self._work = callers, now, work
        self._blocks: TokenBuckets[str] = TokenBuckets(OF_A_BLOCK)
        self._all: TokenBuckets[None] = TokenBuckets(OF_ALL, 1)
        self.refused = Counter[str]()
        """Number of refused requests, by reason: `size`, `keys`, `place`, `rate` or `answer`."""

    async def check_raw(self, name: str, nbytes: int, peer_id: str) -> None:
        """Check a request before it is parsed, and charge its caller. Raises QuestionRefused."""
        block, now = await self._callers.of(peer_id), self._now()
        if self._blocks.take(block, now, LEAST_S) or self._all.lacks_s(None, now, LEAST_S):
            raise self._refusal("rate", "too many questions from your network; ask another node")
        self._all.charge(None, now, LEAST_S)
        if nbytes > (MAX_STORE_BYTES if name.endswith(STORE) else MAX_ASKED_BYTES):
            raise self._refusal("size", f"a question of {nbytes} bytes")

    def wrap(self, name: str, handler: Handler) -> Handler:
        """Return hivemind's handler of this request, with the gate's checks."""
        most = {FIND: MAX_KEYS, STORE: MAX_STORED}.get(name[name.rfind(".") :], 0)

        async def wrapped(request: Any, context: Any) -> Any:
            peer_id = context.remote_id.to_base58()
            self._check_place(request, peer_id)
            keys = list(request.keys) if most else []
            if len(keys) > most or len(set(keys)) < len(keys):
                raise self._refusal("keys", f"{len(keys)} keys, each once, and at most {most}, may be asked for")
            block = await self._callers.of(peer_id)
            if not most:  # a ping awaits its caller, so its duration is not our processor time
                return await handler(request, context)
            began = self._work()
            try:
                answer = await handler(request, context)
            finally:
                spent, now = self._work() - began, self._now()
                self._blocks.charge(block, now, spent)
                self._all.charge(None, now, spent)
            if answer.ByteSize() > MAX_ANSWER_BYTES:
                raise self._refusal("answer", "the answer is too large; ask for fewer keys")
            return answer

        return wrapped

    def _check_place(self, request: Any, peer_id: str) -> None:
        """Refuse a sender that claims another position in the DHT than that of its key. Otherwise anybody could invent
        positions, and hivemind remembers each of them. A sender that claims none is not remembered."""
        named = request.peer.node_id
        if named and named != slot(key_in_id(peer_id)):
            raise self._refusal("place", "your place in the DHT is not that of your key")

    def _refusal(self, reason: str, text: str) -> QuestionRefused:
        self.refused[reason] += 1
        return QuestionRefused(text)


def bounded(name: str, handler: Callable[[bytes, Any], Awaitable[bytes]], gate: QuestionGate) -> Any:
    """Return p2pd's handler of a request's bytes, with their number checked before they are parsed."""

    async def wrapped(raw: bytes, remote_id: Any) -> bytes:
        await gate.check_raw(name, len(raw), remote_id.to_base58())
        return await handler(raw, remote_id)

    return wrapped
