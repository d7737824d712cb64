"""Serves artifacts to other peers: the files of the cache, and on an operator's node the run's source files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from peer.protocol.messages import ARTIFACT_PREFIX, PIECE_BYTES
from peer.state.artifacts.cache import ArtifactCache

_NAME = re.compile(f"{ARTIFACT_PREFIX}([0-9a-f]{{64}})")

StartCheck = Callable[[Callable[[], bool]], "Future[bool]"]
"""Starts the given check in a thread of low priority."""


def check_now(work: Callable[[], bool]) -> Future[bool]:
    """Run the check in the calling thread. Used for small files and in virtual time."""
    future: Future[bool] = Future()
    future.set_result(work())
    return future


class ArtifactServer:
    """Gives pieces of files whose digest this process has checked.

    `sources`: digest -> file of the operator outside the cache. `start`: runs checks. A file is checked when a peer
    first requests it, and served once the check is done. A file that changes is checked again. Links are not
    followed."""

    def __init__(self, cache: ArtifactCache, sources: Mapping[str, Path], start: StartCheck = check_now) -> None:
        self._cache = cache
        self._sources = sources
        self._start = start
        self._checking: dict[Path, Future[bool]] = {}

    def on_artifacts(self, digests: Sequence[bytes]) -> list[bool]:
        """Implement `peer.ports.handler.Handler.on_artifacts`: return which artifacts can be served now."""
        return [self._ready(digest.hex()) for digest in digests]

    def on_piece(self, name: str, piece: int) -> memoryview | None:
        """Implement `peer.ports.handler.Handler.on_piece`. Reads at most one piece from the disk."""
        if (match := _NAME.fullmatch(name)) is None:
            return None
        for path in self._files(match[1]):
            data = self._cache.verified.read(path, match[1], piece * PIECE_BYTES, PIECE_BYTES)
            if data is not None:
                return memoryview(data)
        return None

    def _files(self, digest: str) -> Iterator[Path]:
        if self._cache.has(digest):
            yield self._cache.file(digest)
        if (source := self._sources.get(digest)) is not None:
            yield source

    def _ready(self, digest: str) -> bool:
        """Return whether an artifact can be served now. Starts the check of a file that was not checked yet."""
        return any(self._checked(path, digest) for path in self._files(digest))

    def _checked(self, path: Path, digest: str) -> bool:
        verified = self._cache.verified
        if verified.nbytes(path, digest) is not None:
            return True
        if verified.is_wrong(path, digest):
            return False
        if path not in self._checking:
            self._checking[path] = self._start(partial(verified.verify, path, digest))
        if not self._checking[path].done():
            return False
        return self._checking.pop(path).result()
