from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.errors import HomeUnusable
from peer.run.home import LONGEST_SOCKET_PATH, Home


def test_a_file_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(HomeUnusable, match="is not a folder"):
        Home(tmp_path / "home")


def test_the_systems_reason_is_told() -> None:
    with pytest.raises(HomeUnusable, match=os.strerror(errno.ENOTDIR)):
        Home(Path("/dev/null/home"))


def test_a_home_whose_lock_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(HomeUnusable, match="Is a directory"), Home(tmp_path).lock():
        pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(HomeUnusable, match="cannot lock"), Home(tmp_path).lock():
        pass


def test_a_home_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    folder = home.run(b"\x12" * 32)
    assert folder.path == tmp_path / "home" / "runs" / ("12" * 8)
    assert stat.S_IMODE(home.path.stat().st_mode) == 0o700
    assert folder.journal.parent == folder.checkpoints.parent == folder.manifest.parent == folder.path


LONG = "b" * 120


@pytest.fixture
def temp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A stand-in for the system's temp folder, with a short path."""
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_short_socket_folder_is_private(tmp_path: Path, temp: Path) -> None:
    path = Home(tmp_path / LONG).control_socket
    assert path.parent == temp / f"peer-{os.getuid()}"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert len(os.fsencode(path)) <= LONGEST_SOCKET_PATH


def test_a_socket_folder_open_to_others_is_refused(tmp_path: Path, temp: Path) -> None:
    (temp / f"peer-{os.getuid()}").mkdir()
    (temp / f"peer-{os.getuid()}").chmod(0o777)
    with pytest.raises(HomeUnusable, match="not a private folder"):
        _ = Home(tmp_path / LONG).control_socket


def test_a_link_in_the_place_of_the_socket_folder_is_refused(tmp_path: Path, temp: Path) -> None:
    (temp / f"peer-{os.getuid()}").symlink_to(tmp_path)
    with pytest.raises(HomeUnusable, match="not a private folder"):
        _ = Home(tmp_path / LONG).control_socket


def test_a_temp_folder_too_deep_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("t" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(HomeUnusable, match="too long for a socket"):
        _ = Home(tmp_path / LONG).control_socket
