from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from peer.errors import DataError
from peer.run.sections import DataSection
from peer.trainer.data import BLOCK_BYTES, Corpus, load_corpus
from peer.trainer.data.text import split_texts

TEXT = DataSection(kind="text")


def filled(folder: Path, blocks: int = 40) -> Path:
    """Return blocks that contain their own number, so that each can be found in one of the parts."""
    (folder / "b").mkdir()
    for number in range(blocks):
        block = f"block {number:05d} ".encode() * (BLOCK_BYTES // 12 + 1)
        path = folder / ("a.txt" if number % 2 else "b/c.txt")
        with path.open("ab") as file:
            file.write(block[:BLOCK_BYTES])
    return folder


def test_text_parts_are_disjoint_and_together_everything(tmp_path: Path) -> None:
    corpus = load_corpus(TEXT, str(filled(tmp_path)), 64)
    total = b"".join((tmp_path / name).read_bytes() for name in ("a.txt", "b/c.txt"))
    blocks = {total[at : at + BLOCK_BYTES] for at in range(0, len(total), BLOCK_BYTES)}
    parts = []
    for part in (corpus.train, corpus.holdout):
        raw = part.tobytes()
        parts.append({raw[at : at + BLOCK_BYTES] for at in range(0, len(raw), BLOCK_BYTES)})
    assert not parts[0] & parts[1]
    assert parts[0] | parts[1] == blocks
    assert 1 <= len(parts[1]) <= 8, "about one in twenty of forty"


def test_text_is_the_same_each_time_and_its_digest_covers_both_parts(tmp_path: Path) -> None:
    one, again = (load_corpus(TEXT, str(tmp_path if n else filled(tmp_path)), 64) for n in range(2))
    assert np.array_equal(one.train, again.train)
    assert one.digest == blake3(one.train.tobytes() + one.holdout.tobytes()).hexdigest()
    pinned = DataSection(kind="text", digest=one.digest)
    assert load_corpus(pinned, str(tmp_path), 64).digest == one.digest
    (tmp_path / "a.txt").write_bytes((tmp_path / "a.txt").read_bytes()[:-1] + b"!")
    with pytest.raises(DataError, match="not what the manifest names") as caught:
        load_corpus(pinned, str(tmp_path), 64)
    assert caught.value.fix


def test_text_holds_out_at_least_one_block(tmp_path: Path) -> None:
    for number in range(50):
        folder = tmp_path / str(number)
        folder.mkdir()
        blocks = [f"{number} {block}\n".encode() * BLOCK_BYTES for block in range(3)]
        (folder / "a.txt").write_bytes(b"".join(block[:BLOCK_BYTES] for block in blocks))
        assert len(load_corpus(TEXT, str(folder), 64).holdout) >= BLOCK_BYTES


def test_a_folder_named_holdout_is_the_hold_out(tmp_path: Path) -> None:
    one, two = (filled_with(tmp_path / name, name) for name in ("one", "two"))
    corpora = [load_corpus(TEXT, str(folder), 64) for folder in (one, two)]
    assert corpora[0].holdout.tobytes() == corpora[1].holdout.tobytes() == b"the same " * 1000
    assert [corpus.train.tobytes() for corpus in corpora] == [b"one" * 1000, b"two" * 1000]


def test_only_a_folder_at_the_top_is_the_hold_out(tmp_path: Path) -> None:
    (tmp_path / "below" / "holdout").mkdir(parents=True)
    for name in ("below/holdout/a", "holdout"):
        (tmp_path / name).write_bytes(name.encode() * BLOCK_BYTES)
    corpus = load_corpus(TEXT, str(tmp_path), 64)
    assert b"below/holdout/a" in corpus.train.tobytes()


def test_training_and_hold_out_share_no_content_whatever_the_files_are_called(tmp_path: Path) -> None:
    blocks = [f"block {number:05d} ".encode() * BLOCK_BYTES for number in range(60)]
    for number, block in enumerate(blocks):
        for name in ("a", "b/other", "z"):
            path = tmp_path / f"{name}{number}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(block[:BLOCK_BYTES])
    parts = [part.tobytes() for part in _parts(load_corpus(TEXT, str(tmp_path), 64))]
    train, holdout = ({part[at : at + BLOCK_BYTES] for at in range(0, len(part), BLOCK_BYTES)} for part in parts)
    assert len(train) + len(holdout) == len(blocks)
    assert not train & holdout
    assert [len(part) // BLOCK_BYTES for part in parts] == [3 * len(train), 3 * len(holdout)]


def test_training_leaves_out_what_lies_in_the_folder_holdout_too(tmp_path: Path) -> None:
    filled_with(tmp_path / "one", "one")
    (tmp_path / "one" / "again.txt").write_bytes((tmp_path / "one" / "holdout" / "text").read_bytes())
    assert load_corpus(TEXT, str(tmp_path / "one"), 64).train.tobytes() == b"one" * 1000


def test_hidden_and_binary_files_are_left_out_and_told(tmp_path: Path) -> None:
    filled(tmp_path)
    clean = load_corpus(TEXT, str(tmp_path), 64)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_ed25519").write_bytes(b"SECRET" * BLOCK_BYTES)
    (tmp_path / ".hidden").write_bytes(b"SECRET" * BLOCK_BYTES)
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b\x08\x00" * BLOCK_BYTES)
    (tmp_path / "latin.txt").write_bytes("gr\xfc\xdfe ".encode("latin-1") * BLOCK_BYTES)
    corpus = load_corpus(TEXT, str(tmp_path), 64)
    assert corpus.digest == clean.digest
    assert corpus.description == "2 files, 2.62 MB; skipped 2 binary, 2 hidden"


def test_blocks_are_cut_between_characters(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("\N{EURO SIGN}".encode() * (3 * BLOCK_BYTES))
    content = (tmp_path / "a.txt").read_bytes()
    passages = [passage for part in split_texts([("a.txt", content)]) for passage in part]
    assert sum(len(passage.text) for passage in passages) == len(content)
    for passage in passages:
        assert passage.text.decode()


def _parts(corpus: Corpus) -> tuple[Any, Any]:
    return corpus.train, corpus.holdout


def test_a_hold_out_alone_is_too_little(tmp_path: Path) -> None:
    filled_with(tmp_path / "x", "x")
    (tmp_path / "x" / "text").unlink()
    with pytest.raises(DataError, match="training part has 0 bytes"):
        load_corpus(TEXT, str(tmp_path / "x"), 64)


def filled_with(folder: Path, word: str) -> Path:
    (folder / "holdout").mkdir(parents=True)
    (folder / "text").write_bytes(word.encode() * 1000)
    (folder / "holdout" / "text").write_bytes(b"the same " * 1000)
    return folder


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_bytes(b"SECRET" * BLOCK_BYTES)
    data = tmp_path / "data"
    data.mkdir()
    filled(data)
    clean = load_corpus(TEXT, str(data), 64)
    (data / "link").symlink_to(secret / "key")
    (data / "folder").symlink_to(secret)
    (data / "up").symlink_to("..")
    os.mkfifo(data / "pipe")
    assert load_corpus(TEXT, str(data), 64).digest == clean.digest


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    filled(data)
    (tmp_path / "link").symlink_to(data)
    assert load_corpus(TEXT, str(tmp_path / "link"), 64).digest == load_corpus(TEXT, str(data), 64).digest


def test_every_trouble_with_the_folder_has_its_own_words_and_a_fix(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "a.txt").write_bytes(b"too little")
    troubles = {
        None: "no folder was given",
        str(tmp_path / "missing"): "does not exist",
        str(tmp_path / "empty"): "holds no text",
        str(tmp_path / "small"): "too little data",
    }
    for folder, words in troubles.items():
        with pytest.raises(DataError, match=words) as caught:
            load_corpus(TEXT, folder, 64)
        assert "--data" in caught.value.fix


def test_too_little_is_fewer_than_four_windows_in_a_part(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a" * BLOCK_BYTES)
    (tmp_path / "b").write_bytes(b"b" * BLOCK_BYTES)
    load_corpus(TEXT, str(tmp_path), BLOCK_BYTES // 4 - 1)
    with pytest.raises(DataError, match="too little data"):
        load_corpus(TEXT, str(tmp_path), BLOCK_BYTES // 4)


def test_an_unreadable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * BLOCK_BYTES)
    real = os.open

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "a.txt":  # root may read everything, so permissions do not show it
            raise PermissionError(13, "Permission denied")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataError, match=r"a\.txt cannot be read: Permission denied"):
        load_corpus(TEXT, str(tmp_path), 64)


def test_stdlib_splits_by_file_without_tests_tables_and_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for excluded in (
        "test/a.py", "json/tests/a.py", "idlelib/idle_test/a.py", "site-packages/a.py", "encodings/a.py",
        "pydoc_data/a.py", "json/__pycache__/a.py", "notes.txt",
    ):  # fmt: skip
        path = tmp_path / excluded
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"EXCLUDED")
    content = {}
    for number in range(300):
        path = tmp_path / "json" / f"m{number:03d}.py"
        content[path.name] = f"# {number:03d}\n".encode() * 20
        path.write_bytes(content[path.name])
    monkeypatch.setattr(sysconfig, "get_path", lambda name: {"stdlib": str(tmp_path)}[name])
    walk, seen = os.fwalk, list[str]()

    def recorded(*args: Any, **options: Any) -> Iterator[Any]:
        for at in walk(*args, **options):
            seen.append(Path(at[0]).name)
            yield at

    monkeypatch.setattr(os, "fwalk", recorded)
    corpus = load_corpus(DataSection(), None, 16)
    assert not {"site-packages", "test", "__pycache__"} & set(seen), "packages may be a hundred times the library"
    held = [body for _, body in sorted(content.items()) if int(blake3(body).hexdigest(), 16) % 50 == 0]
    kept = [body for _, body in sorted(content.items()) if int(blake3(body).hexdigest(), 16) % 50]
    assert held
    assert corpus.holdout.tobytes() == b"".join(held)
    assert corpus.train.tobytes() == b"".join(kept)


def test_the_real_stdlib_is_large_enough() -> None:
    corpus = load_corpus(DataSection(), None, 1024)
    assert len(corpus.train) > 5e6
    assert 0.005 < len(corpus.holdout) / len(corpus.train) < 0.08
