"""The cache on disk: its limit, its locks, and how it handles damaged and incomplete files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from blake3 import blake3

from peer.errors import BadPayload, CacheTooSmall, HomeUnusable
from peer.protocol.messages import PeerId
from peer.run.files.artifact import ArtifactRef
from peer.state.artifacts import cache as caching
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.draft import ArtifactDraft, ArtifactOffer
from tests.support.artifacts import PIECE, content, ref_of, small_pieces

__all__ = ["small_pieces"]
pytestmark = pytest.mark.usefixtures("small_pieces")

SIZE = 100_000
ROOM = SIZE + 32 * -(-SIZE // PIECE)
"""Bytes of a draft: those of the artifact, and a digest for each piece."""
DONOR = PeerId("donor")


def fill(draft: ArtifactDraft, data: bytes, numbers: Iterator[int] | None = None) -> None:
    start = 0
    wanted = set(range(len(draft.sizes)) if numbers is None else numbers)
    for number, nbytes in enumerate(draft.sizes):
        if number in wanted and number not in draft.held:
            piece = data[start : start + nbytes]
            draft.store(number, ArtifactOffer(DONOR, draft.ref), piece)
            draft.place(number, ArtifactOffer(DONOR, draft.ref), piece)
        start += nbytes


def put(cache: ArtifactCache, data: bytes) -> ArtifactRef:
    ref = ref_of(data)
    draft = cache.draft(ref)
    assert draft is not None
    with contextlib.closing(draft):
        fill(draft, data)
        assert cache.finish(draft) is not None
    return ref


def on_disk(folder: Path) -> int:
    return sum(entry.lstat().st_size for entry in folder.iterdir())


def test_what_is_put_in_is_there_and_is_checked_again_by_the_next_process(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 10 * ROOM)
    ref = put(cache, content(0, SIZE))
    path = cache.path(ref.digest, ref.size)
    assert path is not None
    assert path.read_bytes() == content(0, SIZE)
    assert cache.path(ref.digest, ref.size + 1) is None, "another size is another artifact"
    again = ArtifactCache(tmp_path / "cache", 10 * ROOM)
    assert again.path(ref.digest, ref.size) is None, "nobody has hashed it in this process"
    assert again.check(ref.digest, ref.size) == path
    assert again.path(ref.digest, ref.size) == path


def test_the_limit_holds_after_every_step_of_a_churn(tmp_path: Path) -> None:
    folder, refs = tmp_path / "cache", list[ArtifactRef]()
    cache = ArtifactCache(folder, 5 * ROOM)
    for number in range(20):
        ref = ref_of(content(number, SIZE))
        draft = cache.draft(ref)
        assert draft is not None
        assert on_disk(folder) == min(number, 4) * SIZE + ROOM, "a draft has its full length at once"
        with contextlib.closing(draft):
            for piece in range(len(draft.sizes)):
                fill(draft, content(number, SIZE), iter([piece]))
                assert on_disk(folder) <= 5 * ROOM
            assert cache.finish(draft) is not None
        assert on_disk(folder) <= 5 * ROOM
        refs.append(ref)
        assert [cache.has(one.digest) for one in refs[-5:]] == [True] * len(refs[-5:])
    assert not any(cache.has(ref.digest) for ref in refs[:15])


def test_the_one_not_used_for_longest_goes_and_one_in_use_stays(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 3 * ROOM)
    refs = [put(cache, content(number, SIZE)) for number in range(3)]
    with cache.holding(refs[0].digest):
        put(cache, content(3, SIZE))
        assert [cache.has(ref.digest) for ref in refs] == [True, False, True]
        put(cache, content(4, SIZE))
        put(cache, content(5, SIZE))
        assert cache.has(refs[0].digest)
    put(cache, content(6, SIZE))
    assert cache.has(refs[0].digest), "its use ended last"
    assert not cache.has(ref_of(content(4, SIZE)).digest)


def test_one_larger_than_the_cache_is_refused_with_the_way_out(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", SIZE)
    with pytest.raises(CacheTooSmall, match=r"100\.0 kB is larger") as caught:
        cache.draft(ref_of(content(0, SIZE)))
    assert f"--cache-disk, at least {ROOM}" in caught.value.fix
    with pytest.raises(CacheTooSmall):
        cache.draft(ArtifactRef(digest="0" * 64, size=2**40))
    assert on_disk(tmp_path / "cache") == 0


def test_where_all_is_in_use_nothing_is_deleted(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 2 * ROOM)
    refs = [put(cache, content(number, SIZE)) for number in range(2)]
    with cache.holding(refs[0].digest), cache.holding(refs[1].digest):
        with pytest.raises(CacheTooSmall, match="in use") as caught:
            cache.draft(ref_of(content(2, SIZE)))
        assert "--cache-disk" in caught.value.fix
        assert all(cache.check(ref.digest, ref.size) for ref in refs)
        assert cache.nbytes <= 2 * ROOM


def test_a_lower_limit_holds_from_the_next_start(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 5 * ROOM)
    refs = [put(cache, content(number, SIZE)) for number in range(5)]
    cache = ArtifactCache(tmp_path / "cache", 2 * ROOM)
    assert cache.nbytes <= 2 * ROOM
    assert [cache.has(ref.digest) for ref in refs] == [False, False, False, True, True]


@pytest.mark.parametrize("damage", ["flipped", "short", "long", "link", "empty"])
def test_a_damaged_file_is_noticed_and_deleted(tmp_path: Path, damage: str) -> None:
    ref = put(ArtifactCache(tmp_path / "cache", 5 * ROOM), content(0, SIZE))
    path, secret = tmp_path / "cache" / ref.digest, tmp_path / "secret"
    data = path.read_bytes()
    secret.write_bytes(data)
    match damage:
        case "flipped":
            path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
        case "short":
            path.write_bytes(data[:-1])
        case "long":
            path.write_bytes(data + b"x")
        case "empty":
            path.write_bytes(b"")
        case "link":
            path.unlink()
            path.symlink_to(secret)
    cache = ArtifactCache(tmp_path / "cache", 5 * ROOM)
    assert cache.check(ref.digest, ref.size) is None
    assert secret.read_bytes() == data, "a link is not followed"
    put(cache, data)
    assert cache.check(ref.digest, ref.size) is not None


def test_a_file_that_changes_after_its_check_is_checked_again(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 5 * ROOM)
    ref = put(cache, content(0, SIZE))
    path = cache.path(ref.digest, ref.size)
    assert path is not None
    facts = path.stat()
    path.write_bytes(content(1, SIZE))
    os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert cache.path(ref.digest, ref.size) is None
    assert cache.check(ref.digest, ref.size) is None
    assert not path.exists()


def test_another_size_in_a_manifest_deletes_no_right_file(tmp_path: Path) -> None:
    ref = put(ArtifactCache(tmp_path / "cache", 5 * ROOM), content(0, SIZE))
    cache = ArtifactCache(tmp_path / "cache", 5 * ROOM)
    assert cache.check(ref.digest, 7) is None
    assert cache.check(ref.digest, ref.size) is not None


def test_nothing_that_is_not_ours_is_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    cache = ArtifactCache(folder, 2 * ROOM)
    own = {"photo.jpg": b"x" * 3 * SIZE, "A" * 64: b"upper", "0" * 63: b"short", f"{'0' * 64}.parts": b"p"}
    for name, data in own.items():
        (folder / name).write_bytes(data)
    (folder / ("1" * 64)).mkdir()
    (folder / ("1" * 64) / "inside").write_bytes(b"i")
    for number in range(6):
        put(cache, content(number, SIZE))
    assert {name: (folder / name).read_bytes() for name in own} == own
    assert (folder / ("1" * 64) / "inside").exists()


# -- drafts ----------------------------------------------------------------------------------------------------------


def test_pieces_that_are_here_are_kept_by_the_next_process(tmp_path: Path) -> None:
    data = content(0, SIZE)
    cache = ArtifactCache(tmp_path / "cache", 5 * ROOM)
    draft = cache.draft(ref_of(data))
    assert draft is not None
    fill(draft, data, iter([0, 2, 3]))
    draft.close()
    draft = ArtifactCache(tmp_path / "cache", 5 * ROOM).draft(ref_of(data))
    assert draft is not None
    assert draft.held == {0, 2, 3}
    assert {origin.donor for origin in draft.origins.values()} == {None}
    fill(draft, data)
    path = cache.finish(draft)
    draft.close()
    assert path is not None
    assert path.read_bytes() == data


def test_torn_and_foreign_drafts_give_no_wrong_piece(tmp_path: Path) -> None:
    data = content(0, SIZE)
    cache, ref = ArtifactCache(tmp_path / "cache", 5 * ROOM), ref_of(content(0, SIZE))
    draft = cache.draft(ref)
    assert draft is not None
    fill(draft, data)
    draft.close()
    part = tmp_path / "cache" / f"{ref.digest}.part"
    raw = bytearray(part.read_bytes())
    raw[5] ^= 1
    part.write_bytes(raw)
    draft = cache.draft(ref)
    assert draft is not None
    assert draft.held == set(range(1, len(draft.sizes)))
    draft.close()
    part.write_bytes(raw[:-1])
    draft = cache.draft(ref)
    assert draft is not None
    assert draft.held == set()
    assert part.stat().st_size == ROOM
    draft.close()


def test_wrong_bytes_never_get_the_name(tmp_path: Path) -> None:
    cache, ref = ArtifactCache(tmp_path / "cache", 5 * ROOM), ref_of(content(0, SIZE))
    draft = cache.draft(ref)
    assert draft is not None
    fill(draft, content(1, SIZE))
    assert draft.complete
    assert cache.finish(draft) is None
    assert not cache.has(ref.digest)
    draft.clear()
    assert (draft.held, draft.origins, draft.done) == (set(), {}, 0)
    draft.close()
    again = cache.draft(ref)
    assert again is not None
    assert again.held == set(), "the pieces were dropped on disk too"
    again.close()


def test_a_piece_of_another_length_is_refused_and_a_second_one_is_not_taken(tmp_path: Path) -> None:
    cache, data = ArtifactCache(tmp_path / "cache", 5 * ROOM), content(0, SIZE)
    draft = cache.draft(ref_of(data))
    assert draft is not None
    with pytest.raises(BadPayload, match="instead of"):
        draft.store(0, ArtifactOffer(DONOR, draft.ref), data[:5])
    fill(draft, data)
    draft.store(0, ArtifactOffer(PeerId("late"), draft.ref), bytes(draft.sizes[0]))
    assert cache.finish(draft) is not None
    draft.close()


def test_a_thread_that_comes_late_writes_nothing_into_a_closed_draft(tmp_path: Path) -> None:
    cache, data = ArtifactCache(tmp_path / "cache", 5 * ROOM), content(0, SIZE)
    draft = cache.draft(ref_of(data))
    assert draft is not None
    draft.close()
    with (tmp_path / "other").open("w+b") as other:  # it may get the descriptor number of the closed draft
        draft.store(0, ArtifactOffer(DONOR, draft.ref), data[: draft.sizes[0]])
        other.seek(0)
        assert other.read() == b""
    assert draft.origins == {}


def test_an_abandoned_draft_makes_room_and_one_being_fetched_does_not(tmp_path: Path) -> None:
    cache = ArtifactCache(tmp_path / "cache", 2 * ROOM)
    abandoned, busy = cache.draft(ref_of(content(0, SIZE))), cache.draft(ref_of(content(1, SIZE)))
    assert abandoned is not None
    assert busy is not None
    assert cache.draft(ref_of(content(1, SIZE))) is None, "it is being fetched"
    with pytest.raises(CacheTooSmall):
        cache.draft(ref_of(content(2, SIZE)))
    abandoned.close()
    put(cache, content(2, SIZE))
    assert cache.nbytes <= 2 * ROOM
    fill(busy, content(1, SIZE))
    assert cache.finish(busy) is not None
    busy.close()
    assert cache.draft(ref_of(content(1, SIZE))) is None, "it is complete"


# -- two processes ---------------------------------------------------------------------------------------------------

OTHER = """
import sys
from pathlib import Path
from tests.support import artifacts
from tests.support.artifacts import content, ref_of
artifacts.shrink_pieces()
from peer.state.artifacts.cache import ArtifactCache
from tests.state.artifacts.test_artifact_cache import ROOM, SIZE, fill, put
cache = ArtifactCache(Path(sys.argv[1]), int(sys.argv[2]) * ROOM)
def said(what):
    print(what, flush=True)
    sys.stdin.readline()
