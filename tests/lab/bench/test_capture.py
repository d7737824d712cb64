"""Captures of TCP: streams in the order of their bytes, known plaintext in them, and the fullest span of time."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

from benchmarks.capture import HEADER, RECORD, Packet, packets, streams
from benchmarks.nat_capture import RELAY, cost, count, fullest_window, leaving_on_circuits, windows_of
from benchmarks.nat_swarm import PORT
from peer.transport.relay.wire import MARK

HOME, OTHER = ("60.1.0.1", 5000), ("60.2.0.1", 5000)
AT_RELAY = (RELAY.public, PORT)
SYN, ACK = 2, 16


def frame(source: tuple[str, int], target: tuple[str, int], sequence: int, payload: bytes, flags: int = ACK) -> bytes:
    tcp = struct.pack(">HHIIBBHHH", source[1], target[1], sequence % 2**32, 0, 5 << 4, flags, 0, 0, 0) + payload
    hosts = socket.inet_aton(source[0]) + socket.inet_aton(target[0])
    return bytes(12) + b"\x08\x00" + struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0) + hosts + tcp


def written(folder: Path, frames: list[bytes], kept: int = 2**16) -> list[Packet]:
    raw = HEADER.pack(0xA1B2C3D4, 2, 4, 0, 0, kept, 1)
    for number, one in enumerate(frames):
        raw += RECORD.pack(100 + number, 500_000, min(kept, len(one)), len(one)) + one[:kept]
    file = folder / "capture"
    file.write_bytes(raw)
    return list(packets(file))


def test_a_stream_is_whole_whatever_the_order_of_its_packets(tmp_path: Path) -> None:
    start = 2**32 - 3
    found = written(
        tmp_path,
        [
            frame(HOME, AT_RELAY, start, b"", SYN),
            frame(HOME, AT_RELAY, start + 6, b"fghij"),
            frame(AT_RELAY, HOME, 77, b"answer"),
            frame(HOME, AT_RELAY, start + 1, b"abcde"),
            frame(HOME, AT_RELAY, start + 1, b"abcdefg"),
        ],
    )
    assert streams(found) == {(HOME, AT_RELAY): b"abcdefghij", (AT_RELAY, HOME): b"answer"}
    assert [packet.at for packet in found] == [100.5, 101.5, 102.5, 103.5, 104.5]


def test_what_was_cut_off_counts_with_its_size_on_the_wire(tmp_path: Path) -> None:
    (found,) = written(tmp_path, [frame(HOME, AT_RELAY, 1, MARK + bytes(1000))], kept=54 + len(MARK))
    assert (found.size, found.payload) == (len(MARK) + 1000, MARK)


def test_known_plaintext_is_found_at_any_place() -> None:
    known = bytes(range(64)) + bytes(64)
    windows = windows_of(known)
    assert count(b"x" * 7 + known[8:24] + b"y" * 9, windows) == 1
    assert count(bytes(200), windows) == 0


def test_only_what_the_relay_sends_on_circuits_counts(tmp_path: Path) -> None:
    found = written(
        tmp_path,
        [
            frame(HOME, AT_RELAY, 1, MARK + bytes(16)),
            frame(OTHER, AT_RELAY, 1, b"\x16 TLS"),
            frame(AT_RELAY, HOME, 1, bytes(700)),
            frame(AT_RELAY, OTHER, 1, bytes(900)),
        ],
    )
    assert leaving_on_circuits(found) == [(102.5, 700)]


def test_the_fullest_span_may_begin_anywhere() -> None:
    assert fullest_window([(0.0, 5), (1.5, 10), (3.4, 20), (3.6, 1)], 2.0) == 30


def test_a_relay_costs_what_it_takes_in_its_busy_seconds() -> None:
    used = [(0.0, 9.0), (1.0, 10.0), (2.0, 10.1), (3.0, 10.6)]
    idle, each = cost(used, [(0.5, 1), (2.5, 10**6)])
    assert round(idle, 3) == 0.1
    assert round(each) == 500
