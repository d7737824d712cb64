"""Documents are read from each kind of file. Errors name the file, and the line or field."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from blake3 import blake3

from peer.data import documents, lines
from peer.data.documents import DocumentReader, Place
from peer.data.sources import find
from peer.errors import DataError

TEXTS = ["The first.", "Zweitens: Ünïcode ☃ 🎈\n", "third\r\nwith lines\n\n", "x"]


def read(*sources: Path, start: Place = Place()) -> list[str]:  # noqa: B008  (a frozen value)
    found = []
    for document, pieces in DocumentReader(find(sources).files, start):
        text = "".join(pieces)
        assert document.digest == blake3(text.encode()).digest()
        assert document.nbytes == len(text.encode())
        found.append(text)
    return found


def as_lines(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text, "id": at}).encode() + b"\n" for at, text in enumerate(texts))


def parquet(path: Path, texts: list[str | None], name: str = "text", **options: object) -> Path:
    pq.write_table(pa.table({"id": list(range(len(texts))), name: pa.array(texts, pa.string())}), path, **options)
    return path


SKIPPABLE = bytes.fromhex("502a4d18 05000000") + b"notes"
"""A frame of zstandard without content (RFC 8878, section 3.1.2)."""


def frames(content: bytes) -> bytes:
    """Return several zstandard frames in sequence, which do not contain the size of their content."""
    packer = zstandard.ZstdCompressor(write_content_size=False)
    half = len(content) // 2
    return packer.compress(content[:half]) + packer.compress(b"") + packer.compress(content[half:])


@pytest.mark.parametrize(
    ("name", "pack"),
    [
        ("a.jsonl", bytes),
        ("a.ndjson", bytes),
        ("a.jsonl.gz", gzip.compress),
        ("a.json.gz", gzip.compress),
        ("a.jsonl.zst", zstandard.compress),
        ("a.JSONL.ZST", frames),
        ("a.jsonl", lambda content: codecs.BOM_UTF8 + content),
        ("a.jsonl.gz", lambda content: gzip.compress(codecs.BOM_UTF8 + content[:9]) + gzip.compress(content[9:])),
        ("a.jsonl.zst", lambda content: SKIPPABLE + zstandard.compress(codecs.BOM_UTF8 + content) + SKIPPABLE),
        ("a.jsonl", lambda content: content.replace(b"\n", b"\r\n")),
    ],
)
def test_lines_are_documents(tmp_path: Path, name: str, pack: object) -> None:
    assert callable(pack)
    path = tmp_path / name
    path.write_bytes(pack(as_lines(TEXTS[:2]) + b"\n  \n" + as_lines(TEXTS[2:])[:-1]))
    assert read(path) == TEXTS
    assert read(tmp_path, start=Place(0, 4)) == TEXTS[2:]


def test_rows_are_documents(tmp_path: Path) -> None:
    texts = [f"{number} ☃ " * (number % 7 + 1) for number in range(1000)]
    path = parquet(tmp_path / "a.parquet", texts, row_group_size=300)
    assert read(path) == texts
    for first in (1, 299, 300, 650, 1000):
        assert read(path, start=Place(0, first)) == texts[first:]


def test_rows_of_a_dictionary_are_documents(tmp_path: Path) -> None:
    column = pa.array(["a", "b", "a"]).dictionary_encode()
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert read(tmp_path) == ["a", "b", "a"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.large_string())])
def test_rows_of_every_kind_of_string_are_documents(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["a", "b"], pa.large_string())
    column = column.dictionary_encode() if pa.types.is_dictionary(kind) else column.cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert read(tmp_path) == ["a", "b"]


def test_a_large_zstandard_window_is_taken(tmp_path: Path) -> None:
    """`zstd --long=28` writes such windows, which the library refuses by default."""
    window = zstandard.ZstdCompressionParameters(window_log=28, enable_ldm=True)
    packer = zstandard.ZstdCompressor(compression_params=window).compressobj()
    (tmp_path / "a.jsonl.zst").write_bytes(packer.compress(as_lines(TEXTS)) + packer.flush())
    assert read(tmp_path) == TEXTS


@pytest.mark.parametrize("limit", [documents.WHOLE_BYTES, 10])
def test_a_text_is_taken_without_its_byte_order_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(documents, "WHOLE_BYTES", limit)
    (tmp_path / "a.txt").write_bytes(codecs.BOM_UTF8 + "A text \ufeff with another.\r\n".encode())
    assert read(tmp_path) == ["A text \ufeff with another.\r\n"]


def test_a_text_file_is_a_document(tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    assert read(tmp_path) == TEXTS
    assert read(tmp_path, start=Place(2)) == TEXTS[2:]


def test_a_long_text_file_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 101)
    text = "Zeile ☃ 🎈\n" * 5000
    (tmp_path / "a.txt").write_text(text)
    assert read(tmp_path) == [text]


def test_sources_are_read_in_order_and_once(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/1.txt", "a/3.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert read(tmp_path / "b", tmp_path / "a", tmp_path / "b" / "1.txt") == ["b/1.txt", "b/2.txt", "a/3.txt"]


def cut(packed: bytes) -> bytes:
    return packed[: len(packed) * 2 // 3]


MANY = as_lines([f"{number} {blake3(bytes(number)).hexdigest()}" for number in range(2000)])


@pytest.mark.parametrize(
    ("name", "content", "found"),
    [
        ("a.jsonl", as_lines(TEXTS) + b'{"text": "a"', r"a\.jsonl, line 5 is no JSON: .* at column"),
        ("a.jsonl", as_lines(TEXTS) + b'{"texts": "a"}', r"a\.jsonl, line 5 has no `text` that is a string"),
        (
            "a.jsonl",
            b'{"content": "a", "meta": {"text": "b"}}',
            r"a\.jsonl, line 1 has no `text` that is a string, but the fields 'content', 'meta'$",
        ),
        ("a.jsonl", b'{"text": 3}', r"a\.jsonl, line 1 has no `text` that is a string"),
        ("a.jsonl", b'{"text": null}', r"a\.jsonl, line 1 has no `text` that is a string"),
        ("a.jsonl", b'{"text": ["a"]}', r"a\.jsonl, line 1 has no `text` that is a string"),
        (
            "a.jsonl",
            b'\n{"text": "a", "id": ' + b"9" * 5000 + b"}",
            r"a\.jsonl, line 2 has a number of too many digits",
        ),
        ("a.jsonl", '{"text": "a"}'.encode("utf-16"), r"a\.jsonl, line 1 is not UTF-8"),
        ("a.jsonl", b'["text"]', r"a\.jsonl, line 1 has no `text` that is a string"),
        ("a.jsonl", b'{"text": "\xff"}', r"a\.jsonl, line 1 is not UTF-8"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a\.jsonl, line 1 has half a character"),
        ("a.jsonl", b'\n{"text": ' + b"[" * 100_000, r"a\.jsonl, line 2 is (nested too deeply|no JSON)"),
        ("a.jsonl.gz", cut(gzip.compress(MANY)), r"a\.jsonl\.gz is cut off or damaged after line \d+"),
        ("a.jsonl.gz", MANY, r"a\.jsonl\.gz is cut off or damaged after line 0"),
        ("a.jsonl.gz", gzip.compress(MANY)[:-6] + b"xxxxxx", r"a\.jsonl\.gz is cut off or damaged after line 2000"),
        ("a.jsonl.zst", cut(zstandard.compress(MANY)), r"a\.jsonl\.zst is cut off or damaged after line \d+"),
        (
            "a.jsonl.zst",
            bytes.fromhex("28b52ffd 00 b0") + bytes(40),
            r"window of 4.29 GB, at most 2.15 GB are taken",
        ),
        ("a.jsonl.zst", MANY, r"a\.jsonl\.zst is cut off or damaged after line 0"),
        ("a.parquet", b"PAR1" + MANY, r"a\.parquet is cut off, damaged or no parquet"),
        ("a.parquet", b"x", r"a\.parquet is cut off, damaged or no parquet"),
        ("a.txt", "ä".encode() * 10_000 + b"\xff", r"a\.txt is not UTF-8 at byte 20000"),
        ("a.txt", b"a" * 10_000 + b"\xc3", r"a\.txt is not UTF-8 at byte 10000"),
    ],
)
def test_bad_content_is_named(tmp_path: Path, name: str, content: bytes, found: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=found) as raised:
        read(tmp_path / name)
    assert str(tmp_path) in raised.value.found
    assert raised.value.fix


def test_a_broken_place_of_a_long_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "WHOLE_BYTES", 1000)
    monkeypatch.setattr(documents, "BLOCK_BYTES", 101)
    (tmp_path / "a.txt").write_bytes("☃".encode() * 3000 + b"\xe2\x98A")
    with pytest.raises(DataError, match="not UTF-8 at byte 9000"):
        read(tmp_path)


def test_a_long_text_that_changes_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "WHOLE_BYTES", 10)
    path = tmp_path / "a.txt"
    path.write_text("a" * 100)
    for _, pieces in DocumentReader(find([path]).files, Place()):
        path.write_text("b" * 100)
        with pytest.raises(DataError, match=r"a\.txt changed after the sources"):
            list(pieces)


def test_a_long_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 100)
    (tmp_path / "a.jsonl").write_bytes(as_lines(["a", "b" * 100]))
    with pytest.raises(DataError, match=r"a\.jsonl, line 2 is longer"):
        read(tmp_path)


def test_bad_columns_and_rows_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"a\.parquet has no column `text`, but id, content"):
        read(parquet(tmp_path / "a.parquet", ["a"], name="content"))
    with pytest.raises(DataError, match=r"b\.parquet, row 2 has no `text`"):
        read(parquet(tmp_path / "b.parquet", ["a", None]))
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet has a column `text` of int64, not of strings"):
        read(tmp_path / "c.parquet")
    pq.write_table(pa.table({"text": [["a"], ["b", "c"]]}), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet has a column `text` of list<.*>, not of strings"):
        read(tmp_path / "c.parquet")
    columns = [pa.array(["a"]), pa.array(["b"])]
    pq.write_table(pa.Table.from_arrays(columns, ["text", "text"]), tmp_path / "c.parquet")
    with pytest.raises(DataError, match=r"c\.parquet has 2 columns `text`"):
        read(tmp_path / "c.parquet")
    whole = io.BytesIO()
    pq.write_table(pa.table({"text": [str(number) * 50 for number in range(5000)]}), whole)
    raw = whole.getvalue()
    (tmp_path / "d.parquet").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(DataError, match=r"d\.parquet is cut off"):
        read(tmp_path / "d.parquet")
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 10)
    with pytest.raises(DataError, match=r"e\.parquet, row 2 has a text of more than"):
        read(parquet(tmp_path / "e.parquet", ["a", "b" * 11]))


def test_bad_sources_are_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.bin").write_bytes(b"\0")
    (tmp_path / "folder" / ".hidden").write_text("text")
    with pytest.raises(DataError, match=r"there is no text in .*folder: skipped 1 binary, 1 hidden"):
        find([tmp_path / "folder"])
    with pytest.raises(DataError, match=r"a\.bin is not text in UTF-8"):
        find([tmp_path / "folder" / "a.bin"])
    with pytest.raises(DataError, match=r"gone cannot be read: No such file"):
        find([tmp_path / "gone"])
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match=r"empty\.txt is empty"):
        find([tmp_path / "empty.txt"])


def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(DataError, match=r"pipe\.txt is neither a file nor a folder"):
        find([tmp_path / "pipe.txt"])
    (tmp_path / "a.txt").write_text("a")
    assert read(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.parquet"])
def test_a_source_that_was_replaced_meanwhile_is_refused(tmp_path: Path, name: str) -> None:
    """Fault: a link that replaces a file after the search makes the build read a file that was not checked."""
    parquet(tmp_path / "a.parquet", TEXTS)
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "a.jsonl").write_bytes(as_lines(TEXTS))
    (tmp_path / "folder").mkdir()
    (tmp_path / name).rename(tmp_path / "folder" / name)
    files = find([tmp_path / "folder"]).files
    (tmp_path / "folder" / name).rename(tmp_path / "folder" / "before")
    (tmp_path / "folder" / name).write_bytes((tmp_path / "folder" / "before").read_bytes())
    with pytest.raises(DataError, match=f"{name} changed after the sources were looked through"):
        list(DocumentReader(files, Place()))


def test_a_source_that_grows_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(as_lines(TEXTS))
    reader = DocumentReader(find([path]).files, Place())

    def grow() -> None:
        for _ in reader:
            with path.open("ab") as file:
                file.write(b'{"text": "more"}\n')

    with pytest.raises(DataError, match=r"a\.jsonl changed after the sources were looked through"):
        grow()
