"""Shards contain every document once, and the same texts give the same bytes, even if the build is killed meanwhile."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from blake3 import blake3
from tokenizers import Tokenizer, models, pre_tokenizers

from peer.data import build_progress, pieces, pipeline, shard_writer
from peer.data.build import Built, build
from peer.data.encoding import END_TEXT, TextEncoder, open_tokenizer
from peer.data.sources import find
from peer.errors import DataError
from peer.run.files.token_index import Part, ShardEntry, parse_index, shard_bytes, shard_file
from tests.data.conftest import SHARD_TOKENS, files_of, story
from tests.support.seeds import nightly

Build = Callable[..., tuple[Built, Path]]
PARTS: tuple[Part, ...] = ("train", "holdout")
TRAIN = [
    ("595cc6c454c5c34f", 5798, 9, 5789),
    ("88ba79432e9776bf", 5746, 10, 5736),
    ("b15e83f58e4cb462", 5809, 10, 5799),
    ("892445ad1aa62586", 5962, 10, 5952),
    ("e4f01bbeab2b6b2d", 5730, 8, 5722),
    ("7c29cefe6daa6595", 1052, 1, 1051),
]
HOLDOUT = ["ed87f317d9d1bb76", "f7c33c2e5e995733"]


def entries(built: Built, part: Part) -> tuple[ShardEntry, ...]:
    return built.index.train if part == "train" else built.index.holdout


def documents_of(built: Built, folder: Path, part: Part) -> list[tuple[int, ...]]:
    """Read a part's files, and return the tokens of each document without end tokens."""
    found: list[tuple[int, ...]] = []
    for number, entry in enumerate(entries(built, part)):
        raw = (folder / shard_file(part, number)).read_bytes()
        assert len(raw) == shard_bytes(built.index, entry)
        assert blake3(raw).hexdigest() == entry.digest
        tokens = np.frombuffer(raw, built.index.dtype).tolist()
        assert tokens[-1] == built.index.end_token
        begin = 0
        for at, token in enumerate(tokens):
            if token == built.index.end_token:
                found.append(tuple(tokens[begin:at]))
                begin = at + 1
        assert tokens.count(built.index.end_token) == entry.documents
        assert entry.tokens <= SHARD_TOKENS or entry.documents == 1
    return found


def test_every_document_is_in_one_part(texts: Path, encoder: TextEncoder, build_from: Build) -> None:
    built, folder = build_from(texts, holdout_one_in=5)
    assert parse_index((folder / "index.json").read_bytes()) == built.index
    assert (folder / "tokenizer.json").read_bytes() == encoder.raw
    assert built.index.tokenizer == encoder.digest
    shards = {shard_file(part, number) for part in PARTS for number in range(len(entries(built, part)))}
    assert set(files_of(folder)) == shards | {"index.json", "tokenizer.json"}
    expected: dict[Part, list[tuple[int, ...]]] = {"train": [], "holdout": []}
    for file in find([texts]).files:
        content = file.path.read_bytes()
        held = int.from_bytes(blake3(content).digest(), "big") % 5 == 0
        expected["holdout" if held else "train"].append(tuple(encoder.encode([content.decode()])[0].tolist()))
    for part in PARTS:
        assert len(entries(built, part)) > 1
        assert documents_of(built, folder, part) == expected[part]
        sizes = [entry.tokens for entry in entries(built, part)]
        first = [len(tokens) + 1 for tokens in documents_of(built, folder, part)]
        assert all(size + min(first) <= SHARD_TOKENS + max(first) for size in sizes)
    assert sum(entry.text_bytes for part in PARTS for entry in entries(built, part)) == find([texts]).survey.nbytes


def byte_encoder(path: Path) -> TextEncoder:
    """Return a tokenizer whose tokens are bytes, so that the result does not depend on the library's version."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={sign: at for at, sign in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens([END_TEXT])
    tokenizer.save(str(path))
    return open_tokenizer(path)


def test_the_shards_are_those_of_every_version(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frozen: the order of the documents, the choice of the hold-out, and the boundaries of the shards."""
    monkeypatch.setattr(shard_writer, "SHARD_TOKENS", 6000)
    encoder = byte_encoder(tmp_path / "tokenizer.json")
    built = build(find([texts]), encoder, tmp_path / "out", 5, lambda read, total: None)
    found = [(entry.digest[:16], entry.tokens, entry.documents, entry.text_bytes) for entry in built.index.train]
    assert found == TRAIN
    assert [entry.digest[:16] for entry in built.index.holdout] == HOLDOUT
    assert (built.index.vocab_size, built.index.end_token) == (257, 256)


