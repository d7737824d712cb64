"""Buffers for partners' values: one exists from the start, and each has one borrower at a time."""

from __future__ import annotations

import pytest

from peer.exchange.buffers import Buffers


def test_there_is_one_that_is_used_again_and_again() -> None:
    buffers, places = Buffers(7, 3), set()
    for _ in range(5):
        with buffers.acquire() as buffer:
            assert buffer.shape == (7,)
            places.add(buffer.data_ptr())
    assert len(places) == 1
    assert buffers.made == 1


def test_who_overlaps_has_one_alone_and_none_is_lost() -> None:
    buffers = Buffers(7, 2)
    for _ in range(3):
        with buffers.acquire() as one, buffers.acquire() as other:
            one.fill_(1)
            other.fill_(2)
            assert one.sum() == 7
            with pytest.raises(AssertionError, match="one exchange at a time"), buffers.acquire():
                pass
    assert buffers.made == 2


def test_one_whose_exchange_failed_comes_back() -> None:
    buffers = Buffers(7, 1)
    with pytest.raises(ZeroDivisionError), buffers.acquire():
        raise ZeroDivisionError
    with buffers.acquire():
        assert buffers.made == 1
