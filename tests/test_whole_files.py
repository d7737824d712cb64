"""Files are written completely or not at all, and bytes are written to the last one. Each fault is caused in a test."""

from __future__ import annotations

import ast
import errno
import itertools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from peer import whole_files
from peer.errors import PeerError
from peer.observe import events
from peer.observe.journal import Journal
from peer.observe.output import OutputFailed, _Descriptor
from peer.observe.receipt_file import ReceiptFile
from peer.state.files import write_synced
from peer.whole_files import NothingWritten, create_file, replace_file, write_all

WRITES = (replace_file, create_file)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
def test_a_full_disk_leaves_no_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    real = os.open
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "open", lambda path, flags, mode=0: (real(path, flags, mode), real("/dev/full", os.O_WRONLY))[1]
        )
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "file", b"new")
    assert names(tmp_path) == set()


def test_a_former_file_stays_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace_file(path, b"former")
    monkeypatch.setattr(whole_files, "_drafts", itertools.repeat(0))
    (tmp_path / f".file.{os.getpid()}-0").write_bytes(b"draft of a killed process with our process id")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: 0)
        with pytest.raises(NothingWritten):
            replace_file(path, b"new")
    assert (path.read_bytes(), names(tmp_path)) == (b"former", {"file"})
    replace_file(path, b"new", synced=True)
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", 0o600)


def test_two_writers_of_one_file_do_not_share_a_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads store the same piece: the second writes while the first is in the middle."""
    real, path = whole_files.write_all, tmp_path / "file"

    def interrupted(descriptor: int, data: bytes, at: int | None = None) -> None:
        real(descriptor, data[:1], at)
        monkeypatch.setattr(whole_files, "write_all", real)
        replace_file(path, b"second")
        assert path.read_bytes() == b"second"
        real(descriptor, data[1:], at)

    monkeypatch.setattr(whole_files, "write_all", interrupted)
    replace_file(path, b"first")
    assert (path.read_bytes(), names(tmp_path)) == (b"first", {"file"})


def test_a_new_file_never_replaces_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*paths: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    create_file(tmp_path / "file", b"first")
    for refuse in (lambda: None, lambda: monkeypatch.setattr(os, "link", no_links)):
        refuse()  # vfat has no hard links
        with pytest.raises(FileExistsError):
            create_file(tmp_path / "file", b"second")
        assert ((tmp_path / "file").read_bytes(), names(tmp_path)) == (b"first", {"file"})
    create_file(tmp_path / "other", b"third")
    assert ((tmp_path / "other").read_bytes(), names(tmp_path)) == (b"third", {"file", "other"})


def test_all_bytes_are_written_by_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, pwrite = os.write, os.pwrite
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:2]))
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: pwrite(descriptor, data[:2], at))
    with (tmp_path / "file").open("wb") as file:
        write_all(file.fileno(), b"seven b")
        write_all(file.fileno(), memoryview(b"BYTES"), at=6)
    assert (tmp_path / "file").read_bytes() == b"seven BYTES"


def test_a_write_of_nothing_ends_every_writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda descriptor, data: 0)
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, at: 0)
    with pytest.raises(NothingWritten):
        write_synced(tmp_path / "state", b"bytes")
    with pytest.raises(PeerError, match="Input/output error"):
        ReceiptFile(tmp_path / "receipts").append(b"bytes")
    with pytest.raises(OutputFailed, match="Input/output error"):
        _Descriptor(1, is_required=True).write(b"bytes")
    assert _Descriptor(2, is_required=False).write(b"bytes") == 5
    journal = Journal(tmp_path / "journal.jsonl", lambda: 0.0)
    journal.append(events.Left(exit_code=0))
    assert "Input/output error" in str(journal.failed)


def test_nothing_else_loops_over_writes_or_renames_drafts() -> None:
    """Loops over `os.write` and renamed temporary files are allowed in one module only. Justified exceptions are
    listed."""
    own = {
        "whole_files.py",
        "observe/nonblocking_writer.py",  # does not wait
        "node/control.py",  # a socket
        "observe/journal.py",  # two names at once, of an open file
        "data/shard_writer.py",  # shards of gigabytes
        "node/new_run.py",  # named by their digest, in a folder that is a draft itself
        "state/artifacts/draft.py",  # written piece by piece
        "state/checkpoint.py",
        "result/export/draft.py",
        "lab/run_sources.py",  # folders
        "identity.py",  # gives a former key another name
    }
    found = set()
    root = Path(whole_files.__file__).parent
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                base = ast.unparse(node.func.value)
                writes = base == "os" and node.func.attr in ("write", "pwrite", "link", "replace", "rename")
                if writes or (node.func.attr in ("replace", "rename") and "draft" in base.lower()):
                    found.add(str(file.relative_to(root)))
    assert found <= own, found - own
