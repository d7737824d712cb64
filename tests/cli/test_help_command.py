from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from peer.cli import help as command
from peer.cli import systems
from peer.cli.main import main, peer


def said(*arguments: str) -> str:
    result = CliRunner().invoke(peer, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_lists_every_page_with_its_title() -> None:
    text = said("help")
    assert "Tutorials:" in text
    assert "join-a-run" in text
    assert "What others learn of a volunteer" in text


def test_help_shows_a_section() -> None:
    text = said("help", "exit-codes", "21")
    assert "TicketError" in text
    assert "HomeBusy" not in text


def test_help_of_a_command_is_what_the_command_says_of_itself() -> None:
    assert said("help", "leave") == said("leave", "--help")


@pytest.mark.parametrize(("lines", "paged"), [(10, False), (1000, True)])
def test_a_page_longer_than_the_terminal_goes_through_a_pager(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lines: int, paged: bool
) -> None:
    shown: list[str] = []
    monkeypatch.setattr(command.click, "echo_via_pager", shown.append)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("LINES", "25")
    command._show("\n\n".join("word" for _ in range(lines)))
    assert bool(shown) is paged
    assert ("word" in capsys.readouterr().out) is not paged


# -- names that are none -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "meant"), [(["jion", "x"], "join"), (["statsu"], "status"), (["manifest", "chek"], "check")]
)
def test_an_unknown_command_is_answered_with_the_one_meant(
    capsys: pytest.CaptureFixture[str], arguments: list[str], meant: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert f"Did you mean {meant!r}?" in capsys.readouterr().err


# -- systems that peer does not run on ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("platform", "name"), [("win32", "Windows"), ("cygwin", "Cygwin"), ("freebsd14", "freebsd14")])
@pytest.mark.parametrize("arguments", [["--help"], ["join", "x"], ["status"], ["help"]])
def test_an_unsupported_system_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    platform: str,
    name: str,
    arguments: list[str],
) -> None:
    monkeypatch.setattr(systems.sys, "platform", platform)
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 19
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: peer does not run on {name}.")
    assert "WSL2" in line


@pytest.mark.processes
def test_the_system_is_looked_at_before_imports_that_fail_there() -> None:
    program = (
        "import sys\n"
        "for name in ('fcntl', 'resource', 'termios', 'pwd', 'grp', 'uvloop', 'hivemind', 'torch'):\n"
        "    sys.modules[name] = None\n"
        "from peer.cli.main import main\n"
        "sys.platform = 'win32'\n"
        "main(['join', 'x'])"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180, check=False)
    assert result.returncode == 19, result.stderr
    assert result.stderr.count("\n") == 1


# -- completion --------------------------------------------------------------------------------------------------------


def completed(*arguments: str) -> list[str]:
    *before, last = arguments
    return [item.value for item in ShellComplete(peer, {}, "peer", "_PEER_COMPLETE").get_completions(before, last)]


def test_commands_presets_and_topics_are_completed() -> None:
    assert completed("jo") == ["join"]
    for words in (("swarm",), ("manifest", "new"), ("plan",), ("simulate",)):
        assert completed(*words, "--preset", "streaming-d") == ["streaming-diloco"], words
    assert completed("help", "reach") == ["reachability"]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("shell", "files"),
    [
        ("bash", ["bash-completion/completions/peer", "bash-completion/completions/peer-swarm"]),
        ("zsh", ["zsh/site-functions/_peer", "zsh/site-functions/_peer-swarm"]),
        ("fish", ["fish/completions/peer.fish", "fish/completions/peer-swarm.fish"]),
    ],
)
def test_completion_is_installed_for_both_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: str, files: list[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("BASH_COMPLETION_USER_DIR", raising=False)
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    text = said("--install-completion")
    assert text == said("--install-completion", shell)
    for name in files:
        assert f"wrote {tmp_path / name}" in text
        assert "_PEER_COMPLETE=" in (tmp_path / name).read_text()


def test_a_shell_without_completion_is_told_those_that_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    error = CliRunner().invoke(peer, ["--install-completion"]).exception
    assert "bash, zsh, fish, and this shell is tcsh" in str(error)
