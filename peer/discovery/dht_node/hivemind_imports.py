"""Import of hivemind without the parts that we do not use.

`import hivemind` loads its averaging, mixture of experts and optimizers, and scipy for them. That costs every daemon
time and memory. Its directory (`hivemind.dht`, `hivemind.p2p`) needs none of it."""

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
    """Put an empty package in hivemind's place, whose modules are found as usual, so that its `__init__` does not run.

    Nothing happens when hivemind is loaded already or is not installed. The imports that follow report the latter."""
    if "hivemind" in sys.modules:
        return
    spec = PathFinder.find_spec("hivemind")
    if spec is not None:
        sys.modules["hivemind"] = module_from_spec(spec)
        with _locks_of_threads():
            importlib.import_module("hivemind.utils")


@contextlib.contextmanager
def _locks_of_threads() -> Iterator[None]:
    """Where the system has no semaphores for several processes, let modules make locks of threads in their place.

    hivemind makes such locks when it is imported. They need a writable /dev/shm, which some containers do not have. We
    use hivemind in one process, where locks of threads do the same."""
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
