from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from peer.protocol.sampling import START, Cursor
from peer.trainer.batch_log import TRAIL, BatchLog, digest_of, read_batch_log
from peer.trainer.batches import Batch

WINDOWS = np.arange(12, dtype=np.uint8).reshape(2, 6)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    trail = BatchLog(tmp_path)
    middle, end = Cursor(0, 1, 2), Cursor(1, 0, 1)
    trail.step(0, 3, 0, Batch(WINDOWS, START, middle))
    BatchLog(tmp_path).step(128, 3, 1, Batch(WINDOWS[::-1], middle, end))
    first, second = read_batch_log(tmp_path / TRAIL)
    assert (first.process, first.tokens, first.round, first.step) == (os.getpid(), 0, 3, 0)
    assert (second.tokens, second.step) == (128, 1)
    assert first.batch == digest_of(WINDOWS)
    assert [first.begin, first.end, second.begin, second.end] == [START, middle, middle, end]
    assert first.batch != second.batch


def test_a_strange_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / TRAIL).write_text("1 2 3\n")
    with pytest.raises(ValueError, match="not enough"):
        list(read_batch_log(tmp_path / TRAIL))
