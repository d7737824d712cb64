"""A signal that arrives while a daemon is still importing modules ends it in order, not like a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.cli.entry import command_of, main
from peer.early_signals import EarlySignals
from peer.identity import Identity
from peer.run.ticket import Ticket

ADDRESS = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity.generate().peer_id}"
WORD = Ticket(b"r" * 32, (ADDRESS,)).encode()
HUP, TERM = signal.SIGHUP, signal.SIGTERM
WITHIN_S = 20.0


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler for this signal, according to the kernel."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.fixture
def _handlers() -> Iterator[None]:
    """Set the signal handlers that a shell gives its programs, even if the tests run under `nohup`."""
    before = {number: signal.getsignal(number) for number in (HUP, TERM)}
    for number in before:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.processes
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells when a process has a handler")
@pytest.mark.parametrize("numbers", [(TERM,), (HUP,), (HUP, TERM)])
@pytest.mark.usefixtures("_handlers")
def test_one_that_comes_first_of_all_lets_the_daemon_end_in_order(
    numbers: tuple[signal.Signals, ...], tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "peer", "join", WORD, "--home", str(tmp_path / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as daemon:
        try:
            by = time.monotonic() + WITHIN_S
            while not catches(daemon.pid, HUP):
                assert time.monotonic() < by
            for number in numbers:
                daemon.send_signal(number)
            told, _ = daemon.communicate(timeout=WITHIN_S)
        finally:
            daemon.kill()
    assert daemon.returncode == 0, told
    assert told.splitlines()[-1].endswith("left: it was told to before there was anything to drain")
    assert not list((tmp_path / "home").rglob("*.log"))


@pytest.mark.usefixtures("_handlers")
def test_each_is_told_once() -> None:
    early = EarlySignals()
    early.install_handlers()
    signal.raise_signal(HUP)
    signal.raise_signal(TERM)
    assert early.drain() == [HUP, TERM]
    assert early.drain() == []


@pytest.mark.usefixtures("_handlers")
def test_a_second_word_ends_the_process_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = list[int]()
    monkeypatch.setattr("peer.early_signals.os._exit", codes.append)
    early = EarlySignals()
    early.install_handlers()
    for number in (HUP, HUP, TERM):
        signal.raise_signal(number)
    assert codes == []
    signal.raise_signal(TERM)
    assert codes == [130]


@pytest.mark.usefixtures("_handlers")
def test_under_nohup_a_closed_terminal_means_nothing() -> None:
    signal.signal(HUP, signal.SIG_IGN)
    EarlySignals().install_handlers()
    assert signal.getsignal(HUP) is signal.SIG_IGN


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["join", "TICKET"], "join"),
        (["--config", "join", "status"], "status"),
        (["--config=x", "bootstrap", "run.toml"], "bootstrap"),
        (["--version"], ""),
        (["help", "join"], "help"),
        ([], ""),
    ],
)
def test_the_command_is_known_before_the_command_line_is_read(words: list[str], command: str) -> None:
    assert command_of(words) == command


def test_ctrl_c_while_the_program_still_loads_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["peer", "status"])
    monkeypatch.setattr("peer.observe.output.prepare_streams", interrupted)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
