"""Every option of every command can be set by the environment and by the file, and reports where its value comes
from."""

from __future__ import annotations

import codecs
import json
import os
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from peer.cli import main as entry
from peer.cli.main import peer
from peer.config.edit import set_value
from peer.config.file import read_config
from peer.config.options import (
    NO_OPTIONS,
    OTHER_VARIABLES,
    commands_of,
    defaults_for,
    entries_for,
    options_of,
    variable_of,
)
from peer.errors import UsageError

ROOT = Path(__file__).parents[2]
COMMANDS = dict(commands_of(peer, click.Context(peer, info_name="peer")))


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(peer, arguments, env=environment)


def shown(*arguments: str, **environment: str) -> dict[str, tuple[object, str, str]]:
    result = call(*arguments, "--json", **environment)
    assert result.exit_code == 0, (result.output, result.exception)
    values = json.loads(result.stdout)["values"]
    return {key: (one["value"], one["source"], one["where"]) for key, one in values.items()}


def refused(file: Path, text: str, *arguments: str) -> None:
    file.write_text(text)
    with pytest.raises(SystemExit) as caught:
        entry.main(["--config", str(file), *arguments])
    assert caught.value.code == 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_environment_gives_every_option(path: tuple[str, ...]) -> None:
    command = COMMANDS[path]
    context = click.Context(command, info_name=path[-1])
    given = {one.name for one in command.params if isinstance(one, click.Option)}
    for flag, option in options_of(command).items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(str(option.envvar or variable_of(flag)), "1")
            value, source = option.consume_value(context, {})
        assert (source, value) == (click.core.ParameterSource.ENVIRONMENT, ["1"] if option.multiple else "1") or (
            option.is_flag and value is True
        ), flag
        given.discard(option.name)
    assert {one.replace("_", "-") for one in given if one} <= NO_OPTIONS


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_file_gives_every_option(path: tuple[str, ...], file: Path) -> None:
    command = COMMANDS[path]
    options = options_of(command)
    samples = {flag: "true" if one.is_flag else '["a"]' if one.multiple else '"a"' for flag, one in options.items()}
    file.write_text(f"[{'.'.join(path)}]\n" + "".join(f"{flag} = {text}\n" for flag, text in samples.items()))
    read = read_config(file)
    context = click.Context(command, info_name=path[-1], default_map=defaults_for(read, path, command))
    for line, option in enumerate(options.values(), 2):
        value, source = option.consume_value(context, {})
        path_or_text = str(file.parent / "a") if isinstance(option.type, click.Path) else "a"
        assert source is click.core.ParameterSource.DEFAULT_MAP
        assert value == (True if option.is_flag else (path_or_text,) if option.multiple else path_or_text)
        assert read.where(entries_for(read, path, command)[list(options)[line - 2]]) == f"{file}:{line}"


def test_the_nine_older_names_are_kept() -> None:
    names = {variable_of(flag) for flag in options_of(COMMANDS[("join",)])}
    older = "HOME IDENTITY_PATH INITIAL_PEERS HOST_MADDRS ANNOUNCE_MADDRS DAILY_UPLOAD MONTHLY_UPLOAD METRICS_HOST"
    assert {f"PEER_{name}" for name in f"{older} METRICS_PORT MAX_UPLOAD THREADS".split()} <= names


def test_a_flag_comes_before_the_environment_before_the_section_before_the_shared_key(file: Path) -> None:
    file.write_text('home = "a"\nthreads = 1\nport = 1\n[join]\nthreads = 2\nport = 2\n')
    values = shown("--config", str(file), "config", "show", PEER_PORT="3")
    assert values["home"] == (str(file.parent / "a"), "config file", f"{file}:1")
    assert values["threads"] == ("2", "config file", f"{file}:5")
    assert values["port"] == ("3", "environment", "PEER_PORT")
    assert values["device"] == ("auto", "default", "")
    told = call("--config", str(file), "join", "x", "--threads", "many").output
    assert "'many'" in told


