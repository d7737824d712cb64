"""The service: its files, checked by real parsers; installing, inspecting and removing it with a fake systemctl; and
uninstalling, which deletes only files of `peer`."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peer.cli import printing
from peer.cli.main import peer
from peer.errors import HomeBusy, HomeUnusable, PeerError, ServiceUnavailable, UsageError
from peer.node.leaving.plan import EXCHANGE_LEAST_S, EXCHANGE_MOST_S
from peer.run.home import Home, holder_of
from peer.run.ticket import Ticket
from peer.service.plan import STOP_S, ServicePlan, name_of, useless_retries
from peer.service.systemd import Systemd, quoted
from peer.service.uninstall import OWN, contents_of
from peer.web.token import FILE as WEB_TOKEN
from tests.golden import freeze

ADDRESS = "/ip4/192.0.2.7/tcp/4001/p2p/12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
SYSTEMCTL = """\
#!/bin/sh
shift
echo "$@" >> {folder}/asked
case $1 in
    show) cat {folder}/facts ;;
esac
"""
RUNS = "LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nMainPID=4711\nNRestarts=2\n"
ENDED = "LoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=enabled\nMainPID=0\nExecMainStatus=18\n"


class Machine:
    """A user's home, with a systemctl that records its calls."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.systemctl = folder / "bin" / "systemctl"
        self.systemctl.parent.mkdir()
        self.systemctl.write_text(SYSTEMCTL.format(folder=folder))
        self.systemctl.chmod(0o755)
        self.says("LoadState=not-found\n")
        self.unit = folder / "config" / "systemd" / "user" / "peer.service"
        self.home = folder / "data" / "peer"

    def says(self, facts: str) -> None:
        (self.folder / "facts").write_text(facts)

    def asked(self) -> list[str]:
        asked = self.folder / "asked"
        lines = asked.read_text().splitlines() if asked.exists() else []
        asked.unlink(missing_ok=True)
        return [line for line in lines if not line.startswith("show")]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    for name, value in {"CONFIG": "config", "DATA": "data"}.items():
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / value))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{made.systemctl.parent}{os.pathsep}{os.environ['PATH']}")
    return made


@pytest.fixture
def ticket() -> str:
    return Ticket(b"\x07" * 32, (ADDRESS,)).encode()


def call(*arguments: str) -> Result:
    return CliRunner().invoke(peer, arguments)


def done(*arguments: str) -> str:
    result = call(*arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def fails(*arguments: str) -> PeerError:
    error = call(*arguments).exception
    assert isinstance(error, PeerError), error
    return error


def plan(tmp_path: Path) -> ServicePlan:
    odd = tmp_path / 'a "home" of 5% $ÄÖ'
    odd.mkdir()
    return ServicePlan("peer", odd, odd / "service.ticket", "/usr/bin/python3", odd / "config.toml")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd to read the unit with")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "peer.service"
    unit.write_bytes(Systemd().text(plan(tmp_path)))
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=180
    )
    assert (verified.returncode, [line for line in verified.stderr.splitlines() if "peer.service" in line]) == (0, [])


def test_systemd_gets_every_word_as_it_is() -> None:
    assert quoted('5% of $HOME \\ "x"') == '"5%% of $$HOME \\\\ \\"x\\""'


def test_no_retry_that_the_table_calls_useless(tmp_path: Path) -> None:
    codes = useless_retries()
    assert {2, 17, 18, 21, 130} <= set(codes)
    assert not {0, 1, 30, 33, 35, 41} & set(codes)
    assert f"RestartPreventExitStatus={' '.join(map(str, codes))}\n" in Systemd().text(plan(tmp_path)).decode()


def test_the_drain_has_the_time_that_it_takes() -> None:
    assert STOP_S > 3 * (EXCHANGE_LEAST_S + EXCHANGE_MOST_S)


