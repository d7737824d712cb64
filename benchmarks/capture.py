"""TCP packets of a file that tcpdump wrote, and the streams that they make up (IPv4 on Ethernet)."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

HEADER, RECORD = struct.Struct("<IHHiIII"), struct.Struct("<IIII")
MICROSECONDS, ETHERNET, IPV4, TCP, SYN = 0xA1B2C3D4, 1, 0x0800, 6, 0x02
SEQUENCES = 2**32
ENDS_S, SETTLE_S = 10, 0.5
"""Seconds for tcpdump to end, and before that for the last packets to reach it."""

End = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Packet:
    """`size`: bytes of its payload on the wire, of which `payload` may be the beginning. `at`: since the epoch."""

    at: float
    source: End
    target: End
    sequence: int
    opens: bool
    size: int
    payload: bytes


@contextlib.contextmanager
def captured(namespace: str, device: str, file: Path, kept: int = 0) -> Iterator[None]:
    """Write all TCP packets of a device to a file. `kept`: bytes of each packet; 0: all."""
    what = [
        "tcpdump",
        "-Z",
        "root",
        "-U",
        "--immediate-mode",
        "-i",
        device,
        "-s",
        str(kept),
        "-B",
        "65536",
        "-w",
        str(file),
        "tcp",
    ]
    told = subprocess.Popen(["ip", "netns", "exec", namespace, *what], stderr=subprocess.PIPE, text=True)
    assert told.stderr is not None
    try:
        first = told.stderr.readline()
        assert "listening" in first, first
        yield
        time.sleep(SETTLE_S)
    finally:
        told.terminate()
        _, words = told.communicate(timeout=ENDS_S)
        assert "\n0 packets dropped by kernel" in words, words


def packets(file: Path) -> Iterator[Packet]:
    """Read the packets in order."""
    with file.open("rb") as raw:
        magic, *_, link = HEADER.unpack(raw.read(HEADER.size))
        assert (magic, link) == (MICROSECONDS, ETHERNET)
        while head := raw.read(RECORD.size):
            seconds, micro, kept, _ = RECORD.unpack(head)
            if (found := _packet(seconds + micro / 1e6, raw.read(kept))) is not None:
                yield found


def _packet(at: float, frame: bytes) -> Packet | None:
    if int.from_bytes(frame[12:14], "big") != IPV4 or frame[23] != TCP:
        return None
    begin = 14 + (frame[14] & 15) * 4
    whole = int.from_bytes(frame[16:18], "big") - (begin - 14)
    source, target, sequence = struct.unpack(">HHI", frame[begin : begin + 8])
    header = (frame[begin + 12] >> 4) * 4
    hosts = [socket.inet_ntoa(frame[place : place + 4]) for place in (26, 30)]
    size, payload = whole - header, frame[begin + header : begin + whole]
    opens = bool(frame[begin + 13] & SYN)
    return Packet(at, (hosts[0], source), (hosts[1], target), sequence, opens, size, payload)


def streams(found: Iterable[Packet]) -> dict[tuple[End, End], bytes]:
    """Put together what each end sent, by (source, target). A stream whose beginning is not there begins with its first
    packet."""
    parts: dict[tuple[End, End], dict[int, bytes]] = defaultdict(dict)
    first: dict[tuple[End, End], int] = {}
    for packet in found:
        way = packet.source, packet.target
        if packet.opens:
            first[way], parts[way] = packet.sequence + 1, {}
        elif packet.payload:
            place = (packet.sequence - first.setdefault(way, packet.sequence)) % SEQUENCES
            if len(packet.payload) > len(parts[way].get(place, b"")):
                parts[way][place] = packet.payload
    return {way: _joined(pieces) for way, pieces in parts.items()}


def _joined(pieces: dict[int, bytes]) -> bytes:
    whole = bytearray()
    for place, piece in sorted(pieces.items()):
        if place < SEQUENCES // 2:  # later ones came before the first
            whole += piece[max(0, len(whole) - place) :]
    return bytes(whole)
