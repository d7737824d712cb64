"""Batches are drawn without replacement, missing shards are skipped, and the next ones are requested ahead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.protocol.sampling import START, Cursor, Sampler
from peer.trainer.batches import AHEAD, Batch, BatchStream, gather, holdout_windows, skips_at
from peer.trainer.data import Corpus
from peer.trainer.data.corpus import PIECE_TOKENS

CONTEXT = 4
WHO: dict[str, Any] = {"seed": 1, "peer_id": "a", "context": CONTEXT, "batch": 5}


class Shelf:
    """Data whose tokens show their shard and place. The test decides which shards are available, missing or awaited."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens_per_shard = tokens
        self.digest = "shelf"
        self.description = ""
        self.holdout = np.zeros(0, np.uint32)
        self.bytes_per_token = 1.0
        self.missing: set[int] = set()
        self.awaited: set[int] = set()
        self.expected: list[int] = []
        self.needed: list[int] = []
        self.passed: list[tuple[int, int, int]] = []
        self.asked_again = 0

    def usable(self, shard: int) -> bool | None:
        return None if shard in self.awaited else shard not in self.missing

    def await_shard(self, shard: int) -> None:
        self.needed.append(shard)

    def shard(self, number: int) -> Any:
        assert self.usable(number), number
        return np.arange(self.tokens_per_shard[number], dtype=np.uint32) + 2**20 * number

    def request(self, shards: Any) -> None:
        self.expected = list(shards)

    def retry_missing(self) -> None:
        self.asked_again += 1

    def report_skip(self, epoch: int, place: int, shard: int) -> None:
        self.passed.append((epoch, place, shard))


def epoch_of(stream: BatchStream, epochs: int = 1) -> list[Batch]:
    batches = []
    while stream.cursor.epoch < epochs:
        batches.append(stream.next())
    return batches


@given(st.lists(st.integers(1, 90), min_size=1, max_size=6), st.integers(1, 9))
def test_over_an_epoch_every_window_comes_exactly_once(tokens: list[int], batch: int) -> None:
    shelf = Shelf([*tokens, 9])
    drawn = epoch_of(BatchStream(shelf, **WHO | {"batch": batch}))
    windows = [tuple(window) for one in drawn for window in one.windows.tolist()]
    every = {
        tuple(range(2**20 * shard + at, 2**20 * shard + at + CONTEXT + 1))
        for shard, count in enumerate(shelf.tokens_per_shard)
        for at in range(0, count - CONTEXT, CONTEXT)
    }
    assert set(windows[: len(every)]) == every
    assert [one.end for one in drawn[:-1]] == [one.begin for one in drawn[1:]]


@pytest.mark.parametrize("change", [{"seed": 2}, {"peer_id": "b"}])
def test_seed_and_peer_matter(change: dict[str, Any]) -> None:
    shelf = Shelf([400, 400])
    one, other = BatchStream(shelf, **WHO), BatchStream(shelf, **WHO | change)
    assert not np.array_equal(one.next().windows, other.next().windows)


def test_a_batch_is_a_function_of_its_cursor() -> None:
    stream = BatchStream(Shelf([100, 70, 80]), **WHO)
    batches = [stream.next() for _ in range(8)]
    again = BatchStream(Shelf([100, 70, 80]), **WHO)
    for batch in reversed(batches):
        again.move_to(batch.begin)
        assert np.array_equal(again.next().windows, batch.windows)
        assert again.cursor == batch.end
    assert batches[0].windows.dtype == np.uint32


