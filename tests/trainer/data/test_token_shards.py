"""Shards in files are requested from the daemon, verified and mapped. Missing ones are skipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from peer.errors import DataError
from peer.run.files.token_index import ShardEntry, ShardTable, TokenDtype, TokenIndex, format_index
from peer.trainer.batches import BatchStream
from peer.trainer.data.tokens import WAIT_S, TokenShards, read_index


def built(folder: Path, shards: int = 4, dtype: TokenDtype = "uint16", tokens: int = 200) -> TokenIndex:
    """Make a folder like that of `peer data build`."""
    vocab = 1000 if dtype == "uint16" else 2**17
    numbers = np.random.default_rng(7)
    entries = {}
    for part, count in (("train", shards), ("holdout", 1)):
        made = []
        for number in range(count):
            raw = numbers.integers(0, vocab, tokens).astype(f"<u{np.dtype(dtype).itemsize}").tobytes()
            (folder / f"{part}-{number:05}.tokens").write_bytes(raw)
            made.append(ShardEntry(blake3(raw).hexdigest(), tokens, 1, 3 * tokens))
        entries[part] = ShardTable(made)
    index = TokenIndex(dtype, vocab, 0, "0" * 64, entries["train"], entries["holdout"])
    (folder / "index.json").write_bytes(format_index(index))
    return index


class Daemon:
    """Plays the daemon: records the trainer's requests, and answers them with files of a folder."""

    def __init__(self, folder: Path, index: TokenIndex) -> None:
        self.said: list[dict[str, Any]] = []
        self.now = 1000.0
        self.files = {entry.digest: folder / f"train-{n:05}.tokens" for n, entry in enumerate(index.train)}
        self.files[index.holdout[0].digest] = folder / "holdout-00000.tokens"
        self.shards = TokenShards(index, "index digest", self.said.append, lambda: self.now)

    def answer(self, *without: str) -> None:
        """Answer all open requests. `without`: digests of unavailable shards."""
        asked = [digest for message in self.said for digest in message.get("ask", ())]
        self.said.clear()
        for digest in asked:
            path = None if digest in without else str(self.files[digest])
            self.shards.receive_shard(digest, path, "" if path else "nobody has it")


@pytest.fixture
def index(tmp_path: Path) -> TokenIndex:
    return built(tmp_path)


def stream_of(shards: TokenShards, batch: int = 3) -> BatchStream:
    return BatchStream(shards, seed=1, peer_id="a", context=16, batch=batch)


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_windows_keep_the_type_of_the_index_and_come_once_an_epoch(tmp_path: Path, dtype: TokenDtype) -> None:
    index = built(tmp_path, dtype=dtype)
    daemon = Daemon(tmp_path, index)
    stream, seen = stream_of(daemon.shards), list[tuple[int, ...]]()
    while stream.cursor.epoch == 0:
        while not stream.ready():
            daemon.answer()
        windows = stream.next().windows
        assert windows.dtype == np.dtype(dtype)
        seen += [tuple(window) for window in windows.tolist()]
    assert len(seen) == len(set(seen)) == 4 * 12


def test_two_shards_ahead_are_asked_for_and_the_hold_out_first(tmp_path: Path, index: TokenIndex) -> None:
    daemon = Daemon(tmp_path, index)
    stream = stream_of(daemon.shards)
    assert not stream.ready()
    assert len(daemon.said) == 1
    message = daemon.said[0]
    assert message["ask"] == message["shards"]
    assert message["shards"][0] == index.holdout[0].digest
    assert len(message["shards"]) == 1 + 3
    assert daemon.shards.waiting.startswith("waiting for shard ")
    daemon.answer()
    assert stream.ready()
    assert daemon.shards.holdout is not None
    stream.next()
    assert daemon.shards.waiting == ""
    assert daemon.said == [], "nothing has changed"


