from __future__ import annotations

from pathlib import Path

import torch

from peer.state.checkpoint import STATE, CheckpointStore
from peer.state.sealed_state import OUTER

RUN, OTHER_RUN, LAYOUT, OTHER_LAYOUT = b"r" * 32, b"o" * 32, b"l" * 32, b"m" * 32


def write(store: CheckpointStore, run: bytes = RUN, layout: bytes = LAYOUT, founded: bytes = b"") -> Path:
    return store.commit(store.begin(), torch.zeros(4), torch.zeros(4), run, layout, {"founded": founded.hex()}).folder


def test_those_of_other_runs_layouts_and_foundings_and_damaged_ones_are_named(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c", keep=10)
    assert store.foreign_checkpoints(RUN, LAYOUT) == []
    write(store, run=OTHER_RUN)
    write(store, layout=OTHER_LAYOUT)
    write(store, founded=b"f" * 32)
    (write(store) / STATE).write_text("{")
    write(store)
    told = store.foreign_checkpoints(RUN, LAYOUT)
    assert [sentence.split(":")[0] for sentence in told] == [f"checkpoint-{n}" for n in (1, 2, 3, 4)]
    for sentence, words in zip(told, ["another run", "another layout", "refounded", "torn or damaged"], strict=True):
        assert words in sentence
    refounded = store.foreign_checkpoints(RUN, LAYOUT, b"f" * 32)
    assert len(refounded) == 4, "now the last one is of before, and the third is not"


def test_a_kill_between_the_halves_leaves_only_a_draft_that_the_next_begin_removes(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    kept = write(store)
    draft = store.begin()
    store.write_outer(draft, torch.ones(4), torch.ones(4))
    assert (draft / OUTER).exists()
    again = CheckpointStore(tmp_path / "c")
    found, skipped = again.latest(RUN, LAYOUT)
    assert found is not None
    assert (found.folder, skipped) == (kept, [])
    again.begin()
    assert not draft.exists()


def test_three_are_kept_unless_told_otherwise(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "c")
    for _ in range(5):
        write(store)
    assert sorted(path.name for path in store.folder.iterdir()) == ["checkpoint-3", "checkpoint-4", "checkpoint-5"]
