"""Rates measured at a payload's source and sink."""

from __future__ import annotations

import pytest

from peer.exchange.throughput import MeasuredSource, Throughput, TransferLeft, TransferMeter
from peer.protocol.wire.payload import BytesSource


def test_the_rate_is_that_behind_what_filled_the_buffers() -> None:
    now = 0.0
    throughput = Throughput(1000, lambda: now)
    throughput.note(0)
    throughput.note(250)  # arrives at once, because it only fills a buffer
    for number in range(1, 4):
        now = float(number)
        throughput.note(250 + 250 * number)
    assert throughput.rate() == pytest.approx(250)
    assert throughput.first_at == 0.0


def test_too_little_says_nothing() -> None:
    now = 5.0
    throughput = Throughput(1000, lambda: now)
    assert (throughput.rate(), throughput.first_at) == (0.0, 0.0)
    throughput.note(1000)
    assert (throughput.rate(), throughput.first_at) == (0.0, 5.0)


def test_a_payload_that_is_broken_off_early_is_measured_from_its_beginning() -> None:
    now = 1.0
    throughput = Throughput(10_000, lambda: now)
    throughput.note(0)
    now = 3.0
    throughput.note(400)
    assert throughput.rate() == pytest.approx(200)


def test_a_source_gives_its_bytes_and_measures() -> None:
    now = 0.0
    source = MeasuredSource(BytesSource(b"abcdefgh"), lambda: now)
    read = b""
    for offset in range(0, 8, 2):
        read += source.read(offset, 2)
        now += 0.5
    assert read == b"abcdefgh"
    assert source.throughput.rate() == pytest.approx(4.0)


def test_a_meter_tells_what_is_left_of_the_transfers_under_way() -> None:
    now = 0.0
    meter, sent, received = TransferMeter(), Throughput(1000, lambda: now), Throughput(4000, lambda: now)
    assert meter.left() is None
    with meter.watching(sent, received):
        assert meter.left() == TransferLeft(5000, 0.0, 0.0)
        sent.note(0)
        now = 2.0
        sent.note(200)  # 100 bytes per second; the other transfer has no rate yet
        assert meter.left() == TransferLeft(4800, pytest.approx(100.0), pytest.approx(40.0))
        received.note(0)
        now = 4.0
        received.note(2000)
        assert meter.left() == TransferLeft(2800, pytest.approx(100.0), pytest.approx(8.0))
        sent.note(1000)
        received.note(4000)
        assert meter.left() is None
    assert meter.left() is None
