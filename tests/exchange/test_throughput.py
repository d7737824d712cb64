"""Rates as seen from a payload's source and sink."""

from __future__ import annotations

import pytest

from peer.exchange.throughput import MeasuredSource, Throughput
from peer.protocol.wire.payload import BytesSource


def test_the_rate_is_that_behind_what_filled_the_buffers() -> None:
    now = 0.0
    passing = Throughput(1000, lambda: now)
    passing.note(0)
    passing.note(250)  # at once: into a buffer
    for number in range(1, 4):
        now = float(number)
        passing.note(250 + 250 * number)
    assert passing.rate() == pytest.approx(250)
    assert passing.first_at == 0.0


def test_too_little_says_nothing() -> None:
    now = 5.0
    passing = Throughput(1000, lambda: now)
    assert (passing.rate(), passing.first_at) == (0.0, 0.0)
    passing.note(1000)
    assert (passing.rate(), passing.first_at) == (0.0, 5.0)


def test_a_payload_that_is_broken_off_early_is_measured_from_its_beginning() -> None:
    now = 1.0
    passing = Throughput(10_000, lambda: now)
    passing.note(0)
    now = 3.0
    passing.note(400)
    assert passing.rate() == pytest.approx(200)


def test_a_source_gives_its_bytes_and_measures() -> None:
    now = 0.0
    source = MeasuredSource(BytesSource(b"abcdefgh"), lambda: now)
    read = b""
    for offset in range(0, 8, 2):
        read += source.read(offset, 2)
        now += 0.5
    assert read == b"abcdefgh"
    assert source.passing.rate() == pytest.approx(4.0)
