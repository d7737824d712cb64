from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import HomeUnusable
from peer.trainer.arena import COUNTERS, MAGIC, VERSION, CounterFile, counters_of, parse_words, read_counters

words = st.integers(0, 2**63 - 1)


@given(words, words, words, words, st.lists(words, max_size=5))
def test_counters_read_back(tokens: int, steps: int, training: int, waiting: int, base: list[int]) -> None:
    numbers = (MAGIC, VERSION, len(base), tokens, steps, training, waiting, *base)
    parsed = parse_words(struct.pack(f"<{len(numbers)}Q", *numbers), len(base))
    assert parsed is not None
    got = counters_of(parsed)
    assert (got.tokens, got.steps, got.base) == (tokens, steps, tuple(base))
    assert (got.seconds_training, got.seconds_waiting) == (training / 1e9, waiting / 1e9)


@given(st.binary(max_size=100))
def test_other_bytes_are_none(raw: bytes) -> None:
    assert parse_words(raw, 1) is None


def test_a_base_past_the_tokens_is_damage_before_work_begins(tmp_path: Path) -> None:
    CounterFile(tmp_path, 1).stepped(100, 1)
    path = tmp_path / COUNTERS
    path.write_bytes(path.read_bytes()[:-8] + (101).to_bytes(8, "little"))
    with pytest.raises(HomeUnusable, match="damaged"):
        CounterFile(tmp_path, 1)
    assert read_counters(tmp_path, 1).base == (101,), "who only looks may meet the trainer between two stores"


def test_a_file_without_end_is_not_read_whole(tmp_path: Path) -> None:
    with (tmp_path / COUNTERS).open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(HomeUnusable, match="damaged"):
        read_counters(tmp_path, 1)
