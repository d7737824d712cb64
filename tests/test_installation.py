"""The command lines that install packages for this interpreter, however the program was installed."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import peer
from peer import installation
from peer.cli.main import peer as program
from peer.errors import ModelError, for_shell
from peer.installation import install_command, install_extras, missing_from, remove_command, requirements_of


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process appear to run in a virtual environment whose path contains a space."""
    prefix = tmp_path / "my envs" / "peer"
    prefix.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    return prefix


def test_a_virtual_environment_uses_its_own_pip(environment: Path) -> None:
    words = shlex.split(install_command(["tokenizers>=0.22", "transformers>=5.0"]))
    assert words == [f"{environment}/bin/python", "-m", "pip", "install", "tokenizers>=0.22", "transformers>=5.0"]
    assert "--force-reinstall --no-deps hivemind" in install_command(["hivemind"], again=True, alone=True)
    assert shlex.split(remove_command())[1:] == ["-m", "pip", "uninstall", "peer-swarm"]


def test_an_environment_of_uv_has_no_pip(environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (environment / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.0\n")
    monkeypatch.setattr(installation.util, "find_spec", lambda name: None)
    words = shlex.split(install_command(["torch<2.15,>=2.13"], again=True))
    assert words == [
        *("uv", "pip", "install", "--python", f"{environment}/bin/python", "--reinstall", "torch<2.15,>=2.13")
    ]
    assert shlex.split(remove_command())[:3] == ["uv", "pip", "uninstall"]


def test_pipx_and_uv_tools_name_their_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "pipx" / "venvs" / "peer-swarm"))
    assert install_command(["pyarrow>=20"]) == "pipx runpip peer-swarm install 'pyarrow>=20'"
    assert remove_command() == "pipx uninstall peer-swarm"
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "uv" / "tools" / "peer-swarm"))
    assert remove_command() == "uv tool uninstall peer-swarm"


def test_a_users_own_installation_stays_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    monkeypatch.setattr(installation.site, "getusersitepackages", lambda: str(Path(peer.__file__).parents[1]))
    monkeypatch.setattr(installation.sysconfig, "get_path", lambda name: str(tmp_path))
    assert shlex.split(install_command(["x"]))[1:] == ["-m", "pip", "install", "--user", "x"]
    (tmp_path / "EXTERNALLY-MANAGED").write_text("")
    assert "--user --break-system-packages" in install_command(["x"])


def test_all_missing_extras_come_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = requirements_of("hf", "data")
    assert [re.split("[<>=]", one)[0] for one in wanted] == ["tokenizers", "transformers", "pyarrow", "zstandard"]
    monkeypatch.setattr(installation, "_is_installed", lambda requirement: requirement.startswith("transformers"))
    assert missing_from("hf", "data") == [one for one in wanted if not one.startswith("transformers")]
    assert shlex.split(install_extras("hf", "data"))[-3:] == missing_from("hf", "data")


def test_a_missing_package_is_reported_before_torch_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "_is_installed", lambda requirement: False)
    monkeypatch.setitem(sys.modules, "peer.node.new_run", None)  # it loads torch, and cannot be imported now
    given = tmp_path / "given.json"
    given.write_text("{}")
    words = ["manifest", "new", f"{tmp_path}/run.toml", "--model", str(given), "--tokenizer", str(given)]
    ended = CliRunner().invoke(program, [*words, "--home", str(tmp_path)])
    assert isinstance(ended.exception, ModelError), ended.exception
    assert ended.exception.found.endswith("which are not installed")
    assert shlex.split(ended.exception.fix)[-2:] == requirements_of("hf")


BEFORE_A_PATH = re.compile(
    r"(--home|--data|--identity-path|--tokenizer|chmod \S+|chown -R \S*|manifest (sign|amend|delegate|new)|"
    r"peer bootstrap|peer export) $"
)


def unquoted(text: str) -> list[str]:
    """Return the values used as a path in a message's command line that are not quoted for the shell."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.JoinedStr):
            continue
        before = ""
        for part in node.values:
            if isinstance(part, ast.Constant):
                before += str(part.value)
                continue
            value = ast.unparse(part.value) if isinstance(part, ast.FormattedValue) else ""
            if BEFORE_A_PATH.search(before) and "for_shell(" not in value and "quote(" not in value:
                found.append(value)
            before += "x"
    return found


def test_paths_of_commands_in_messages_are_quoted() -> None:
    root = Path(peer.__file__).parent
    found = {str(path.relative_to(root)): unquoted(path.read_text()) for path in root.rglob("*.py")}
    assert {name: values for name, values in found.items() if values} == {
        "cli/data.py": ["made"],  # quoted a line above
        "lab/localswarm/plan.py": ["min(strangers)"],  # a number
    }
    assert unquoted('f"Run: chmod 600 {path} now"') == ["path"]
    assert for_shell(Path("my run.toml")) == "'my run.toml'"
