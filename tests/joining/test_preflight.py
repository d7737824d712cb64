"""Whatever prevents the start of a daemon must be found before torch is loaded."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peer.errors import HomeBusy, HomeUnusable, IdentityError, UsageError
from peer.identity import load_or_create
from peer.joining.preflight import check_start
from peer.protocol.messages import RunId
from peer.run.home import Home
from peer.run.manifest import write_new
from peer.run.options import NodeOptions
from peer.run.ticket import Ticket

RUN = RunId(b"r" * 32)
ENTRY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWRBSDQEuKoGGzdgfa4J3MEoy3cFSeAtrecvNaA7UfMmc5"
PROGRAM = """
import json, resource, sys
from peer.cli.main import peer
from peer.errors import PeerError
if files := int(sys.argv[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
try:
    peer(sys.argv[2:], standalone_mode=False)
except PeerError as error:
    print(json.dumps([type(error).__name__, str(error), error.fix, sorted({"torch", "grpc"} & set(sys.modules))]))
"""


def started(*words: str | Path, files: int = 0) -> tuple[str, str, str, list[str]]:
    """Return the error with which a command ends (class, sentence, fix), and the modules that were loaded by then."""
    command = [sys.executable, "-c", PROGRAM, str(files), *map(str, words)]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=300, check=True).stdout.splitlines()
    name, found, fix, loaded = json.loads(lines[-1])
    return name, found, fix, loaded


@pytest.fixture
def node(tmp_path: Path) -> NodeOptions:
    return NodeOptions(home=tmp_path / "home")


@pytest.fixture(params=["join", "bootstrap"])
def command(request: pytest.FixtureRequest, tmp_path: Path, node: NodeOptions) -> tuple[str | Path, ...]:
    if request.param == "join":
        return "join", Ticket(RUN, (ENTRY,)).encode(), "--home", node.home
    write_new(tmp_path / "run.toml", load_or_create(tmp_path / "operator.key"))
    return "bootstrap", tmp_path / "run.toml", "--home", node.home


@pytest.mark.processes
def test_a_second_daemon_of_a_home_is_refused_before_torch_is_loaded(
    command: tuple[str | Path, ...], node: NodeOptions
) -> None:
    with Home(node.home).lock():
        name, found, fix, loaded = started(*command)
    assert (name, loaded) == ("HomeBusy", [])
    assert f"in use by process {os.getpid()}" in found
    assert "peer leave" in fix


@pytest.mark.processes
def test_a_key_that_cannot_be_used_is_refused_before_torch_is_loaded(
    command: tuple[str | Path, ...], node: NodeOptions
) -> None:
    load_or_create(node.home / "identity.key").file.chmod(0o644)  # type: ignore[union-attr]
    name, found, _, loaded = started(*command)
    assert (name, loaded) == ("IdentityError", [])
    assert "can be read by other users" in found


@pytest.mark.processes
def test_too_few_open_files_are_refused_in_words_before_torch_is_loaded(
    command: tuple[str | Path, ...], node: NodeOptions
) -> None:
    name, found, fix, loaded = started(*command, files=40)
    assert (name, loaded) == ("UsageError", [])
    assert found == "this process may open 40 files, and a daemon needs 128 at least"
    assert "LimitNOFILE=4096" in fix
    assert not node.home.exists()


def test_a_start_that_may_be_leaves_no_key_and_no_lock(node: NodeOptions) -> None:
    check_start(node, RUN)
    assert not node.home.exists()
    node.home.mkdir()
    check_start(node, RUN)
    check_start(node, RUN)
    assert {path.name for path in node.home.iterdir()} == {"lock", "identity.key.lock"}
    with Home(node.home).lock():
        pass


def test_a_key_elsewhere_counts(node: NodeOptions, tmp_path: Path) -> None:
    key = tmp_path / "keys" / "node.key"
    load_or_create(key)
    node.home.mkdir()
    elsewhere = NodeOptions(home=node.home, identity_path=key)
    with Home(tmp_path / "other").lock(key), pytest.raises(HomeBusy, match=r"node\.key is in use"):
        check_start(elsewhere, RUN)
    key.write_bytes(b"")
    with pytest.raises(IdentityError, match="damaged"):
        check_start(elsewhere, RUN)


@pytest.mark.parametrize("name", ["journal.jsonl", "checkpoints", ""])
def test_files_of_another_user_are_named_with_the_command_that_gives_them_back(
    node: NodeOptions, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = Home(node.home).run(RUN).path
    (folder / "checkpoints").mkdir()
    (folder / "journal.jsonl").touch()
    (folder / "link").symlink_to(folder / "nothing")
    check_start(node, RUN)
    real: Callable[..., bool] = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder / name and real(path, mode))
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(HomeUnusable, match="cannot read and write it") as caught:
        check_start(node, RUN)
    assert str(folder / name) in caught.value.found
    assert caught.value.fix == f"Run: sudo chown -R 54321 {node.home}   or choose another --home."


def test_a_hard_limit_that_suffices_is_no_error(node: NodeOptions) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))  # the daemon raises the soft limit
        check_start(node, RUN)
    except UsageError:
        assert hard < 128
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
