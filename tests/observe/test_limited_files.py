"""When a file reaches a size limit, the error names the limit instead of a full disk."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.errors import file_advice

LIMITED = """
import pathlib, resource, sys
from peer.errors import HomeUnusable
from peer.observe import events
from peer.observe.journal import Journal
from peer.observe.receipt_file import ReceiptFile
from peer.run.home import write_whole

folder = pathlib.Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
journal = Journal(folder / "journal.jsonl", lambda: 0.0)
for _ in range(3):
    journal.append(events.Left(exit_code=0))
print(journal.failed)
for write in (
    lambda: ReceiptFile(folder / "receipts.chain").append(b"x" * 200),
    lambda: write_whole(folder / "kept", b"x" * 200),
):
    try:
        write()
    except HomeUnusable as error:
        print(error.found, error.fix)
print(sorted(path.name for path in folder.iterdir()))
"""


@pytest.mark.processes
def test_a_limit_of_file_sizes_is_named(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    *told, left = ended.stdout.splitlines()
    assert len(told) == 3
    assert all(os.strerror(errno.EFBIG) in line for line in told)
    assert all("ulimit -f" in line for line in told[1:])
    assert "full" not in ended.stdout
    assert left == "['journal.jsonl', 'receipts.chain']"


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EDQUOT, "quota"),
        (errno.EFBIG, "ulimit -f"),
        (errno.EROFS, "read-only"),
        (errno.EACCES, "right"),
        (errno.ENAMETOOLONG, "too long"),
        (errno.EMFILE, "ulimit -n"),
        (errno.EIO, "check it"),
    ],
)
def test_each_cause_has_an_advice_of_its_own(number: int, word: str) -> None:
    advice = file_advice(OSError(number, os.strerror(number)), Path("/home/ann/run"), "name another file")
    assert word in advice
    assert number == errno.EMFILE or "name another file" in advice
