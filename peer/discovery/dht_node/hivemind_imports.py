"""Imports hivemind without the parts that we do not use.

`import hivemind` loads its averaging, mixture of experts and optimizers, and scipy for them, which costs every daemon
time and memory. Its DHT (`hivemind.dht`, `hivemind.p2p`) needs none of them."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def without_the_rest() -> None:
    """Register an empty package as `hivemind`, whose modules can be imported as usual, so that hivemind's own
    `__init__` does not run.

    Does nothing if hivemind is loaded already or is not installed; in the latter case the imports that follow fail."""
    if "hivemind" in sys.modules:
        return
    spec = PathFinder.find_spec("hivemind")
    if spec is not None:
        sys.modules["hivemind"] = module_from_spec(spec)
        with _locks_of_threads():
            importlib.import_module("hivemind.utils")


@contextlib.contextmanager
def _locks_of_threads() -> Iterator[None]:
    """Replace locks between processes by locks between threads during the import, if the system has no semaphores for
    the former.

    hivemind creates such locks when it is imported. They need a writable /dev/shm, which some containers lack. We use
    hivemind in one process, where locks between threads suffice."""
    try:
        multiprocessing.Lock()
    except (OSError, ImportError):
        needed = multiprocessing.Lock
        multiprocessing.Lock = threading.Lock  # type: ignore[assignment]
        try:
            yield
        finally:
            multiprocessing.Lock = needed
    else:
        yield
