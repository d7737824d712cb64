"""Standard streams that are closed, full, without a reader, or whose encoding lacks a character."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peer.errors import OutputLost

pytestmark = pytest.mark.processes

STREAMS = "from peer.observe.output import *; prepare_streams(); import os, sys; "


def shell(line: str, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line in the shell, in which $PEER is the command."""
    values = {"PEER": f"{sys.executable} -m peer", "PYTHON": sys.executable, "PEER_HOME": str(home)}
    return subprocess.run(
        ["sh", "-c", line], env={**os.environ, **values, **environment}, capture_output=True, text=True, timeout=180
    )


@pytest.mark.parametrize("line", ["id show", "--help", "--version", "ticket --help"])
@pytest.mark.parametrize("where", ["> /dev/full", ">&-"])
def test_an_answer_that_is_lost_is_an_error(line: str, where: str, tmp_path: Path) -> None:
    ended = shell(f"$PEER {line} {where}", tmp_path)
    assert ended.returncode == OutputLost.exit_code, ended.stderr
    assert ended.stderr.startswith("error: cannot write to standard output")
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", ["id show", "--help"])
def test_a_reader_that_has_enough_is_no_error(line: str, tmp_path: Path) -> None:
    ended = shell(f"{{ $PEER {line}; echo $? >&2; }} | :", tmp_path)
    assert ended.stderr == "0\n"


def test_errors_that_cannot_be_written_keep_their_code(tmp_path: Path) -> None:
    assert [shell(f"$PEER nosuch 2{where}", tmp_path).returncode for where in ("> /dev/full", ">&-")] == [2, 2]


@pytest.mark.parametrize("encoding", ["latin-1", "ascii", "cp1252"])
def test_help_shows_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    assert "\u2026" in shell("$PEER join --help", tmp_path, PYTHONIOENCODING="utf-8").stdout
    command = [sys.executable, "-m", "peer", "join", "--help"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": encoding}, capture_output=True, timeout=180)
    assert ended.returncode == 0, ended.stderr
    assert b"Example: peer join" in ended.stdout


def test_no_file_takes_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    program = f"{STREAMS} print(os.open(os.devnull, os.O_RDONLY), sys.stdin.read() == '', file=sys.stderr)"
    ended = shell(f'$PYTHON -c "{program}" <&- >&-', tmp_path)
    assert ended.stderr == "3 True\n"
    assert shell(f'$PYTHON -c "{program}" <&- >&- 2>&-', tmp_path).returncode == 0


def test_a_non_blocking_pipe_takes_all_of_a_long_text() -> None:
    program = f"{STREAMS} os.set_blocking(1, False); print('x' * 1_000_000)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=180)
    assert (ended.returncode, len(ended.stdout), ended.stderr) == (0, 1_000_001, b"")


def test_a_daemon_goes_on_without_a_line_that_is_lost() -> None:
    program = f"{STREAMS} from peer.cli.run import say; say('lost'); print('on', file=sys.stderr)"
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, "-c", program], stdout=full, stderr=subprocess.PIPE, timeout=180)
    assert (ended.returncode, ended.stderr) == (0, b"on\n")