def test_missing_shards_are_passed_over_and_told_and_the_rest_comes_once() -> None:
    shelf = Shelf([50] * 6)
    shelf.missing = {1, 4}
    drawn = epoch_of(BatchStream(shelf, **WHO))
    assert sorted(shard for epoch, _, shard in shelf.passed if epoch == 0) == [1, 4]
    seen = [int(window[0]) // 2**20 for batch in drawn for window in batch.windows]
    counts = {shard: seen[:48].count(shard) for shard in range(6)}
    assert counts == {0: 12, 1: 0, 2: 12, 3: 12, 4: 0, 5: 12}
    sampler = Sampler(1, "a", CONTEXT, shelf.tokens_per_shard)
    skips = [skip for batch in drawn for skip in batch.skipped]
    assert [sampler.shard_at(skip.epoch, skip.place) for skip in skips] == [shard for _, _, shard in shelf.passed]


def test_a_shard_that_goes_missing_in_its_middle_is_drawn_again_alike() -> None:
    shelf = Shelf([50] * 4)
    stream = BatchStream(shelf, **WHO)
    first = stream.next()
    shelf.missing = {Sampler(1, "a", CONTEXT, [50] * 4).shard_at(0, 0)}
    second = stream.next()
    assert second.skipped == (first.end,)
    shelf.missing = set()
    sampler = Sampler(1, "a", CONTEXT, [50] * 4)
    for batch in (first, second):
        drawn = sampler.replay(batch.begin, 5, skips_at(batch.begin, second.skipped))
        assert np.array_equal(gather(drawn.windows, shelf.shard, CONTEXT), batch.windows)
        assert drawn.cursor == batch.end


def test_an_awaited_shard_makes_it_not_ready_and_changes_nothing() -> None:
    shelf = Shelf([50] * 5)
    stream = BatchStream(shelf, **WHO)
    sampler = Sampler(1, "a", CONTEXT, [50] * 5)
    shelf.awaited = {sampler.shard_at(0, 0)}
    assert not stream.ready()
    assert (stream.cursor, shelf.needed) == (START, [sampler.shard_at(0, 0)])
    assert shelf.expected == [sampler.shard_at(0, place) for place in range(AHEAD + 1)]
    shelf.awaited = set()
    assert stream.ready()
    assert stream.ready(), "asked twice, it is drawn once"
    assert stream.next().begin == START


def test_what_is_missing_is_not_asked_for_ahead() -> None:
    shelf = Shelf([50] * 6)
    stream = BatchStream(shelf, **WHO)
    order = [Sampler(1, "a", CONTEXT, [50] * 6).shard_at(0, place) for place in range(6)]
    shelf.missing = {order[1], order[2]}
    stream.ready()
    assert shelf.expected == [order[0], order[3], order[4]]


def test_when_all_are_missing_they_are_asked_for_again() -> None:
    shelf = Shelf([50] * 3)
    shelf.missing = {0, 1, 2}
    stream = BatchStream(shelf, **WHO)
    assert not stream.ready()
    assert (shelf.asked_again, shelf.passed, stream.cursor) == (1, [], START)
    shelf.missing = set()
    assert stream.ready()


def test_skips_count_from_where_they_happened() -> None:
    skips = [Cursor(0, 2, 7), Cursor(0, 5), Cursor(1, 0)]
    assert skips_at(Cursor(0, 2, 3), skips) == {(0, 5), (1, 0)}
    assert skips_at(Cursor(0, 2, 7), skips) == {(0, 2), (0, 5), (1, 0)}
    assert skips_at(Cursor(0, 5), skips) == {(0, 5), (1, 0)}


def test_pieces_of_a_corpus_lose_no_window_between_them() -> None:
    corpus = Corpus(np.zeros(2 * PIECE_TOKENS + 100, np.uint8), np.zeros(100, np.uint8), "")
    assert corpus.tokens_per_shard == [PIECE_TOKENS + 1, PIECE_TOKENS + 1, 100]
    assert [len(corpus.shard(number)) for number in range(3)] == corpus.tokens_per_shard
    whole = Corpus(np.zeros(PIECE_TOKENS + 1, np.uint8), np.zeros(100, np.uint8), "")
    assert whole.tokens_per_shard == [PIECE_TOKENS + 1]


def test_holdout_windows_are_evenly_spaced_over_all_of_it() -> None:
    windows = holdout_windows(np.arange(101, dtype=np.uint32), context=20, count=5)
    assert (windows.shape, windows.dtype) == ((5, 21), np.uint32)
    assert windows[:, 0].tolist() == [0, 20, 40, 60, 80]
    assert windows[-1, -1] == 100
