"""Cyclic garbage must be freed soon, however many objects are loaded."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from peer.node.process import freeze_gc

LOADED = 300_000


class Call:
    """Refers to itself, as the frame of a finished call does through its exception."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def _thawed() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


def old_garbage() -> weakref.ref[Call]:
    """Make a cycle that becomes garbage after it survived two collections."""
    call = Call()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(call)


def work() -> None:
    """Create and drop objects until the collector has run about ten times."""
    batch = 2 * gc.get_threshold()[0]
    for _ in range(20):
        alive = [[] for _ in range(batch)]
        del alive


@pytest.mark.usefixtures("_thawed")
def test_old_garbage_is_found_although_much_is_loaded() -> None:
    loaded = [[] for _ in range(LOADED)]
    freeze_gc()
    call = old_garbage()
    work()
    assert call() is None
    assert len(loaded) == LOADED


@pytest.mark.usefixtures("_thawed")
def test_what_was_garbage_before_is_not_kept() -> None:
    call = old_garbage()
    freeze_gc()
    assert call() is None
