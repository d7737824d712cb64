from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import peer
from peer.config.edit import set_value
from peer.errors import HomeBusy, HomeUnusable
from peer.identity import load_or_create
from peer.observe.journal import Journal
from peer.run.home import LONGEST_SOCKET_PATH, Home, default_home, write_whole
from peer.state.artifacts.cache import ArtifactCache

TRY_LOCK = """
import sys
from pathlib import Path
from peer.errors import HomeBusy
from peer.run.home import Home
try:
    with Home(Path(sys.argv[1])).lock():
        print("locked")
except HomeBusy as error:
    print(error.found)
"""


def try_lock(home: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", TRY_LOCK, str(home)], capture_output=True, text=True, timeout=180, check=True
    ).stdout


@pytest.mark.processes
def test_a_second_process_is_told_the_pid_of_the_first(tmp_path: Path) -> None:
    with Home(tmp_path).lock():
        assert f"process {os.getpid()}" in try_lock(tmp_path)
    assert try_lock(tmp_path) == "locked\n"


def test_a_second_lock_in_one_process_is_refused_too(tmp_path: Path) -> None:
    with Home(tmp_path).lock(), pytest.raises(HomeBusy), Home(tmp_path).lock():
        pass


def test_one_key_is_for_one_process_whatever_the_homes(tmp_path: Path) -> None:
    key = tmp_path / "keys" / "identity.key"
    with (
        Home(tmp_path / "a").lock(key),
        pytest.raises(HomeBusy, match=r"identity\.key"),
        Home(tmp_path / "b").lock(key),
    ):
        pass


def test_a_key_borrowed_from_a_home_in_use_is_in_use(tmp_path: Path) -> None:
    """A daemon of home `a` uses its key without naming it on the command line. A daemon of home `b` that borrows the
    key must be refused."""
    with (
        Home(tmp_path / "a").lock(),
        pytest.raises(HomeBusy, match=f"process {os.getpid()}") as caught,
        Home(tmp_path / "b").lock(Home(tmp_path / "a").identity),
    ):
        pass
    assert f"peer leave --home {tmp_path / 'a'} " in caught.value.fix


def test_a_lock_file_left_behind_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999\n")
    with Home(tmp_path).lock():
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_home_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeUnusable, match="file"):
        Home(tmp_path / "file" / "home")


def test_the_control_socket_always_fits(tmp_path: Path) -> None:
    short, long = Home(tmp_path / "a"), Home(tmp_path / ("b" * 120))
    assert len(os.fsencode(long.control_socket)) <= LONGEST_SOCKET_PATH
    assert long.control_socket == Home(tmp_path / ("b" * 120)).control_socket
    assert short.control_socket != long.control_socket


def test_where_home_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_HOME", "/x")
    assert default_home() == Path("/x")
    monkeypatch.delenv("PEER_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert default_home() == Path("/data/peer")


@pytest.fixture
def open_umask() -> Iterator[None]:
    """Create files for all users, as with `umask 000`."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.usefixtures("open_umask")
def test_a_home_is_private_whatever_the_umask(tmp_path: Path) -> None:
    home = Home(tmp_path / "above" / "home")
    load_or_create(home.identity)
    run = home.run(b"r" * 32)
    Journal(run.journal, lambda: 0.0).close()
    write_whole(run.path / "kept.json", b"{}")
    ArtifactCache(home.artifacts, 10**6)
    with home.lock():
        pass
    set_value(tmp_path / "config" / "peer" / "config.toml", (), "max-upload", "1MB")
    made = list(tmp_path.rglob("*"))
    assert {"identity.key", "journal.jsonl", "kept.json", "lock", "config.toml"} <= {path.name for path in made}
    assert [(path, oct(path.stat().st_mode)) for path in made if path.stat().st_mode & 0o077] == []


NOT_OURS = {
    "result/export/draft.py",
    "data/build_progress.py",
    "lab/attack/sybil_records.py",
    "trackers/sinks.py",
    "user_folders.py",
}
"""Modules that make folders of the user's: the umask decides about those."""


def test_every_folder_of_a_home_is_made_private() -> None:
    root = Path(peer.__file__).parent
    made = (path for path in root.rglob("*.py") if re.search(r"mkdir\([^)]*parents=", path.read_text()))
    elsewhere = {str(path.relative_to(root)) for path in made}
    assert elsewhere <= NOT_OURS
