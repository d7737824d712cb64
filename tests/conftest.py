"""Rules for all tests: reproducible random examples, no options from the environment, leaks reported for the file that
caused them, and processes only in tests with the marker `processes`."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("peer", derandomize=True, deadline=None, database=None)
settings.load_profile("peer")

for _name in [name for name in os.environ if name.startswith("PEER_") and name != "PEER_KERNELS"]:
    del os.environ[_name]  # they would set options of the commands under test
os.environ["PEER_CONFIG"] = os.devnull

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    # Under nohup every process that a test starts would inherit the ignored hang-up. A handler ends with exec.
    signal.signal(signal.SIGHUP, lambda *_: None)


@pytest.fixture(autouse=True)
def _environment_of_this_test() -> Iterator[None]:
    """Restore the environment and the module search path. `peer.cli.entry.main` changes both for its whole process."""
    environment, search_path = dict(os.environ), sys.path[:]
    yield
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    sys.path[:] = search_path


class _Errors(logging.Handler):
    """Collects exceptions in our handlers that gRPC logs. They appear on the terminal only, and no caller sees the
    reason. Errors of gRPC itself are ignored, because a caller that vanishes during an answer causes them."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        kind = record.exc_info and record.exc_info[0]
        if kind and not kind.__module__.startswith("grpc"):
            self.found.append(f"{record.getMessage()}: {record.exc_info and record.exc_info[1]!r}")


_INSIDE_GRPC = _Errors()
logging.getLogger("grpc").addHandler(_INSIDE_GRPC)


@pytest.fixture(autouse=True)
def _nothing_fails_inside_grpc() -> Iterator[None]:
    yield
    found, _INSIDE_GRPC.found = _INSIDE_GRPC.found, []
    assert not found, found


@pytest.fixture(scope="module", autouse=True)
def _leaks_of_this_file() -> Iterator[None]:
    """Collect garbage after each file: a socket or loop left open is reported here and not in a later file by chance.

    Survivors are frozen, so that the next collection does not visit all of torch again."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collectstart() -> None:
    """Disable garbage collection during imports and collection. It would find nothing, and take a tenth of that
    time."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# -- processes ---------------------------------------------------------------------------------------------------------

_STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"})
"""Audit events of Python for the start of a process."""
_ASKED = frozenset({"ldconfig", "gcc", "cc", "ld", "uname", "ninja"})
"""Programs that libraries run to ask about the machine. They end within milliseconds."""
_started: list[str] = []
"""The processes that the current test has started."""


def _watch_starts(started: list[str], starts: frozenset[str] = _STARTS, asked: frozenset[str] = _ASKED) -> None:
    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in starts:
            program = str(arguments[0]).rpartition("/")[2] if arguments else event
            if program not in asked:
                started.append(program)

    sys.addaudithook(note)


_watch_starts(_started)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[Any]:
    _started.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    """Fail a test that starts processes without the marker, so that `-m processes` lists all of them."""
    outcome = yield
    if _started and not item.get_closest_marker("processes"):
        pytest.fail(f"starts {sorted(set(_started))}: mark it `@pytest.mark.processes`, or start nothing")
    return outcome
