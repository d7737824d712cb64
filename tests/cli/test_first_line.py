"""`peer join` prints a first line at once, because importing its libraries takes seconds, and then each phase."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer import __version__
from peer.cli.main import peer
from peer.errors import DataError, PeerError, TicketError, UsageError
from peer.identity import Identity
from peer.run.options import PeerOptions
from peer.run.ticket import Ticket

ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
WORD = Ticket(b"r" * 32, (ADDRESS,)).encode()
HEAVY = {"torch", "hivemind", "grpc", "numpy", "pydantic", "rich", "cryptography"}
AT_FIRST_LINE = """
import os, sys
from peer.cli.main import main

class FirstLine:
    def write(self, text):
        print(text, *sys.modules, sep="\\n", file=sys.stderr, flush=True)
        os._exit(0)
    def flush(self): ...
    def isatty(self): return False

sys.stdout = FirstLine()
main(sys.argv[1:])
"""


@pytest.mark.processes
@pytest.mark.parametrize("words", [("join", WORD), ("bootstrap", "run.toml")], ids=lambda words: words[0])
def test_the_first_line_waits_for_no_library(words: tuple[str, str], tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", AT_FIRST_LINE, *words, "--home", str(tmp_path / "home")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=180)
    first, *modules = done.stderr.splitlines()
    assert f"peer {__version__}: " in first
    assert f"peer.cli.{words[0]}" in modules
    assert HEAVY & set(modules) == set()
    assert not (tmp_path / "home").exists()


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[PeerOptions]:
    """Collect the options of each daemon that would have been started."""
    started: list[PeerOptions] = []

    def run_daemon(main: Coroutine[Any, Any, int]) -> None:
        started.append(main.cr_frame.f_locals["options"])  # type: ignore[attr-defined]
        main.close()

    monkeypatch.setattr("peer.cli.run.run_daemon", run_daemon)
    return started


@pytest.mark.parametrize(
    "words",
    [
        [WORD],
        [f"peer join {WORD}"],
        ["$", "peer", "join", WORD],
        ["peer", "join", WORD[:30], WORD[30:], "--threads", "1"],
    ],
)
def test_a_pasted_line_joins(words: list[str], joined: list[PeerOptions], tmp_path: Path) -> None:
    result = CliRunner().invoke(peer, ["join", *words, "--home", str(tmp_path)])
    assert (result.exit_code, [one.run_id for one in joined]) == (0, [b"r" * 32])
    lines = result.output.splitlines()
    assert "reading the ticket" in lines[0]
    assert f"run {(b'r' * 32).hex()[:16]}, with 1 entry to it: loading torch" in lines[1]


@pytest.mark.parametrize(
    ("words", "error", "told"),
    [
        (["--data", "nowhere"], DataError, "the data folder nowhere cannot be read"),
        (["--device", "cuda"], UsageError, "torch sees no CUDA device"),
    ],
)
def test_what_this_machine_lacks_is_told_before_anything_is_made(
    words: list[str],
    error: type[PeerError],
    told: str,
    joined: list[PeerOptions],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The checks of the machine must run before the slow imports and before the home is made."""
    monkeypatch.setattr("peer.joining.preflight.check_cuda.__defaults__", ((),))  # a machine without a driver
    result = CliRunner().invoke(peer, ["join", WORD, *words, "--home", str(tmp_path / "home")])
    assert isinstance(result.exception, error)
    assert told in result.exception.found
    assert joined == []
    assert list(tmp_path.iterdir()) == []
    assert "loading torch" not in result.output


def test_options_within_quotes_are_named(joined: list[PeerOptions], tmp_path: Path) -> None:
    result = CliRunner().invoke(peer, ["join", f"peer join {WORD} --data texts", "--home", str(tmp_path)])
    assert "not taken from the line that was pasted: --data texts" in result.output
    assert joined[0].data_dir is None


def test_what_is_wrong_comes_after_the_first_line(joined: list[PeerOptions]) -> None:
    result = CliRunner().invoke(peer, ["join", "peer", "join", "TICKET"])
    assert isinstance(result.exception, TicketError)
    assert joined == []
