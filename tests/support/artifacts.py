"""Artifacts for tests: their content, and a piece size so small that a few KB have several pieces."""

from __future__ import annotations

import functools
import random

import pytest
from blake3 import blake3

from peer.protocol import messages
from peer.run.files.artifact import ArtifactRef
from peer.state.artifacts import draft, fetcher, server

PIECE = 2**14
_MODULES = (messages, draft, fetcher, server)


@functools.lru_cache(512)
def content(seed: int, nbytes: int) -> bytes:
    """Return bytes that are the same for the same seed."""
    return random.Random(seed).randbytes(nbytes)


def ref_of(data: bytes) -> ArtifactRef:
    return ArtifactRef(digest=blake3(data).hexdigest(), size=len(data))


def shrink_pieces() -> None:
    """Cut artifacts into pieces of `PIECE` bytes for the rest of this process."""
    for module in _MODULES:
        module.PIECE_BYTES = PIECE  # type: ignore[attr-defined]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut artifacts into pieces of `PIECE` bytes."""
    for module in _MODULES:
        monkeypatch.setattr(module, "PIECE_BYTES", PIECE)
