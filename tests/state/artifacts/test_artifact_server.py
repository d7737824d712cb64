"""Only files with a verified digest are served, and links are not followed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from blake3 import blake3

from peer.node.handler import RequestHandler
from peer.protocol.messages import artifact_name
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.server import ArtifactServer
from tests.support.artifacts import PIECE, content, small_pieces

__all__ = ["small_pieces"]
pytestmark = pytest.mark.usefixtures("small_pieces")

DATA = content(0, 2 * PIECE + 5)
DIGEST = blake3(DATA).digest()
NAME = artifact_name(DIGEST)


def shelf(tmp_path: Path, **sources: Path) -> ArtifactServer:
    cache = ArtifactCache(tmp_path / "cache", 10**6)
    return ArtifactServer(cache, {digest.removeprefix("d"): path for digest, path in sources.items()})


def source(tmp_path: Path, data: bytes = DATA) -> Path:
    path = tmp_path / "train-00000.tokens"
    path.write_bytes(data)
    return path


def test_an_operators_file_is_given_in_pieces(tmp_path: Path) -> None:
    given = shelf(tmp_path, **{f"d{DIGEST.hex()}": source(tmp_path)})
    assert given.on_piece(NAME, 0) is None, "not checked yet"
    assert given.on_artifacts([DIGEST, b"x" * 32, DIGEST]) == [True, False, True]
    pieces = [given.on_piece(NAME, number) for number in range(3)]
    assert b"".join(piece for piece in pieces if piece is not None) == DATA
    for number in (3, 2**31, 2**63, -1):
        assert given.on_piece(NAME, number) is None


@pytest.mark.parametrize(
    "name", ["artifact:", "artifact:..", NAME[:-1], NAME + "0", NAME.upper(), f"artifact:{'g' * 64}", NAME + "\n"]
)
def test_a_name_that_is_none_gives_nothing(tmp_path: Path, name: str) -> None:
    given = shelf(tmp_path, **{f"d{DIGEST.hex()}": source(tmp_path)})
    assert given.on_artifacts([DIGEST]) == [True]
    assert given.on_piece(name, 0) is None


def test_what_is_in_the_cache_is_given(tmp_path: Path) -> None:
    given = shelf(tmp_path)
    (tmp_path / "cache" / DIGEST.hex()).write_bytes(DATA)
    assert given.on_artifacts([DIGEST]) == [True]
    assert given.on_piece(NAME, 2) == DATA[2 * PIECE :]


def test_other_bytes_than_named_are_never_given(tmp_path: Path) -> None:
    path = source(tmp_path, DATA[:-1] + b"?")
    given = shelf(tmp_path, **{f"d{DIGEST.hex()}": path})
    (tmp_path / "cache" / DIGEST.hex()).write_bytes(DATA + b"?")
    assert given.on_artifacts([DIGEST]) == [False]
    assert given.on_piece(NAME, 0) is None
    path.write_bytes(DATA)
    assert given.on_artifacts([DIGEST]) == [True], "it was changed, so it is checked again"


@pytest.mark.parametrize("change", ["content", "shorter", "link", "gone", "pipe"])
def test_a_file_that_changed_is_not_given_unchecked(tmp_path: Path, change: str) -> None:
    path = source(tmp_path)
    given = shelf(tmp_path, **{f"d{DIGEST.hex()}": path})
    assert given.on_artifacts([DIGEST]) == [True]
    facts, secret = path.stat(), tmp_path / "secret"
    secret.write_bytes(DATA)
    match change:
        case "content":
            path.write_bytes(content(1, len(DATA)))
            os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
        case "shorter":
            path.write_bytes(DATA[:-1])
        case "link":
            path.unlink()
            path.symlink_to(secret)
        case "gone":
            path.unlink()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
    assert given.on_piece(NAME, 0) is None
    assert given.on_artifacts([DIGEST]) == [False]


def test_a_check_runs_once_and_elsewhere(tmp_path: Path) -> None:
    begun: list[tuple[Callable[[], bool], Future[bool]]] = []

    def start(work: Callable[[], bool]) -> Future[bool]:
        begun.append((work, Future()))
        return begun[-1][1]

    cache = ArtifactCache(tmp_path / "cache", 10**6)
    given = ArtifactServer(cache, {DIGEST.hex(): source(tmp_path)}, start)
    for _ in range(5):
        assert given.on_artifacts([DIGEST]) == [False]
    assert len(begun) == 1
    work, future = begun[0]
    future.set_result(work())
    assert given.on_artifacts([DIGEST]) == [True]
    assert len(begun) == 1


def test_a_file_known_to_be_wrong_is_not_hashed_again(tmp_path: Path) -> None:
    checks = 0

    def start(work: Callable[[], bool]) -> Future[bool]:
        nonlocal checks
        checks += 1
        future: Future[bool] = Future()
        future.set_result(work())
        return future

    cache = ArtifactCache(tmp_path / "cache", 10**6)
    given = ArtifactServer(cache, {DIGEST.hex(): source(tmp_path, b"other")}, start)
    for _ in range(5):
        assert given.on_artifacts([DIGEST]) == [False]
    assert checks == 1


def test_a_peer_without_a_shelf_holds_nothing(tmp_path: Path) -> None:
    handler = RequestHandler()
    assert handler.on_artifacts([DIGEST, DIGEST]) == [False, False]
    assert handler.on_piece(NAME, 0) is None
    handler.register(artifacts=shelf(tmp_path, **{f"d{DIGEST.hex()}": source(tmp_path)}))
    assert handler.on_artifacts([DIGEST]) == [True]
    assert handler.on_piece(NAME, 0) == DATA[:PIECE]
    assert handler.on_piece("snapshot", 0) is None, "a joiner gives files, and no state"