@pytest.mark.processes
@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_without_systemd_nothing_is_written_and_the_fix_is_another_way(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """As on macOS, or on a Linux with another service manager."""
    machine.systemctl.unlink()
    monkeypatch.setenv("PATH", str(machine.systemctl.parent))
    monkeypatch.setattr(sys, "platform", system)
    before = sorted(machine.folder.rglob("*"))
    error = fails("service", "install")
    assert (type(error), error.exit_code, error.found) == (
        ServiceUnavailable,
        51,
        "there is no systemctl on this machine",
    )
    assert "tmux" in error.fix
    assert "LaunchAgent" in error.fix
    assert "is not installed" in done("service", "status")
    assert "is not installed" in done("service", "remove")
    assert sorted(machine.folder.rglob("*")) == before


def test_every_home_has_a_service_of_its_own(machine: Machine) -> None:
    assert name_of(machine.home) == "peer"
    other = name_of(machine.folder / "other")
    assert other.startswith("peer-")
    assert other != name_of(machine.folder / "third")


@pytest.mark.processes
def test_installing_twice_is_installing_once(machine: Machine, ticket: str) -> None:
    told = done("service", "install", ticket, "--yes")
    assert str(machine.unit) in told
    assert machine.asked()[-3:] == ["daemon-reload", "enable --quiet peer.service", "restart peer.service"]
    kept = machine.home / "service.ticket"
    assert kept.read_text() == f"{ticket}\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert ticket not in machine.unit.read_text()  # other users see a command's arguments
    assert "--yes" in machine.unit.read_text(), "a service can ask nobody"
    machine.says(RUNS)
    assert "it runs already" in done("service", "install", "--yes")
    assert machine.asked() == []
    done("service", "install", "--yes", "--restart")
    assert machine.asked()[-1] == "restart peer.service"


@pytest.mark.processes
def test_a_service_asks_nobody(machine: Machine, ticket: str) -> None:
    error = fails("service", "install", ticket)
    assert "not agreed" in error.found
    assert not machine.unit.exists()
    folder = Home(machine.home).run(Ticket.decode(ticket).run_id).path
    (folder / "contract.json").write_text("{}")
    done("service", "install", ticket)


def started(machine: Machine) -> str:
    """Return the unit's line that starts the peer."""
    return next(line for line in machine.unit.read_text().splitlines() if line.startswith("ExecStart="))


@pytest.mark.processes
@pytest.mark.parametrize("between", [["--"], []])
def test_options_of_join_go_to_the_service_and_are_kept(machine: Machine, ticket: str, between: list[str]) -> None:
    told = done("service", "install", "--yes", ticket, *between, "--max-upload", "1MB", "--when", "idle,plugged-in")
    assert started(machine).endswith('"--plain" "--yes" "--max-upload" "1MB" "--when" "idle,plugged-in"')
    kept = machine.home / "service.options"
    assert str(kept) in told
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    before = machine.unit.read_text()
    done("service", "install", "--yes")
    assert machine.unit.read_text() == before
    done("service", "install", "--yes", *between, "--threads", "2")
    assert started(machine).endswith('"--plain" "--yes" "--threads" "2"')
    assert done("service", "install", "--yes", "--print") == machine.unit.read_text()
    done("service", "remove")
    assert list(machine.home.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "found", "fix"),
    [
        (["--max-uplod", "1MB"], "--max-upload", "peer join --help"),
        (["--max-upload", "fast"], "fast", "peer join --help"),
        (["--threads"], "requires an argument", "peer join --help"),
        (["extra"], "no option of peer join: extra", "--lan"),
        (["--invitation", "peerinv-secret"], "read by other users", "@/path"),
        (["--invitation=peerinv-secret"], "read by other users", "@/path"),
        (["--invitation", "@mine"], "the whole path of mine", "Write: --invitation @/"),
        (["--data", "texts"], "the whole path of texts", "Write: --data /"),
        (["--home=/tmp/x"], "cannot have --home", "before the ticket"),
        (["--leave-on-eof"], "cannot have --leave-on-eof", "no standard input"),
    ],
)
def test_an_option_that_no_service_can_have_is_refused(
    machine: Machine, ticket: str, options: list[str], found: str, fix: str
) -> None:
    error = fails("service", "install", "--yes", ticket, "--", *options)
    assert isinstance(error, UsageError)
    assert found in error.found
    assert fix in error.fix
    assert "peerinv-secret" not in f"{error.found} {error.fix}"
    assert machine.asked() == []
    assert not machine.unit.exists()


@pytest.mark.processes
def test_kept_options_that_cannot_be_read_are_told(machine: Machine, ticket: str) -> None:
    done("service", "install", "--yes", ticket, "--", "--lan")
    (machine.home / "service.options").write_text("{")
    assert "service.options cannot be read" in fails("service", "install", "--yes").found
    done("service", "install", "--yes", "--", "--lan")


@pytest.mark.processes
def test_state_and_last_end_are_told(machine: Machine, ticket: str) -> None:
    assert "not installed" in done("service", "status")
    done("service", "install", ticket, "--yes")
    machine.says(RUNS)
    report = json.loads(done("service", "status", "--json"))
    assert (report["running"], report["pid"], report["restarts"], report["exit_code"]) == (True, 4711, 2, None)
    machine.says(ENDED)
    assert "exit code 18: The run is over" in done("service", "status")


@pytest.mark.processes
def test_logs_are_the_daemons(machine: Machine, ticket: str) -> None:
    done("service", "install", ticket, "--yes")
    assert "no log yet" in fails("service", "logs").found
    Home(machine.home).run(Ticket.decode(ticket).run_id).log.write_text("one\ntwo\nthree\n")
    assert done("service", "logs", "--lines", "2") == "two\nthree\n"