def test_a_command_works_by_the_file(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "from the file"
    file.write_text(f'home = "{home}"\n')
    for arguments in (("--config", str(file), "id", "show"), ("id", "show", "--config", str(file))):
        assert str(home) in call(*arguments).output
    assert str(home) in call("id", "show", PEER_CONFIG=str(file)).output
    assert str(tmp_path / "flag") in call("--config", str(file), "id", "show", "--home", str(tmp_path / "flag")).output


def test_a_byte_order_mark_is_skipped(tmp_path: Path, file: Path) -> None:
    home = tmp_path / "from the file"
    file.write_bytes(codecs.BOM_UTF8 + f'home = "{home}"\n'.encode())
    assert str(home) in call("--config", str(file), "id", "show").output


@pytest.mark.parametrize(
    ("text", "arguments", "words"),
    [
        ("[join]\nmax-uplaod = 1\n", ("join", "x"), ["config.toml:2", "Did you mean max-upload?"]),
        ("treads = 1\n", ("status",), ["config.toml:1", "Did you mean threads?"]),
        ("\n[jion]\nthreads = 1\n", ("status",), ["config.toml:3", "Did you mean [join]?"]),
        ("[join]\nno-lan = true\n", ("join", "x"), ["Write lan = false."]),
        ("[join]\nthreads = true\n", ("join", "x"), ["config.toml:2", "not a number"]),
        ("[join]\nlan = 'yes'\n", ("join", "x"), ["true or false"]),
        ("[join]\nthreads = [1]\n", ("join", "x"), ["not a list"]),
        ("[join]\nthreads = 'many'\n", ("join", "x"), ["'many'", "config file", "config.toml:2"]),
        ("[join]\nthreads = 1\nthreads = 2\n", ("join", "x"), ["no TOML", "threads = 2"]),
        ("a = " + 5000 * "[", ("status",), ["no TOML"]),
        ("[join]\nmax-upload = 1\nmax_upload = 2\n", ("join", "x"), ["given twice"]),
    ],
)
def test_a_wrong_file_is_refused_with_its_line(
    text: str, arguments: tuple[str, ...], words: list[str], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(file, text, *arguments)
    told = capsys.readouterr().err
    assert all(word in told for word in words), told


def test_a_file_that_is_nested_too_deep_is_not_changed(file: Path) -> None:
    text = "a = " + 5000 * "["
    file.write_text(text)
    with pytest.raises(UsageError, match="no TOML"):
        set_value(file, (), "threads", 1)
    assert file.read_text() == text


def test_help_and_config_path_work_with_a_wrong_file(file: Path) -> None:
    file.write_text("treads = 1\n")
    assert call("--config", str(file), "join", "--help").exit_code == 0
    assert call("--config", str(file), "config", "path").output == f"{file}\n"


def test_a_wrong_variable_names_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_THREADS", "many")
    with pytest.raises(SystemExit):
        entry.main(["join", "x"])
    assert "environment PEER_THREADS" in capsys.readouterr().err


def test_a_variable_that_nothing_reads_is_told() -> None:
    result = call("config", "path", PEER_TREADS="1", PEER_THREADS="1")
    assert result.exit_code == 0
    assert result.stderr == "warning: nothing reads PEER_TREADS; did you mean PEER_THREADS?\n"


def test_the_variables_of_the_containers_are_known() -> None:
    """Otherwise every command in a container would warn about them."""
    scripts = "".join(path.read_text() for path in (ROOT / "docker").glob("*.sh"))
    given = re.findall(r"^ +(PEER_[A-Z_]+):", (ROOT / "docker" / "compose.yml").read_text(), re.MULTILINE)
    flags = {variable_of(flag) for command in COMMANDS.values() for flag in options_of(command)}
    assert {*re.findall(r"\bPEER_[A-Z_]+\b", scripts), *given} <= flags | OTHER_VARIABLES


def test_secrets_are_not_shown(file: Path) -> None:
    assert shown("config", "show", PEER_INVITATION="secret")["invitation"][0] == "(not shown)"
    assert shown("config", "show", PEER_INVITATION="@file")["invitation"][0] == "@file"


def test_a_device_is_not_replaced_and_a_link_is_followed(tmp_path: Path, file: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is no file"):
        set_value(tmp_path / "pipe", (), "threads", 1)
    assert (tmp_path / "pipe").is_fifo()
    (tmp_path / "link").symlink_to(file)
    set_value(tmp_path / "link", (), "threads", 1)
    assert (tmp_path / "link").is_symlink()
    assert file.read_text() == "threads = 1\n"


def test_setting_keeps_comments_and_refuses_what_cannot_be(file: Path) -> None:
    file.write_text('# mine\nhome = "a"  # here\n')
    for key, values in {"join.max_upload": ["1e6"], "join.lan": ["false"], "join.initial-peers": ["/a", "/b"]}.items():
        assert call("--config", str(file), "config", "set", key, *values).exit_code == 0
    text = file.read_text()
    assert text.startswith('# mine\nhome = "a"  # here\n')
    assert '[join]\nmax-upload = 1000000.0\nlan = false\ninitial-peers = ["/a", "/b"]\n' in text
    for key, value in (("join.treads", "1"), ("jion.threads", "1"), ("join.threads", "many"), ("join.lan", "perhaps")):
        assert call("--config", str(file), "config", "set", key, value).exit_code != 0
    assert file.read_text() == text
    call("--config", str(file), "config", "unset", "join.max-upload")
    assert "max-upload" not in file.read_text()


def test_a_swarm_does_not_take_the_home_of_a_peer(file: Path) -> None:
    file.write_text('home = "/somewhere"\n')
    found = read_config(file)
    assert found is not None
    assert "home" in entries_for(found, ("join",), COMMANDS["join",])
    assert "home" not in entries_for(found, ("swarm",), COMMANDS["swarm",])
    assert COMMANDS["swarm",].make_context("swarm", []).params["home"] is None
