"""A closed terminal, a log-out and a `kill` must drain the daemon, whose output to a closed terminal raises nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.early_signals import EARLY_SIGNALS
from peer.node import process
from peer.node.process import on_stop_signals, run_until_early_signal

DAEMON = """
import asyncio, os, pathlib, sys
terminal = os.open(sys.argv[1], os.O_RDWR)  # the first one that a session's leader opens becomes its terminal
for descriptor in (0, 1, 2):
    os.dup2(terminal, descriptor)
os.close(terminal)
from peer.cli.run import say
from peer.node.process import on_stop_signals, run_until_early_signal
from peer.observe.log_file import log_file

async def main():
    left = asyncio.Event()
    with log_file(pathlib.Path(sys.argv[2])), on_stop_signals(left.set):
        say("ready")
        await left.wait()
        for _ in range(3):
            say("leaving")
        await asyncio.sleep(0)
        say("left")

asyncio.run(main())
sys.exit(7)
"""


@pytest.mark.processes
def test_a_closed_terminal_drains(tmp_path: Path) -> None:
    outer, inner = pty.openpty()
    log = tmp_path / "peer.log"
    daemon = subprocess.Popen(
        [sys.executable, "-c", DAEMON, os.ttyname(inner), str(log)],
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    shown = b""
    while b"ready" not in shown:
        shown += os.read(outer, 1024)
    os.close(inner)
    os.close(outer)
    assert daemon.wait(20) == 7
    assert [line.split()[-1] for line in log.read_text().splitlines()] == ["ready", *["leaving"] * 3, "left"]


TRAINER = """
import sys, types
worker = types.ModuleType("peer.trainer.worker")
worker.serve = lambda link, first, laps: sys.exit(first["code"])
sys.modules["peer.trainer.worker"] = worker
import peer.trainer.__main__ as trainer
timer = trainer.PhaseTimer
trainer.PhaseTimer = lambda: (print("ready", flush=True), timer())[1]
trainer.main()
"""


@pytest.mark.processes
def test_a_trainer_leaves_it_to_its_daemon() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", TRAINER, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdout=subprocess.PIPE
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                child.send_signal(number)
            ours.sendall(b'{"code": 7}\n')
            assert child.wait(20) == 7


class LeftAtOnceError(BaseException):
    """Raised in place of the end of the process."""


@pytest.fixture
def _stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def leave(code: int) -> None:
        raise LeftAtOnceError

    before = signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr(process.os, "_exit", leave)
    yield
    signal.signal(signal.SIGHUP, before)


def after(*numbers: signal.Signals) -> str:
    """Return what the process does on these signals: `d` for a drain, `!` for leaving at once."""
    done: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        with on_stop_signals(lambda: done.append("d"), lambda: done.append("!")):
            for number in numbers:
                signal.raise_signal(number)
                for _ in range(5):
                    await asyncio.sleep(0)

    with contextlib.suppress(LeftAtOnceError):
        asyncio.run(main())
    return "".join(done)


HUP, TERM, INT = signal.SIGHUP, signal.SIGTERM, signal.SIGINT


@pytest.mark.usefixtures("_stays")
@pytest.mark.parametrize(
    ("numbers", "done"),
    [
        ((HUP,), "d"),
        ((TERM,), "d"),
        ((HUP, HUP, HUP), "d"),
        ((HUP, TERM), "d"),
        ((TERM, HUP), "d"),
        ((INT, INT), "d!"),
        ((HUP, TERM, TERM), "d!"),
    ],
)
def test_only_a_second_word_leaves_at_once(numbers: tuple[signal.Signals, ...], done: str) -> None:
    assert after(*numbers) == done


@pytest.mark.usefixtures("_stays")
def test_under_nohup_a_closed_terminal_means_nothing() -> None:
    signal.signal(HUP, signal.SIG_IGN)
    assert after(HUP) == ""
    assert after(HUP, TERM) == "d"


@pytest.mark.usefixtures("_stays")
@pytest.mark.parametrize("kind", ["early", "later"])
def test_a_daemon_that_cannot_drain_yet_ends_with_0(kind: str) -> None:
    said, cleaned = list[str](), list[bool]()

    async def daemon() -> int:
        try:
            if kind == "later":
                signal.raise_signal(TERM)
            await asyncio.sleep(20)
        finally:
            cleaned.append(True)
        return 7

    async def main() -> int:
        if kind == "early":
            EARLY_SIGNALS._on_signal(HUP, None)
        return await run_until_early_signal(daemon(), said.append)

    assert asyncio.run(main()) == 0
    assert said == ["left: it was told to before there was anything to drain"]
    assert cleaned == [True] * (kind == "later")


@pytest.mark.usefixtures("_stays")
def test_a_daemon_that_drains_keeps_its_exit_code() -> None:
    async def daemon() -> int:
        left = asyncio.Event()
        with on_stop_signals(left.set):
            signal.raise_signal(TERM)
            await left.wait()
        signal.raise_signal(TERM)  # a log-out sends the signal more than once, also while the process is ending
        await asyncio.sleep(0.01)
        return 7

    said = list[str]()
    assert asyncio.run(run_until_early_signal(daemon(), said.append)) == 7
    assert said == []