def test_a_text_under_two_names_is_in_one_part(tmp_path: Path, encoder: TextEncoder, build_from: Build) -> None:
    for number in range(40):
        for name in ("a", "b/c", "z"):
            path = tmp_path / "twice" / f"{name}{number * 7919 % 40}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(story(number))
    built, folder = build_from(tmp_path / "twice", holdout_one_in=4)
    found = {part: Counter(documents_of(built, folder, part)) for part in PARTS}
    assert found["train"].keys().isdisjoint(found["holdout"])
    assert set((found["train"] + found["holdout"]).values()) == {3}
    assert len(found["train"]) + len(found["holdout"]) == 40


def test_all_kinds_of_sources_give_the_same_shards(tmp_path: Path, build_from: Build) -> None:
    stories = [story(number) for number in range(30)]
    rows = "".join(json.dumps({"text": text}) + "\n" for text in stories).encode()
    (tmp_path / "a.jsonl").write_bytes(rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(rows))
    (tmp_path / "a.jsonl.zst").write_bytes(zstandard.compress(rows))
    pq.write_table(pa.table({"text": stories}), tmp_path / "a.parquet")
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(stories):
        (tmp_path / "texts" / f"{number:02}.txt").write_text(text)
    sources = ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "texts"]
    built = [build_from(tmp_path / name, out=f"out-{name}", holdout_one_in=5) for name in sources]
    assert all(files_of(folder) == files_of(built[0][1]) for _, folder in built)


def test_batches_do_not_change_the_shards(texts: Path, build_from: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    _, usual = build_from(texts)
    monkeypatch.setattr(pipeline, "BATCH_PIECES", 1)
    _, single = build_from(texts, out="single")
    monkeypatch.setattr(pipeline, "BATCH_PIECES", 100)
    monkeypatch.setattr(pipeline, "BATCH_CHARACTERS", 10)
    monkeypatch.setattr(pieces, "PIECE", 200)
    _, small = build_from(texts, out="small")
    assert files_of(usual) == files_of(single) == files_of(small)


def test_a_long_document_has_a_shard_of_its_own(tmp_path: Path, build_from: Build, encoder: TextEncoder) -> None:
    rows = [story(0), story(1), "A long one. " * 1000, story(2), "", story(3), *(story(n) for n in range(10, 20))]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in rows))
    built, folder = build_from(tmp_path / "a.jsonl")
    assert built.empty == 1
    found = [entry for part in PARTS for entry in entries(built, part) if entry.tokens > SHARD_TOKENS]
    assert [entry.documents for entry in found] == [1]
    texts = {tokens for part in PARTS for tokens in documents_of(built, folder, part)}
    assert texts == {tuple(encoder.encode([text])[0].tolist()) for text in rows if text}


def test_a_document_that_is_too_long_is_refused(
    tmp_path: Path, build_from: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_writer, "MAX_SHARD_TOKENS", 1000)
    (tmp_path / "a.txt").write_text("A long one. " * 1000)
    with pytest.raises(DataError, match="a document has more than 1,000 tokens"):
        build_from(tmp_path / "a.txt")
    assert {name.removesuffix(".draft") for name in files_of(tmp_path / "out")} <= {
        "build.lock",
        "build-progress.json",
        "train-00000.tokens",
        "holdout-00000.tokens",
    }


# -- the hold-out ------------------------------------------------------------------------------------------------------


def test_few_documents_have_a_larger_hold_out(tmp_path: Path, build_from: Build) -> None:
    (tmp_path / "few").mkdir()
    for number in range(9):
        (tmp_path / "few" / f"{number}.txt").write_text(story(number))
    built, folder = build_from(tmp_path / "few")
    assert built.holdout_one_in < 100
    assert built.reason == "with 1 in 100 one part would have no document"
    _, given = build_from(tmp_path / "few", out="given", holdout_one_in=built.holdout_one_in)
    assert files_of(given) == files_of(folder)


def test_a_given_share_that_leaves_a_part_empty_is_refused(tmp_path: Path, build_from: Build) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(story(number))
    with pytest.raises(DataError, match="of 9 documents none falls into the hold-out with 1 in 1000") as raised:
        build_from(tmp_path, holdout_one_in=1000)
    assert "--holdout-one-in" in raised.value.fix
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("copies", [1, 3])
def test_one_text_cannot_be_held_out(tmp_path: Path, build_from: Build, copies: int) -> None:
    for number in range(copies):
        (tmp_path / f"{number}.txt").write_text(story(1))
    with pytest.raises(DataError, match=f"of {copies} documents none falls into"):
        build_from(tmp_path)


# -- stopped builds ----------------------------------------------------------------------------------------------------


def killed(texts: Path, tokenizer: Path, out: Path, moment: str, share: int = 0, threads: str = "2") -> int:
    """Run a build in a process that kills itself at a moment. Return the exit code."""
    arguments = [str(texts), str(tokenizer), str(out), str(share), moment]
    command = [sys.executable, "-m", "tests.data.killed_build", *arguments]
    environment = {**os.environ, "RAYON_NUM_THREADS": threads}
    return subprocess.run(command, env=environment, timeout=180, check=False).returncode