"""
HOLDS = """
with cache.holding(put(cache, content(0, SIZE)).digest):
    said("holding")
said("free")
"""
FETCHES = """
draft = cache.draft(ref_of(content(0, SIZE)))
fill(draft, content(0, SIZE), iter([0, 1]))
said("half")
fill(draft, content(0, SIZE))
cache.finish(draft)
draft.close()
said("done")
"""
CHURNS = """
for number in range(100, 140):
    put(cache, content(number, SIZE))
said("done")
"""


@contextlib.contextmanager
def other_process(work: str, folder: Path, rooms: int) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", OTHER + work, str(folder), str(rooms)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


@pytest.mark.processes
def test_what_another_process_uses_stays_until_it_is_free_or_dead(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    for killed in (False, True):
        with other_process(HOLDS, folder, 2) as process:
            assert heard(process) == "holding"
            cache = ArtifactCache(folder, 2 * ROOM)
            for number in range(1, 4):
                put(cache, content(number, SIZE))
                assert cache.has(ref_of(content(0, SIZE)).digest)
                assert on_disk(folder) <= 2 * ROOM
            if killed:
                process.kill()
                process.wait()
            else:
                go_on(process)
                assert heard(process) == "free"
            put(cache, content(4, SIZE))
            put(cache, content(5, SIZE))
            assert not cache.has(ref_of(content(0, SIZE)).digest)


@pytest.mark.processes
def test_a_fetch_that_is_killed_in_the_middle_is_taken_over(tmp_path: Path) -> None:
    folder, ref = tmp_path / "cache", ref_of(content(0, SIZE))
    with other_process(FETCHES, folder, 3) as process:
        assert heard(process) == "half"
        cache = ArtifactCache(folder, 3 * ROOM)
        assert cache.draft(ref) is None, "the other process is fetching it"
        process.kill()
        process.wait()
        draft = cache.draft(ref)
        assert draft is not None
        assert draft.held == {0, 1}
        fill(draft, content(0, SIZE))
        assert cache.finish(draft) is not None
        draft.close()


@pytest.mark.processes
def test_one_that_another_process_completes_is_used_here(tmp_path: Path) -> None:
    folder, ref = tmp_path / "cache", ref_of(content(0, SIZE))
    with other_process(FETCHES, folder, 3) as process:
        assert heard(process) == "half"
        cache = ArtifactCache(folder, 3 * ROOM)
        assert cache.check(ref.digest, ref.size) is None
        go_on(process)
        assert heard(process) == "done"
        assert cache.check(ref.digest, ref.size) is not None


@pytest.mark.processes
def test_two_processes_that_churn_keep_one_limit(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with other_process(CHURNS, folder, 6) as process:
        cache, kept = ArtifactCache(folder, 6 * ROOM), content(999, SIZE)
        with cache.holding(ref_of(kept).digest):
            put(cache, kept)
            for number in range(200, 240):
                put(cache, content(number, SIZE))
                assert cache.nbytes <= 6 * ROOM
                assert cache.check(*_named(kept)) is not None
        assert heard(process) == "done"
        assert cache.nbytes <= 6 * ROOM


def _named(data: bytes) -> tuple[str, int]:
    return blake3(data).hexdigest(), len(data)


def test_a_cache_that_is_held_for_ever_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caching, "BUSY_S", 0.05)
    cache = ArtifactCache(tmp_path / "cache", ROOM)
    with cache._locked(), pytest.raises(HomeUnusable, match="another process"):
        put(cache, content(0, SIZE))


def test_a_folder_that_cannot_be_made_is_an_error_of_the_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "cache"):
        with pytest.raises(HomeUnusable):
            ArtifactCache(folder, ROOM)
