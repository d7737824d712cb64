"""Where a trainer begins in its data after each way in which the former one may have ended."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from peer.errors import DataError
from peer.protocol.sampling import START, Cursor
from peer.run.files.artifact import ArtifactRef
from peer.run.sections import DataSection, TokenizerSection, TrainSection
from peer.trainer.batches import Batch, Windows
from peer.trainer.config import TrainerConfig
from peer.trainer.data import BLOCK_BYTES
from peer.trainer.data.account import DataAccount, DataPosition
from peer.trainer.data.tracked import PLACE, TrackedData
from tests.trainer.data.test_token_shards import built

NO_WINDOWS: Any = None


def config(texts: Path, **changes: Any) -> TrainerConfig:
    given = {
        "data": DataSection(kind="text"),
        "data_dir": str(texts),
        "train": TrainSection(context=16, batch=4),
        "sync_every": 10,
        "seed": 1,
        "peer_id": "a",
    }
    return TrainerConfig.model_validate(given | changes)


def of_tokens(folder: Path, **changes: Any) -> TrainerConfig:
    raw = (folder / "index.json").read_bytes()
    index = ArtifactRef(digest=blake3(raw).hexdigest(), size=len(raw))
    file = ArtifactRef(digest="0" * 64, size=1)
    tokenizer = TokenizerSection(kind="file", vocab_size=1000, end_token=0, file=file)
    given = {"data": DataSection(kind="tokens", index=index), "data_index": str(folder / "index.json")}
    return config(folder, **given | {"tokenizer": tokenizer} | changes)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "a.txt").write_bytes((b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    return folder


def tracked(home: Path, data: Path, fragments: int = 1) -> TrackedData:
    return TrackedData(config(data), home, fragments, lambda message: None)


def batch(begin: Cursor, end: Cursor, *skipped: Cursor) -> Batch:
    windows: Windows = NO_WINDOWS
    return Batch(windows, begin, end, skipped)


AT = [Cursor(0, 0, 4 * step) for step in range(6)]


def test_nothing_known_begins_an_epoch_and_says_so(tmp_path: Path, data: Path) -> None:
    cursor, why = tracked(tmp_path, data).begin(None, resumed=False, exact=False)
    assert cursor == START
    assert "no place in this data is known" in why


def test_an_old_checkpoint_without_a_place_begins_an_epoch_and_says_so(tmp_path: Path, data: Path) -> None:
    cursor, why = tracked(tmp_path, data).begin(None, resumed=True, exact=True)
    assert cursor == START
    assert "older program" in why


def test_the_work_that_was_lost_is_drawn_again_and_no_other(tmp_path: Path, data: Path) -> None:
    one = tracked(tmp_path, data)
    one.begin(None, resumed=False, exact=False)
    for begin, end in pairwise(AT[:5]):
        one.record_batch(batch(begin, end))
        if end == AT[2]:
            one.snapshot(0, 100)
            one.account.rebase(0, 100)
    saved = one.position()
    exact = tracked(tmp_path, data)
    assert exact.begin(saved, resumed=True, exact=True)[0] == AT[4]
    assert exact.snapshot(0, 200)["data_from"] == "0.0.8", "the work since the base counts on"
    lost = tracked(tmp_path, data)
    assert lost.begin(saved, resumed=True, exact=False)[0] == AT[2]
    assert lost.snapshot(0, 200) == {"data_from": "0.0.8", "data_to": "0.0.8", "data_skipped": ""}


def test_a_start_without_a_checkpoint_goes_on_at_the_last_snapshot(tmp_path: Path, data: Path) -> None:
    one = tracked(tmp_path, data)
    one.record_batch(batch(START, AT[1]))
    one.snapshot(0, 10)
    one.record_batch(batch(AT[1], AT[2]))
    cursor, why = tracked(tmp_path, data).begin(None, resumed=False, exact=False)
    assert cursor == AT[1]
    assert "last snapshot" in why
    (tmp_path / PLACE).write_text('{"cursor": [0, "x"]}')
    assert tracked(tmp_path, data).begin(None, resumed=False, exact=False)[0] == START


def test_a_place_in_other_data_means_nothing(tmp_path: Path, data: Path) -> None:
    one = tracked(tmp_path, data)
    one.record_batch(batch(START, AT[1]))
    one.snapshot(0, 10)
    saved = one.position()
    (data / "b.txt").write_bytes(b"another text " * BLOCK_BYTES)
    other = tracked(tmp_path, data)
    for given in (saved, None):
        assert other.begin(given, resumed=given is not None, exact=True)[0] == START
    assert "other data" in other.begin(saved, resumed=True, exact=True)[1]


def test_spans_follow_each_fragment_s_base_and_keep_its_skips() -> None:
    account = DataAccount(START, [START, START])
    account.record_batch(batch(START, AT[1], START))
    assert account.snapshot(0, 10) == {"data_from": "0.0.0", "data_to": "0.0.4", "data_skipped": "0.0"}
    account.record_batch(batch(AT[1], Cursor(0, 2, 1), Cursor(0, 1)))
    account.rebase(0, 10)
    assert account.snapshot(1, 20) == {"data_from": "0.0.0", "data_to": "0.2.1", "data_skipped": "0.0-1"}
    account.rebase(1, 20)
    assert account.snapshot(0, 30) == {"data_from": "0.0.4", "data_to": "0.2.1", "data_skipped": "0.1"}
    again = DataAccount.resumed(account.position("d"))
    assert again.snapshot(0, 30) == {"data_from": "0.0.4", "data_to": "0.2.1", "data_skipped": "0.1"}


def test_a_save_of_fragments_begins_where_no_outer_state_has_the_work() -> None:
    assert DataPosition("d", (0, 3, 0), [(0, 1, 0), (0, 2, 5)], []).base == Cursor(0, 2, 5)


def test_shards_of_another_tokenizer_and_too_few_of_them_are_refused(tmp_path: Path) -> None:
    built(tmp_path)
    other = TokenizerSection(kind="file", vocab_size=999, end_token=0, file=ArtifactRef(digest="0" * 64, size=1))
    for changes, words in (
        ({"tokenizer": other}, "of 1000 tokens, the run's tokenizer of 999"),
        ({"train": TrainSection(context=400, batch=4)}, "too little data in the index"),
    ):
        with pytest.raises(DataError, match=words):
            TrackedData(of_tokens(tmp_path, **changes), tmp_path, 1, lambda message: None)
