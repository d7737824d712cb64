"""The folders of users whose HOME is unset, empty or relative, and of users that the user database does not have."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.config.file import default_path
from peer.errors import HomeUnusable, UsageError
from peer.run.home import default_home
from peer.user_folders import expand_user, user_home

NO_PATHS = [None, "", "relative"]


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove all environment variables that name a folder of this user."""
    for name in ("HOME", "PEER_HOME", "PEER_CONFIG", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nobody(bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also remove this user from the user database, as in a container that runs under an arbitrary user id."""

    def missing(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", missing)


def set_home(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is not None:
        monkeypatch.setenv("HOME", value)


@pytest.mark.parametrize("value", NO_PATHS)
def test_without_a_home_variable_the_user_database_counts(
    value: str | None, bare: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_home(value, monkeypatch)
    assert user_home() == Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert default_home().is_absolute()


@pytest.mark.usefixtures("bare")
def test_relative_folders_of_the_specification_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/ann")
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    monkeypatch.setenv("XDG_CONFIG_HOME", "")
    assert default_home() == Path("/people/ann/.local/share/peer")
    assert default_path() == Path("/people/ann/.config/peer/config.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert default_path() == Path("/config/peer/config.toml")


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("value", NO_PATHS)
def test_a_user_without_any_home_needs_to_name_one(
    value: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_home(value, monkeypatch)
    monkeypatch.chdir(tmp_path)
    for words in (["id", "show"], ["status"], ["id", "show", "--home", "~/home"], ["uninstall", "--yes"]):
        ended = CliRunner().invoke(peer, words)
        assert isinstance(ended.exception, HomeUnusable), ended.exception
        assert "--home DIR" in ended.exception.fix
    assert CliRunner().invoke(peer, ["id", "show", "--home", str(tmp_path / "home")]).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.usefixtures("nobody")
def test_a_configuration_that_was_named_is_not_left_out() -> None:
    ended = CliRunner().invoke(peer, ["--config", "~/config.toml", "status", "--home", "x"])
    assert isinstance(ended.exception, HomeUnusable)


def test_a_user_that_does_not_exist_is_an_error_of_use() -> None:
    with pytest.raises(UsageError, match="no user no-such-user-here"):
        expand_user(Path("~no-such-user-here/home"))
    assert expand_user(Path(f"~{pwd.getpwuid(os.getuid()).pw_name}/x")) == Path(pwd.getpwuid(os.getuid()).pw_dir) / "x"


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ('"{}/home"', "quotation marks"),
        ("'{}/home'", "quotation marks"),
        ("{}/home\r", "carriage return"),
        ("$DATA/home", "a variable"),
        ("${{DATA}}/home", "a variable"),
    ],
)
def test_no_home_is_made_at_a_path_that_a_shell_should_have_read(
    value: str, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`docker run --env-file` and systemd pass lines of a file unchanged. A home at such a path would get a new key."""
    monkeypatch.chdir(tmp_path)
    done = CliRunner(env={"PEER_HOME": value.format(tmp_path)}).invoke(peer, ["id", "show"])
    assert isinstance(done.exception, UsageError)
    assert left in done.exception.found
    assert not list(tmp_path.iterdir())


def test_a_folder_of_an_odd_name_that_is_there_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("$odd").mkdir()
    assert expand_user(Path("$odd")) == Path("$odd")
    with pytest.raises(UsageError):
        expand_user(Path("$odder"))