@pytest.mark.processes
@pytest.mark.nightly
def test_a_build_that_is_killed_again_and_again_gives_the_same_files(
    texts: Path, tokenizer: Path, tmp_path: Path, build_from: Build
) -> None:
    _, whole = build_from(texts, holdout_one_in=5)
    out = tmp_path / "killed"
    moments = ["document:2", "document:20", "after:3", "before:4", "before:2", "after:2", "document:9"]
    for moment in moments:
        assert killed(texts, tokenizer, out, moment, 5) == -9, moment
        assert not (out / "index.json").exists()
        finished = [path for path in out.iterdir() if path.suffix == ".tokens"]
        assert all(path.read_bytes() == (whole / path.name).read_bytes() for path in finished)
    assert finished
    assert killed(texts, tokenizer, out, "never", 5) == 0
    assert files_of(out) == files_of(whole)


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["document:40", *nightly(["document:90", "after:30"])])
def test_a_build_with_another_share_than_usual_is_killed(
    tokenizer: Path, tmp_path: Path, build_from: Build, moment: str
) -> None:
    """The build is killed in its first pass, which finds no document for the hold-out, and in its second."""
    for number in (n for n in range(60) if int.from_bytes(blake3(story(n).encode()).digest(), "big") % 100):
        (tmp_path / "few").mkdir(exist_ok=True)
        (tmp_path / "few" / f"{number}.txt").write_text(story(number))
    built, whole = build_from(tmp_path / "few")
    assert built.holdout_one_in == 20
    assert killed(tmp_path / "few", tokenizer, tmp_path / "killed", moment) == -9
    assert killed(tmp_path / "few", tokenizer, tmp_path / "killed", "never") == 0
    assert files_of(tmp_path / "killed") == files_of(whole)


@pytest.mark.processes
def test_the_number_of_threads_does_not_change_the_files(texts: Path, tokenizer: Path, tmp_path: Path) -> None:
    for threads in ("1", "4"):
        assert killed(texts, tokenizer, tmp_path / threads, "never", threads=threads) == 0
    assert files_of(tmp_path / "1") == files_of(tmp_path / "4")


class Stopped(Exception):
    """Raised to stop a build."""


def stopped(build_from: Build, monkeypatch: pytest.MonkeyPatch, *sources: Path) -> None:
    """Stop a build when its first shard has been renamed."""

    def stop(self: shard_writer.ShardWriter) -> None:
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(shard_writer.ShardWriter, "rename_closed", stop)
        with pytest.raises(Stopped):
            build_from(*sources)


def test_a_stopped_build_says_that_it_resumed(texts: Path, build_from: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped(build_from, monkeypatch, texts)
    resumed, out = build_from(texts)
    fresh, whole = build_from(texts, out="whole")
    assert (resumed.resumed, fresh.resumed) == (True, False)
    assert files_of(out) == files_of(whole)


def test_a_stopped_build_does_not_continue_with_other_texts(
    texts: Path, tmp_path: Path, build_from: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped(build_from, monkeypatch, texts)
    before = files_of(tmp_path / "out")
    (tmp_path / "more.txt").write_text("more")
    with pytest.raises(DataError, match="holds a build of other texts"):
        build_from(texts, tmp_path / "more.txt")
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize("damage", ["shard", "progress"])
def test_a_stopped_build_that_is_damaged_is_refused(
    texts: Path, tmp_path: Path, build_from: Build, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    stopped(build_from, monkeypatch, texts)
    out = tmp_path / "out"
    if damage == "shard":
        (out / "train-00000.tokens.draft").unlink()
    else:
        (out / build_progress.PROGRESS_FILE).write_text('{"fingerprint": ')
    with pytest.raises(DataError, match=r"shards are missing|is damaged"):
        build_from(texts)


def test_a_folder_with_anything_else_is_refused(texts: Path, tmp_path: Path, build_from: Build) -> None:
    _, folder = build_from(texts)
    before = files_of(folder)
    with pytest.raises(DataError, match="out holds a complete build"):
        build_from(texts)
    assert files_of(folder) == before
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_bytes(b"a")
    with pytest.raises(DataError, match=r"photos holds other files, such as a\.jpg"):
        build_from(texts, out="photos")
    assert files_of(tmp_path / "photos") == {"a.jpg": b"a"}


def test_one_process_builds_in_a_folder(texts: Path, tmp_path: Path, build_from: Build) -> None:
    with build_progress.locked_folder(tmp_path / "out"), pytest.raises(DataError, match="another process builds"):
        build_from(texts)
