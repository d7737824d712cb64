"""Findings about the home. The checks must not create anything in it."""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path

import pytest

from peer.identity import Identity, load_or_create
from peer.node.doctor import home as checks
from peer.node.doctor.finding import Severity
from peer.node.doctor.home import RunningDaemon, beside, home, key, nearest, running
from peer.observe.status.notices import read_status

RUN = "ab" * 32


def test_a_home_of_ones_own_is_fine(tmp_path: Path) -> None:
    assert home(tmp_path).severity is Severity.OK


def test_a_home_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    found = home(tmp_path / "a" / "b")
    assert found.severity is Severity.OK
    assert "will make" in found.measured
    assert list(tmp_path.iterdir()) == []
    assert nearest(tmp_path / "a" / "b") == tmp_path


def test_a_home_of_another_user_is_an_error_that_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    tmp_path.chmod(0o700)
    found = home(tmp_path, me=54321)
    assert found.severity is Severity.ERROR
    assert f"{tmp_path} belongs to " in found.measured
    assert "(mode 700), and user 54321 cannot write there" in found.measured
    assert found.fix == f"Run: sudo chown -R 54321 {tmp_path}   or choose another --home."


def test_an_open_home_is_no_matter_of_chmod_where_that_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o777)
    assert "chmod go-w" in home(tmp_path).fix
    real = os.fstat
    monkeypatch.setattr(
        os, "fstat", lambda descriptor: os.stat_result(((found := real(descriptor))[0] | 0o777, *found[1:]))
    )
    found = home(tmp_path)
    assert (found.severity, "chmod go-w" in found.fix) == (Severity.ERROR, False)
    assert "local disk" in found.fix


def test_a_home_of_another_user_that_can_be_written_is_a_warning(tmp_path: Path) -> None:
    assert home(tmp_path, me=54321).severity is Severity.WARNING


def test_a_home_that_others_may_write_to_is_a_warning(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    assert home(tmp_path).fix == f"Run: chmod go-w {tmp_path}"


def test_a_file_in_place_of_a_home_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    found = home(tmp_path / "home")
    assert found.severity is Severity.ERROR
    assert "is not a folder" in found.measured


def test_a_key_is_read_and_none_is_made(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    assert "none yet" in key(path).measured
    assert not path.exists()
    assert load_or_create(path).peer_id in key(path).measured


def test_a_key_that_others_can_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "identity.key"
    path.write_bytes(Identity.generate().to_bytes())
    path.chmod(0o644)
    assert key(path).severity is Severity.ERROR
    assert key(path).fix == f"Run: chmod 600 {path}"


def test_no_daemon_runs_in_an_empty_home(tmp_path: Path) -> None:
    assert asyncio.run(running(tmp_path)) is None
    assert asyncio.run(running(tmp_path / "nowhere")) is None
    assert list(tmp_path.iterdir()) == []


def test_a_lock_without_an_answer_is_a_daemon_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("4711\n")
    assert asyncio.run(running(tmp_path)) is None
    with (tmp_path / "lock").open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert asyncio.run(running(tmp_path)) == RunningDaemon("4711", None)


def test_a_daemon_that_answers_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(path: Path, command: str, timeout_s: float) -> dict[str, str]:
        return {"run": "tiny", "run_id": RUN}

    monkeypatch.setattr(checks, "send_command", answer)
    (tmp_path / "lock").write_text("4711\n")
    found = asyncio.run(running(tmp_path))
    assert found is not None
    assert "process 4711 of this home takes part in run tiny" in beside(found, RUN).measured


@pytest.mark.parametrize(
    ("status", "run", "severity"),
    [
        ({"run": "tiny", "run_id": RUN}, RUN, Severity.OK),
        ({"run": "tiny", "run_id": RUN}, "", Severity.OK),
        ({"run": "tiny", "run_id": RUN}, "cd" * 32, Severity.WARNING),
        (None, RUN, Severity.WARNING),
    ],
)
def test_a_daemon_of_another_run_or_without_a_word_is_a_warning(
    status: dict[str, str] | None, run: str, severity: Severity
) -> None:
    assert beside(RunningDaemon("4711", status and read_status(status)), run).severity is severity
