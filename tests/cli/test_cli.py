"""The command line in a separate process: exit codes are returned, errors are printed with their fix, help is fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.main import COMMANDS, peer
from peer.errors import HomeBusy, IdentityError, PeerError, UsageError
from peer.identity import load_or_create
from peer.run.home import Home
from peer.service.uninstall import contents_of


def call(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "peer", *arguments], cwd=cwd, capture_output=True, text=True, timeout=180, check=False
    )


@pytest.mark.processes
def test_errors_are_printed_with_their_fix_and_their_code_is_returned(tmp_path: Path) -> None:
    for arguments, code, words in [
        (("join", "peernonsense"), 21, "fix: Copy the complete ticket again"),
        (("status", "--home", str(tmp_path)), 50, "fix:"),
        (("join",), 2, "Usage"),
    ]:
        result = call(*arguments, cwd=tmp_path)
        assert result.returncode == code, (arguments, result)
        assert words in result.stderr
        assert "Traceback" not in result.stderr


def test_an_option_that_cannot_be_read_is_refused_with_its_form() -> None:
    with pytest.raises(UsageError) as refused:
        CliRunner().invoke(peer, ["swarm", "--kill", "x"], catch_exceptions=False)
    assert "K@SECONDS" in refused.value.fix


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = CliRunner().invoke(peer, [name, "--help"])
    assert result.exit_code == 0, result.output
    text = result.output
    if "Commands:" in text:
        subcommands = peer.get_command(None, name).commands  # type: ignore[arg-type, union-attr]
        text = "".join(CliRunner().invoke(peer, [name, sub, "--help"]).output for sub in subcommands)
    assert "Example: peer" in text


def test_manifest_from_new_to_show(tmp_path: Path) -> None:
    runner, home, file = CliRunner(), str(tmp_path / "home"), str(tmp_path / "run.toml")
    assert runner.invoke(peer, ["manifest", "new", file, "--home", home]).exit_code == 0
    assert "ok" in runner.invoke(peer, ["manifest", "check", file]).output
    shown = json.loads(runner.invoke(peer, ["manifest", "show", file, "--json"]).output)
    assert shown["parameters"] == 217_664
    made = runner.invoke(peer, ["id", "show", "--home", home, "--json"])
    assert json.loads(made.output)["peer_id"] == shown["operator"]
    address = f"/ip4/127.0.0.1/tcp/4810/p2p/{shown['operator']}"
    ticket = runner.invoke(peer, ["ticket", "new", file, "--initial-peers", address]).output.strip()
    opened = json.loads(runner.invoke(peer, ["ticket", "show", ticket, "--json"]).output)
    assert opened == {"run_id": shown["run_id"], "addresses": [address]}


def test_an_edited_manifest_is_refused_until_signed_again(tmp_path: Path) -> None:
    runner, home, file = CliRunner(), str(tmp_path / "home"), tmp_path / "run.toml"
    runner.invoke(peer, ["manifest", "new", str(file), "--home", home])
    file.write_text(file.read_text().replace("seed = 0", "seed = 1"))
    refused = runner.invoke(peer, ["manifest", "check", str(file)])
    assert isinstance(refused.exception, PeerError)
    assert "changed after it was signed" in refused.exception.found
    assert runner.invoke(peer, ["manifest", "sign", str(file), "--home", home]).exit_code == 0
    assert runner.invoke(peer, ["manifest", "check", str(file)]).exit_code == 0


def test_a_ticket_for_a_node_that_does_not_run_yet(tmp_path: Path) -> None:
    runner, home, file = CliRunner(), str(tmp_path / "home"), str(tmp_path / "run.toml")
    runner.invoke(peer, ["manifest", "new", file, "--home", home])
    key = json.loads(runner.invoke(peer, ["id", "show", "--home", home, "--json"]).output)
    where = "/dns4/bootstrap/tcp/4810"
    made = runner.invoke(peer, ["ticket", "new", file, "--address", where, "--identity-path", key["path"]])
    kept = tmp_path / "ticket"
    kept.write_text(made.output)
    opened = json.loads(runner.invoke(peer, ["ticket", "show", f"@{kept}", "--json"]).output)
    assert opened["addresses"] == [f"{where}/p2p/{key['peer_id']}"]


def test_a_ticket_for_a_node_needs_its_key_and_its_address(tmp_path: Path) -> None:
    runner, home, file = CliRunner(), str(tmp_path / "home"), str(tmp_path / "run.toml")
    runner.invoke(peer, ["manifest", "new", file, "--home", home])
    absent = tmp_path / "absent.key"
    result = runner.invoke(peer, ["ticket", "new", file, "--identity-path", str(absent), "--address", "/dns4/x/tcp/1"])
    assert isinstance(result.exception, IdentityError)
    assert not absent.exists()  # no node runs with a new key, so a ticket with it would lead to no peer
    for half in (("--identity-path", f"{home}/identity.key"), ("--address", "/dns4/x/tcp/1")):
        assert isinstance(runner.invoke(peer, ["ticket", "new", file, *half]).exception, UsageError)


@pytest.mark.parametrize(
    "report",
    [
        {"peers": [{"peer_id": "12D3a", "status": "training"}, {"peer_id": "12D3b"}]},
        {"view": {"peers": [{"peer_id": "12D3a", "state": "training"}, {"peer_id": "12D3b"}]}},
    ],
)
def test_status_shows_whole_ids_to_be_copied(report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(*_: object) -> dict[str, Any]:
        return report

    monkeypatch.setattr("peer.node.control.send_command", ask)
    assert CliRunner().invoke(peer, ["status", "--ids"]).output == "12D3a  training\n12D3b\n"


def test_a_home_gets_a_new_key_and_keeps_the_former_one(tmp_path: Path) -> None:
    home = tmp_path / "copied home"
    former = load_or_create(home / "identity.key")
    (home / "runs").mkdir()
    made = json.loads(CliRunner().invoke(peer, ["id", "new", "--home", str(home), "--json"]).stdout)
    assert made["peer_id"] == load_or_create(home / "identity.key").peer_id != former.peer_id
    assert load_or_create(home / f"identity.key.{former.peer_id[-8:]}").peer_id == former.peer_id
    assert (home / "runs").is_dir()
    assert f"identity.key.{former.peer_id[-8:]}" in {doomed.path.name for doomed in contents_of(home)[0]}
    elsewhere = tmp_path / "keys" / "my.key"
    CliRunner().invoke(peer, ["id", "new", "--home", str(home), "--identity-path", str(elsewhere)])
    assert load_or_create(elsewhere).peer_id not in (former.peer_id, made["peer_id"])
    with Home(home).lock():
        busy = CliRunner().invoke(peer, ["id", "new", "--home", str(home)])
    assert isinstance(busy.exception, HomeBusy)
    assert load_or_create(home / "identity.key").peer_id == made["peer_id"]