@pytest.mark.processes
def test_removing_takes_its_own_files_alone(machine: Machine, ticket: str) -> None:
    done("service", "install", ticket, "--yes")
    machine.says(RUNS)
    machine.asked()
    done("service", "remove")
    assert machine.asked() == ["disable --quiet --now peer.service"]
    assert not machine.unit.exists()
    assert list(machine.home.iterdir()) == []
    machine.unit.write_text("[Unit]\nDescription=somebody else's\n")
    for command in (["install", ticket, "--yes"], ["remove"]):
        assert "was not made by" in fails("service", *command).found
    assert "somebody" in machine.unit.read_text()


@pytest.mark.processes
def test_without_a_service_manager_nothing_is_written(machine: Machine, ticket: str) -> None:
    machine.systemctl.write_text("#!/bin/sh\necho 'Failed to connect to bus: No medium found' >&2\nexit 1\n")
    error = fails("service", "install", ticket, "--yes")
    assert isinstance(error, ServiceUnavailable)
    assert "No medium found" in error.found
    assert not machine.unit.exists()
    assert not machine.home.exists()
    assert done("service", "install", "--print").startswith("# Written by `peer service install`")


@pytest.mark.processes
def test_a_daemon_in_the_home_is_left_alone(machine: Machine, ticket: str) -> None:
    with Home(machine.home).lock():
        assert holder_of(machine.home) == str(os.getpid())
        for command in (["service", "install", ticket, "--yes"], ["uninstall", "--yes"]):
            assert isinstance(fails(*command), HomeBusy)
    assert holder_of(machine.home) is None
    assert machine.home.exists()


@pytest.mark.processes
def test_variables_of_the_shell_are_told(machine: Machine, ticket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEER_THREADS", "2")
    assert "PEER_THREADS of this shell does not reach the service" in done("service", "install", ticket, "--yes")


# -- uninstalling ------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_all_that_is_ours_goes_and_nothing_else(machine: Machine, ticket: str) -> None:
    done("service", "install", ticket, "--yes")
    done("config", "set", "join.threads", "2", "--config", str(machine.folder / "config" / "peer" / "config.toml"))
    precious = machine.folder / "precious"
    precious.mkdir()
    (precious / "thesis").write_text("x" * 1000)
    with Home(machine.home).lock():
        pass
    folder = Home(machine.home).run(b"\x07" * 32).path
    (folder / "link").symlink_to(precious)
    (machine.home / "artifacts").symlink_to(precious)
    (machine.home / "notes.txt").write_text("mine")
    told = done("uninstall", "--yes")
    assert "notes.txt   (not ours)" in told
    assert (precious / "thesis").read_text() == "x" * 1000
    assert [path.name for path in machine.home.iterdir()] == ["notes.txt"]
    assert not machine.unit.exists()
    assert not (machine.folder / "config" / "peer" / "config.toml").exists()
    assert "peer-swarm" in told.splitlines()[-1]


@pytest.mark.parametrize("swarm", ["swarm_pair", "swarm_group"])
def test_every_name_that_daemons_write_into_a_home_is_known(swarm: str) -> None:
    written = {key.split(": ")[1].split("/")[0] for key in freeze.frozen(swarm)["home"] if key.startswith("peer: ")}
    assert "runs" in written
    assert {*written, WEB_TOKEN} <= OWN


def test_it_asks_first(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with Home(machine.home).lock():
        pass
    assert "add --yes" in fails("uninstall").fix, "nobody can be asked"
    assert (machine.home / "lock").exists()
    monkeypatch.setattr(printing, "is_interactive", lambda: True)
    result = CliRunner().invoke(peer, ["uninstall"], input="n\n")
    assert "Delete these" in result.output
    assert (machine.home / "lock").exists()


def test_a_folder_that_is_no_home_and_a_link_to_one_stay(machine: Machine, tmp_path: Path) -> None:
    other = tmp_path / "documents"
    other.mkdir()
    (other / "letter").write_text("x")
    assert contents_of(other) == ([], [other / "letter"])
    done("uninstall", "--yes", "--home", str(other))
    assert (other / "letter").exists()
    (tmp_path / "link").symlink_to(other)
    with pytest.raises(HomeUnusable):
        contents_of(tmp_path / "link")


def test_a_folder_of_that_name_is_no_home_without_a_key_or_lock(tmp_path: Path) -> None:
    """A folder `runs` may belong to another program."""
    (tmp_path / "runs").mkdir()
    assert contents_of(tmp_path) == ([], [tmp_path / "runs"])
