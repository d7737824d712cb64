"""Shards for the trainer: which ones to fetch, and where their files lie.

One shard is fetched at a time, the one that is needed first. Files of the volunteer's own data folder come before the
swarm's. The trainer verifies every file before it is used."""

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
"""Seconds without a piece after which a fetch fails: a piece of 16 MiB over 1 Mbit/s takes so long."""
TRIES = 3
RETRY_S = 10.0
"""Seconds between two attempts: somebody who has the shard may be back by then."""
MOST_WRONG = 3
"""Files with other content after which a shard counts as missing."""


class ShardFetcher(Protocol):
    """The swarm as a source of shards."""

    async def query(self, refs: Sequence[ArtifactRef]) -> None:
        """Ask some peers which of these they hold, in one call."""
        ...

    def holders(self, ref: ArtifactRef) -> Sequence[PeerId]:
        """Return the peers that said that they hold an artifact."""
        ...

    async def fetch(self, ref: ArtifactRef, timeout_s: float) -> Path:
        """Return the file of an artifact, fetched if need be. Raises PeerError when no piece came for so long."""
        ...


class ShardPins(Protocol):
    """The cache's knowledge of what is in use."""

    def holding(self, digest: str) -> AbstractContextManager[Any]:
        """Keep the file of this digest, which may not be here yet, from being evicted."""
        ...

    def has(self, digest: str) -> bool:
        """Return whether a file of this name is here."""
        ...

    def forget(self, digest: str) -> None:
        """Remove a file whose content is wrong. Runs in a thread."""
        ...


class ShardSupply:
    """Implements `ShardSource`. In the end `close` has to be awaited.

    `folder`: the volunteer's own, as `peer data build` writes it."""

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
        """Forget what was asked: a new trainer process asks from here on."""
        self.want((), (), ())
        self._answer = answer

    def want(self, shards: Sequence[str], ask: Sequence[str], wrong: Sequence[str]) -> None:
        """Keep these shards and no others, and answer each of `ask` once."""
        assert all(self._index.shard(digest) for digest in shards), "the trainer reads the same index"
        self._wanted = list(shards)
        self._asked = (self._asked | set(ask)) & set(shards)
        for digest in self._held.keys() - set(shards):
            self._held.pop(digest).close()
        for digest in wrong:
            self._give_up_file(digest)
        if self._looking is not None and self._looked_for != self._first_asked():  # the pieces that came stay
            self._looking.cancel()
            self._looking = None
        if self._asked and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), name="shards")

    def skipped(self, skip: ShardSkip) -> None:
        """Journal a shard that was passed over."""
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
        """Answer what is asked, the shard that is needed first before the next ones."""
        while self._asked:
            digest = self._looked_for = self._first_asked()
            path, reason = await self._find(digest)
            self._asked.discard(digest)
            self._answer(digest, path, reason)

    def _first_asked(self) -> str:
        """Return the digest of the asked shard that is needed first. Empty: none is asked for."""
        return next((digest for digest in self._wanted if digest in self._asked), "")

    async def _find(self, digest: str) -> tuple[Path | None, str]:
        """Return the shard's file, or None and why there is none."""
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
        """Use this file no more: its content is wrong."""
        self._wrong[digest] += 1
        if self._own.pop(digest, None) is None:
            self._unusable.add(digest)
