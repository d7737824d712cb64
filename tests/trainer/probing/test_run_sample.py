"""A probe's windows come from random shards of the whole run, which are borrowed one at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from peer.run.files.token_index import TokenIndex
from peer.trainer.batches import Windows
from peer.trainer.data import Tokens
from peer.trainer.probing.run_sample import EVERY, LEAST_DRAWS, MOST_DRAWS, USUAL_DRAWS, WINDOWS, RunSample
from tests.trainer.data.test_token_shards import Daemon, built, stream_of

LENGTH = 17
COUNT = 6


class Lender:
    """Lends shards of given lengths. The value of a token shows its shard."""

    def __init__(self, *tokens: int) -> None:
        self.tokens_per_shard = tokens
        self.lent: list[int] = []
        self._now: int | None = None

    def borrow(self, shard: int | None) -> None:
        self._now = shard
        self.lent += [] if shard is None else [shard]

    def borrowed(self) -> Tokens | str | None:
        if self._now is None:
            return None
        return np.full(self.tokens_per_shard[self._now], self._now, np.uint16)


def drawn(sample: RunSample, seed: int) -> Windows:
    windows = sample.draw(seed, COUNT)
    assert not isinstance(windows, str), windows
    assert windows.shape == (COUNT, LENGTH)
    return windows


def test_each_shard_counts_by_the_windows_that_it_has() -> None:
    lender, seen = Lender(1016, 16, 216, 516), Counter[int]()
    for seed in range(300):
        seen.update(drawn(RunSample(lender, LENGTH), seed)[:, 0].tolist())
    assert seen[1] == 0, "it is too short for a window"
    shares = [seen[shard] / seen.total() for shard in (0, 2, 3)]
    assert shares == pytest.approx([1000 / 1700, 200 / 1700, 500 / 1700], abs=0.06)


def test_what_is_drawn_follows_from_the_seeds() -> None:
    one, same, other = (RunSample(Lender(*[500] * 50), LENGTH) for _ in range(3))
    assert (drawn(one, 1) == drawn(same, 1)).all()
    assert (drawn(one, 2) == drawn(same, 2)).all()
    assert (drawn(other, 3) != drawn(same, 3)).any()


def test_a_further_shard_comes_now_and_then_and_the_oldest_gives_way() -> None:
    lender = Lender(*[500] * 1000)
    sample = RunSample(lender, LENGTH)
    seen = [set(drawn(sample, seed)[:, 0].tolist()) for seed in range(EVERY * 40)]
    soon = USUAL_DRAWS - LEAST_DRAWS + 1
    assert len(lender.lent) == USUAL_DRAWS + (EVERY * 40 - soon) // EVERY
    drawn_last = len(set(lender.lent[-MOST_DRAWS:]))
    assert sample.description == f"from {drawn_last} of the run's 1000 shards, drawn at random"
    assert set(lender.lent[:LEAST_DRAWS]) & set.union(*seen[:EVERY])
    assert set.union(*seen[-EVERY:]) <= set(lender.lent[-MOST_DRAWS - 1 :])
    assert len(sample._parts) * WINDOWS == MOST_DRAWS * WINDOWS, "nothing grows"


@pytest.fixture
def index(tmp_path: Path) -> TokenIndex:
    return built(tmp_path, shards=9)


def test_shards_are_borrowed_after_what_training_needs_one_at_a_time_and_given_back(
    tmp_path: Path, index: TokenIndex
) -> None:
    daemon = Daemon(tmp_path, index)
    stream_of(daemon.shards).ready()
    expected = daemon.said[0]["shards"]
    daemon.answer()
    sample, asked, most = RunSample(daemon.shards, LENGTH), list[str](), 0
    assert str(sample.draw(1, COUNT)).endswith("are here to judge params by, and the next one is on its way")
    while daemon.said:
        asked += [digest for message in daemon.said for digest in message["ask"]]
        most = max(most, *(len(message["shards"]) for message in daemon.said))
        assert all(message["shards"][: len(expected)] == expected for message in daemon.said)
        daemon.answer()
        sample.check_borrowed()
    assert len(expected) + 1 == most
    assert index.holdout[0].digest not in asked
    assert daemon.shards._wanted == expected, "all are given back"
    windows = drawn(sample, 2)
    texts = [np.fromfile(tmp_path / f"train-{shard:05}.tokens", "<u2").tobytes() for shard in range(9)]
    assert all(any(window.tobytes() in text for text in texts) for window in windows)


def test_a_shard_that_nobody_has_is_told_and_no_loss_to_training(tmp_path: Path, index: TokenIndex) -> None:
    daemon = Daemon(tmp_path, index)
    stream = stream_of(daemon.shards)
    stream.ready()
    mine = daemon.said[0]["shards"]
    daemon.answer()
    others = [entry.digest for entry in index.train if entry.digest not in mine]
    sample, told = RunSample(daemon.shards, LENGTH), ""
    for seed in range(20):
        told = str(sample.draw(seed, COUNT))
        daemon.answer(*others)
        sample.check_borrowed()
        if "nobody has it" in told:
            break
    assert "the next one could not be had: nobody has it" in told
    assert all(daemon.shards.usable(shard) is not False for shard in range(9)), "training asks for itself"
    for seed in range(20):
        told = str(sample.draw(seed, COUNT))
        daemon.answer()
        sample.check_borrowed()
    assert not isinstance(sample.draw(1, COUNT), str), told


def test_a_shard_that_training_missed_is_asked_for_again(tmp_path: Path, index: TokenIndex) -> None:
    daemon = Daemon(tmp_path, index)
    stream_of(daemon.shards).ready()
    gone = daemon.said[0]["shards"][2]
    daemon.answer(gone)
    number = next(at for at, entry in enumerate(index.train) if entry.digest == gone)
    assert daemon.shards.usable(number) is False
    daemon.shards.borrow(number)
    assert [message["ask"] for message in daemon.said] == [[gone]]
    daemon.answer()
    assert isinstance(daemon.shards.borrowed(), np.ndarray)
    assert daemon.shards.usable(number) is True
