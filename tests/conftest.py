"""What holds for every test: examples drawn alike each time, no options from outside, leaks blamed on their file."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("peer", derandomize=True, deadline=None, database=None)
settings.load_profile("peer")

for _name in [name for name in os.environ if name.startswith("PEER_") and name != "PEER_KERNELS"]:
    del os.environ[_name]  # they would give options to the commands under test
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


@pytest.fixture(scope="module", autouse=True)
def _leaks_of_this_file() -> Iterator[None]:
    """Collect garbage after each file: a socket or loop left open is reported here and not in a later file by chance.

    Survivors are frozen, so that the next collection does not visit all of torch again."""
    yield
    gc.collect()
    gc.freeze()


def pytest_collectstart() -> None:
    """Nothing of what is imported and collected is garbage. Without this a tenth of that time goes to looking."""
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
