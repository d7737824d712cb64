"""Fetches token shards for the trainer, and sends it the paths of their files.

One shard is fetched at a time, the one that is needed first. Files in the volunteer's own data folder are preferred to
the swarm's. The trainer verifies every file before it uses it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from peer.errors import PeerError
from peer.observe import events
from peer.ports.trainer import ShardAnswer, ShardSkip
from peer.protocol.messages import PeerId
from peer.run.files.artifact import ArtifactRef
from peer.run.files.token_folder import shard_files
from peer.run.files.token_index import TokenIndex, shard_bytes

FETCH_S = 150.0
"""Seconds without a new piece after which a fetch fails. A piece of 16 MiB takes this long at 1 Mbit/s."""
TRIES = 3
RETRY_S = 10.0
"""Seconds between two attempts, in which a peer that has the shard may return."""
MOST_WRONG = 3
"""Number of files with wrong content after which a shard counts as missing."""


class ShardFetcher(Protocol):
    """The swarm as a source of shards."""

    async def query(self, refs: Sequence[ArtifactRef]) -> None:
        """Ask some peers, in one call each, which of these artifacts they hold."""
        ...

    def holders(self, ref: ArtifactRef) -> Sequence[PeerId]:
        """Return the peers that reported to hold an artifact."""
        ...

    async def fetch(self, ref: ArtifactRef, timeout_s: float) -> Path:
        """Return the file of an artifact. Fetches it if needed. Raises PeerError when no piece arrived for `timeout_s`
        seconds."""
        ...


class ShardPins(Protocol):
    """Protects files of the cache from eviction while they are in use."""

    def holding(self, digest: str) -> AbstractContextManager[Any]:
        """Protect the file of this digest from eviction within the context. It may not exist yet."""
        ...

    def has(self, digest: str) -> bool:
        """Return whether the file of this digest is in the cache."""
        ...

    def forget(self, digest: str) -> None:
        """Remove a file with wrong content. Blocks, so it runs in a thread."""
        ...


class ShardSupply:
    """Answers the trainer's requests for shards. Implements `ShardSource`. `close` must be awaited at the end.

    `folder`: the volunteer's own data folder, as `peer data build` writes it."""

    def __init__(
        self,
        index: TokenIndex,
        fetcher: ShardFetcher,
        pins: ShardPins,
        emit: Callable[[events.Event], None],
        folder: Path | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self._index = index
        self._own = shard_files(index, folder) if folder is not None else {}
        self._fetcher = fetcher
        self._pins = pins
        self._emit = emit
        self._retry_s = retry_s
        self._answer: ShardAnswer = lambda digest, path, reason: None
        self._wanted: list[str] = []
        self._asked: set[str] = set()
        self._held: dict[str, contextlib.ExitStack] = {}
        self._wrong: Counter[str] = Counter()
        self._unusable: set[str] = set()
        """Digests of files in the cache whose content is wrong."""
        self._looking: asyncio.Task[None] | None = None
        self._looked_for = ""
        """Digest of the shard that is being fetched."""

    def begin(self, answer: ShardAnswer) -> None:
        """Drop all requests, since a new trainer process begins. `answer`: receives the answers from now on."""
        self.want((), (), ())
        self._answer = answer

    def want(self, shards: Sequence[str], ask: Sequence[str], wrong: Sequence[str]) -> None:
        """Keep the files of these shards and no others, and answer each of `ask` once. `wrong`: shards whose file has
        wrong content. All are digests."""
        assert all(self._index.shard(digest) for digest in shards), "the trainer reads the same index"
        self._wanted = list(shards)
        self._asked = (self._asked | set(ask)) & set(shards)
        for digest in self._held.keys() - set(shards):
            self._held.pop(digest).close()
        for digest in wrong:
            self._give_up_file(digest)
        if self._looking is not None and self._looked_for != self._first_asked():  # received pieces are kept
            self._looking.cancel()
            self._looking = None
        if self._asked and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), name="shards")

    def skipped(self, skip: ShardSkip) -> None:
        """Journal a shard that the trainer skipped."""
        self._emit(
            events.ShardSkipped(
                epoch=skip.epoch, place=skip.place, shard=skip.shard, digest=skip.digest, reason=skip.reason
            )
        )

    async def close(self) -> None:
        """Stop fetching, and release all files."""
        looking = self._looking
        self.want((), (), ())
        if looking is not None:
            await asyncio.wait({looking})

    async def _look(self) -> None:
        """Answer the requests one by one, in the order in which the trainer needs the shards."""
        while self._asked:
            digest = self._looked_for = self._first_asked()
            path, reason = await self._find(digest)
            self._asked.discard(digest)
            self._answer(digest, path, reason)

    def _first_asked(self) -> str:
        """Return the digest of the requested shard that is needed first. Empty: there is no request."""
        return next((digest for digest in self._wanted if digest in self._asked), "")

    async def _find(self, digest: str) -> tuple[Path | None, str]:
        """Return the shard's file, or None and the reason."""
        if self._wrong[digest] >= MOST_WRONG:
            return None, f"its content was wrong {MOST_WRONG} times"
        if digest in self._own:
            return self._own[digest], ""
        reason = ""
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(self._retry_s)
            try:
                return await self._fetch(digest), ""
            except PeerError as error:
                reason = error.found
        if digest in self._held:
            self._held.pop(digest).close()
        return None, reason

    async def _fetch(self, digest: str) -> Path:
        """Return the shard's file from the cache or the swarm. Raises PeerError."""
        if digest in self._unusable:
            await asyncio.to_thread(self._pins.forget, digest)
            self._unusable.discard(digest)
        if digest not in self._held:
            stack = contextlib.ExitStack()
            stack.enter_context(self._pins.holding(digest))
            self._held[digest] = stack
        ref = self._ref(digest)
        if not self._pins.has(digest) and not self._fetcher.holders(ref):
            await self._fetcher.query([self._ref(one) for one in self._wanted if one in self._asked])
            if not self._fetcher.holders(ref):
                raise PeerError(
                    "no peer that was asked has it", "Wait for one that has, or give the data with --data DIR."
                )
        return await self._fetcher.fetch(ref, FETCH_S)

    def _ref(self, digest: str) -> ArtifactRef:
        entry = self._index.shard(digest)
        assert entry is not None, "the trainer reads the same index"
        return ArtifactRef(digest=digest, size=shard_bytes(self._index, entry))

    def _give_up_file(self, digest: str) -> None:
        """Mark the shard's file as unusable, because its content is wrong."""
        self._wrong[digest] += 1
        if self._own.pop(digest, None) is None:
            self._unusable.add(digest)
