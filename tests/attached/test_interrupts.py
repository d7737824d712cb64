"""Ctrl+C while orders of the daemon are executed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from peer.attached.interrupts import Interrupts
from tests.attached.test_loop import Loop, PlayedDaemon


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """Install Python's handler: a shell starts its background jobs with SIGINT ignored."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def test_an_interrupt_waits_for_the_end_of_the_block() -> None:
    interrupts, done = Interrupts(), list[bool]()

    def block() -> None:
        with interrupts:
            interrupt()
            done.append(interrupts.waiting)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with interrupts:
        assert not interrupts.waiting, "it was raised once"


@pytest.mark.parametrize("second", ["interrupt", "wait"])
def test_the_second_one_does_not_wait_and_a_wait_lets_the_first_through(second: str) -> None:
    interrupts, done = Interrupts(), list[bool]()

    def block() -> None:
        with interrupts:
            interrupt()
            done.append(interrupts.waiting)
            interrupt() if second == "interrupt" else interrupts.deliver()
            done.append(False)

    with pytest.raises(KeyboardInterrupt):
        block()
    assert done == [True]


def test_an_error_in_the_block_is_raised_as_it_is() -> None:
    def block() -> None:
        with Interrupts():
            interrupt()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_get_no_signals() -> None:
    def run() -> None:
        with Interrupts():
            done.append(True)

    done = list[bool]()
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_loop_that_was_interrupted_goes_on_with_its_daemon(tmp_path: Path) -> None:
    """The interrupt arrives while a result is merged, and while the loop is held."""
    merged, may_go_on = list[bool](), threading.Event()

    def script(daemon: PlayedDaemon) -> None:
        daemon.open()
        daemon.start(0)
        work = daemon.work(0)
        os.kill(os.getpid(), signal.SIGINT)  # the loop is held
        assert may_go_on.wait(60.0)
        for round_ in range(3):
            loop.arena.inn.fill_(round_ + 1.0)
            daemon.apply(round_, work["processed"])
            merged.append(bool((loop.flat == round_ + 1.0).all()))  # it is held, so its params stand still
            if round_ < 2:
                work = daemon.work(round_ + 1)
        daemon.post({"op": "over", "code": 0})

    loop = Loop(tmp_path, script)
    loop.trainer.join()
    with pytest.raises(KeyboardInterrupt):
        loop.until(lambda: loop.trainer.over)
    merge = loop.trainer.params.merge

    def interrupted_merge(*given: object) -> None:
        interrupt()
        merge(*given)  # type: ignore[arg-type]

    loop.trainer.params.merge = interrupted_merge  # type: ignore[method-assign]
    may_go_on.set()
    raised = 0
    while not loop.trainer.over:
        try:
            loop.trainer.end_interrupted_wait()
            if not loop.trainer.over:
                loop.step()
        except KeyboardInterrupt:
            raised += 1
    assert merged == [True, True, True]
    assert 1 <= raised <= 3
    assert loop.faults == []
    loop.trainer.leave(1.0)