def test_a_shard_with_another_content_is_refused_and_asked_for_again(tmp_path: Path, index: TokenIndex) -> None:
    daemon = Daemon(tmp_path, index)
    stream = stream_of(daemon.shards)
    stream.ready()
    first = daemon.said[0]["shards"][1]
    daemon.said.clear()
    good = daemon.files[first].read_bytes()
    (tmp_path / "other").write_bytes(b"\1" + good[1:])
    (tmp_path / "short").write_bytes(good[:-2])
    for wrong in ("other", "short", "absent"):
        daemon.shards.receive_shard(first, str(tmp_path / wrong), "")
        assert daemon.said.pop()["wrong"] == [first]
        assert not stream.ready()
    daemon.shards.receive_shard(first, str(daemon.files[first]), "")
    assert stream.ready()


def test_a_token_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    raw = np.full(200, 1000, "<u2").tobytes()
    index = built(tmp_path)
    digest = blake3(raw).hexdigest()
    index = TokenIndex("uint16", 1000, 0, "0" * 64, ShardTable([ShardEntry(digest, 200, 1, 600)]), index.holdout)
    daemon = Daemon(tmp_path, index)
    (tmp_path / "beyond").write_bytes(raw)
    daemon.shards.request([0])
    daemon.shards.receive_shard(digest, str(tmp_path / "beyond"), "")
    assert daemon.said[-1]["wrong"] == [digest]


def test_a_mapped_shard_outlives_its_name(tmp_path: Path, index: TokenIndex) -> None:
    daemon = Daemon(tmp_path, index)
    stream, twin = stream_of(daemon.shards), stream_of(Daemon(tmp_path, index).shards)
    stream.ready()
    daemon.answer()
    twin_daemon = Daemon(tmp_path, index)
    twin = stream_of(twin_daemon.shards)
    twin.ready()
    twin_daemon.answer()
    for path in tmp_path.glob("*.tokens"):
        path.unlink()
    for _ in range(4):
        assert np.array_equal(stream.next().windows, twin.next().windows)


def test_a_shard_that_nobody_has_is_skipped_said_and_asked_for_in_the_next_epoch(
    tmp_path: Path, index: TokenIndex
) -> None:
    daemon = Daemon(tmp_path, index)
    gone, skipped, asked = index.train[2].digest, list[dict[str, Any]](), 0
    stream = stream_of(daemon.shards)
    while stream.cursor.epoch < 2:
        while not stream.ready():
            asked += sum(gone in message.get("ask", ()) for message in daemon.said)
            skipped += [message["skipped"] for message in daemon.said if "skipped" in message]
            daemon.answer(gone)
        stream.next()
    asked += sum(gone in message.get("ask", ()) for message in daemon.said)
    skipped += [message["skipped"] for message in daemon.said if "skipped" in message]
    assert [(skip["epoch"], skip["shard"], skip["digest"]) for skip in skipped] == [(0, 2, gone), (1, 2, gone)]
    assert {skip["reason"] for skip in skipped} == {"nobody has it"}
    assert asked >= 2


def test_a_silent_daemon_is_waited_for_a_bounded_time(tmp_path: Path, index: TokenIndex) -> None:
    daemon = Daemon(tmp_path, index)
    stream = stream_of(daemon.shards)
    assert not stream.ready()
    first = daemon.said[0]["shards"][1]
    for digest in daemon.said[0]["shards"][2:]:
        daemon.shards.receive_shard(digest, str(daemon.files[digest]), "")
    daemon.now += WAIT_S - 1
    assert not stream.ready()
    daemon.now += 2
    stream.ready()
    assert stream.ready()
    assert len(stream.next().skipped) == 1
    told = next(message["skipped"] for message in daemon.said if "skipped" in message)
    assert (told["digest"], told["reason"]) == (first, f"it did not come within {WAIT_S:.0f} s")


def test_an_index_other_than_the_manifest_s_is_refused(tmp_path: Path, index: TokenIndex) -> None:
    path = tmp_path / "index.json"
    assert read_index(str(path), blake3(path.read_bytes()).hexdigest()) == index
    for given, words in ((str(path), "not the one"), (str(tmp_path / "absent"), "cannot be read"), (None, "cannot")):
        with pytest.raises(DataError, match=words):
            read_index(given, "0" * 64)
