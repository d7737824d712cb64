"""The forwarder of `benchmarks.shaped_lines` delays, queues and drops packets as the links of two homes would."""

from __future__ import annotations

import struct

import pytest

from benchmarks.shaped_lines import BUFFER_S, Forwarder, Host
from peer.lab.sim.links import MBIT, Link

SLOW = Link("slow", 1 * MBIT, 8 * MBIT, 0.010)
FAST = Link("fast", 80 * MBIT, 80 * MBIT, 0.005)


def host(name: str, link: Link) -> Host:
    return Host(name, "61.1.0.1", link, namespace="", device=-1)


def packet(source: int = 40000, to: int = 4811, size: int = 1250) -> bytes:
    head = bytes([0x45]) + bytes(8) + bytes([6]) + bytes(10)
    return (head + struct.pack("!HH", source, to)).ljust(size, b".")


def forwarder() -> Forwarder:
    return Forwarder([], seed=1)


def moments(made: Forwarder) -> list[float]:
    return sorted(at for at, *_ in made._due)


def test_a_packet_takes_the_time_of_the_uplink_and_the_latency_of_both() -> None:
    made, slow, fast = forwarder(), host("slow", SLOW), host("fast", FAST)
    for _ in range(2):
        made._send(slow, fast, packet(), 100.0)
    assert moments(made) == pytest.approx([100.025, 100.035])
    assert slow.sent == {("fast", 4811): 2500}


def test_the_downlink_of_a_slow_home_delays_what_a_fast_one_sends() -> None:
    made, slow, fast = forwarder(), host("slow", SLOW), host("fast", FAST)
    for _ in range(2):
        made._send(fast, slow, packet(to=50000, source=4811), 100.0)
    made._deliver(100.0153)
    assert moments(made) == pytest.approx([100.015125 + 0.00125, 100.015125 + 0.0025])


def test_a_full_queue_drops() -> None:
    made, slow, fast = forwarder(), host("slow", SLOW), host("fast", FAST)
    for _ in range(100):
        made._send(slow, fast, packet(), 100.0)
    held = int(BUFFER_S / 0.01) + 1
    assert abs(len(made._due) - held) <= 1
    assert slow.dropped == 100 - len(made._due)


def test_jitter_does_not_reorder_and_loss_loses_its_share() -> None:
    rough = Link("rough", 1000 * MBIT, 1000 * MBIT, 0.005, 0.050, 0.25)
    made, one, other = forwarder(), host("one", rough), host("other", FAST)
    for number in range(400):
        made._send(one, other, packet(), 100.0 + number / 1000)
    arrivals = [at for at, *_ in sorted(made._due, key=lambda due: due[1])]
    assert arrivals == sorted(arrivals)
    assert 60 <= one.dropped <= 140
