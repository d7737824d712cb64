"""The index of token shards: its exact bytes, and which indexes are refused."""

from __future__ import annotations

import dataclasses
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from peer.errors import DataError
from peer.run.files import token_index
from peer.run.files.token_index import (
    ShardEntry,
    ShardTable,
    TokenIndex,
    format_index,
    parse_index,
    read_index,
    shard_bytes,
    shard_file,
)

GOLDEN = b"""{"format": 1, "dtype": "uint16", "vocab_size": 50257, "end_token": 50256, "tokenizer": "%s", "train": [
{"digest": "%s", "tokens": 4194304, "documents": 900, "text_bytes": 17000000},
{"digest": "%s", "tokens": 5000000, "documents": 1, "text_bytes": 20000000}
], "holdout": [
{"digest": "%s", "tokens": 1, "documents": 1, "text_bytes": 1}
]}
""" % (b"aa" * 32, b"11" * 32, b"22" * 32, b"33" * 32)
INDEX = TokenIndex(
    "uint16",
    50257,
    50256,
    "aa" * 32,
    ShardTable([ShardEntry("11" * 32, 2**22, 900, 17_000_000), ShardEntry("22" * 32, 5_000_000, 1, 20_000_000)]),
    ShardTable([ShardEntry("33" * 32, 1, 1, 1)]),
)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)


def test_an_index_is_written_in_one_way() -> None:
    assert format_index(INDEX) == GOLDEN
    assert parse_index(GOLDEN) == INDEX


def test_a_shard_has_two_or_four_bytes_a_token() -> None:
    assert shard_bytes(INDEX, INDEX.train[0]) == 2**23
    assert shard_bytes(dataclasses.replace(INDEX, vocab_size=2**17, dtype="uint32"), INDEX.train[0]) == 2**24
    assert [shard_file("train", 0), shard_file("holdout", 123456)] == ["train-00000.tokens", "holdout-123456.tokens"]


@st.composite
def shard_entries(draw: st.DrawFn) -> ShardEntry:
    tokens = draw(st.integers(1, token_index.MAX_SHARD_TOKENS))
    documents = draw(st.integers(1, tokens)) if tokens <= token_index.SHARD_TOKENS else 1
    return ShardEntry(draw(digests), tokens, documents, draw(st.integers(documents, 10**12)))


parts = st.lists(shard_entries(), min_size=1, max_size=5).map(ShardTable)


@given(parts, parts, st.integers(2, 2**20), digests)
def test_every_index_is_read_back(train: ShardTable, holdout: ShardTable, vocab_size: int, tokenizer: str) -> None:
    dtype = token_index.dtype_for(vocab_size)
    assume({entry.digest for entry in train}.isdisjoint(entry.digest for entry in holdout))
    index = TokenIndex(dtype, vocab_size, vocab_size - 1, tokenizer, train, holdout)
    assert parse_index(format_index(index)) == index


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        (b'"format": 1', b'"format": 2', "line 1 of the data index is not the head"),
        (b"uint16", b"uint32", "line 1 of the data index names a vocabulary of 50257 with end token 50256 as uint32"),
        (b"50257", b"70000", "line 1 of the data index names a vocabulary of 70000"),
        (b": 50256", b": 50257", "line 1 of the data index names a vocabulary of 50257 with end token 50257"),
        (b"50257", b"9999999", "line 1 of the data index names a vocabulary of 9999999"),
        (b'"digest": "11', b'"digest": "../../1', "line 2 of the data index is not a shard"),
        (b"4194304", b"4194305", "line 2 of the data index names a shard of 4194305 tokens, several documents"),
        (b"5000000", b"134217729", "line 3 of the data index names a shard of 134217729 tokens and 1 documents"),
        (b"5000000", b"0", "line 3 of the data index is not a shard"),
        (b'"text_bytes": 17000000', b'"text_bytes": 0', "line 2 of the data index is not a shard"),
        (b"17000000", b"899", "line 2 of the data index names a shard of 900 documents with 899 bytes of text"),
        (b'1, "text_bytes": 1', b'2, "text_bytes": 1', "line 5 of the data index names a shard of 1 tokens and 2"),
        (b'"documents": 900', b'"documents": 0900', "line 2 of the data index is not a shard"),
        (b'], "holdout": [\n', b"", "line 4 of the data index does not end the list"),
        (b"1}\n]}\n", b"1}\n", "line 6 of the data index does not end the list"),
        (b"]}\n", b"]}\n\n", "line 7 of the data index follows the end"),
        (b"11" * 32, b"33" * 32, "names one shard for training and for the hold-out"),
        (GOLDEN, b"", "line 1 of the data index is not the head"),
        (GOLDEN, b"[" * 10**6, "line 1 of the data index is not the head"),
        (GOLDEN, b"\n" * 10**6, "line 1 of the data index is not the head"),
    ],
)
def test_a_changed_index_is_refused_with_its_line(old: bytes, new: bytes, found: str) -> None:
    assert old in GOLDEN
    with pytest.raises(DataError) as raised:
        parse_index(GOLDEN.replace(old, new, 1))
    assert found in raised.value.found


def test_a_part_without_a_shard_is_refused() -> None:
    with pytest.raises(DataError, match="line 5 of the data index is not a shard"):
        parse_index(format_index(dataclasses.replace(INDEX, holdout=ShardTable(()))))


def test_a_long_index_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_index, "MAX_INDEX_BYTES", len(GOLDEN) - 1)
    with pytest.raises(DataError, match="at most"):
        parse_index(GOLDEN)


@given(st.data())
def test_a_byte_that_is_changed_makes_another_index_or_none(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(GOLDEN) - 1))
    raw = bytearray(GOLDEN)
    raw[place] = data.draw(st.integers(0, 255))
    try:
        index = parse_index(bytes(raw))
    except DataError:
        return
    assert format_index(index) == raw


def test_a_shard_is_found_by_its_digest() -> None:
    assert [INDEX.train.number_of(f"{number}{number}" * 32) for number in (1, 2, 3)] == [0, 1, None]
    assert INDEX.shard("33" * 32) == INDEX.holdout[0]
    # A digest that lies across the border of two others is not found there.
    across = ShardTable([ShardEntry("00" * 16 + "11" * 16, 1, 1, 1), ShardEntry("22" * 16 + "33" * 16, 1, 1, 1)])
    assert across.number_of("11" * 16 + "22" * 16) is None
    assert across.number_of("22" * 16 + "33" * 16) == 1


def test_a_large_index_costs_less_memory_than_its_own_size(tmp_path: Path) -> None:
    """An index of 64 MiB takes 22 MB: 48 bytes for a shard, whose text has about 150."""
    shards = ShardTable(ShardEntry(f"{number:064x}", 2**22, 900, 17_000_000) for number in range(30_000))
    raw = format_index(dataclasses.replace(INDEX, train=shards))
    file = tmp_path / "index.json"
    file.write_bytes(raw)
    read_index(file)
    tracemalloc.start()
    try:
        index = read_index(file)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(index.train) == 30_000
    assert peak < len(raw) / 2
