"""Bytes of control messages by their purpose: all that peers say to each other apart from payloads.

Each process counts the messages themselves. TLS, HTTP/2, libp2p and TCP add to them; `benchmarks/control_bytes.py`
measures how much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from peer.observe.status.value import ControlBytes

T = TypeVar("T")


class Purpose(StrEnum):
    """What a control message is for."""

    AMENDMENTS = "amendments"
    DIRECTORY = "directory"
    FAILURES = "failures"
    GROUPS = "groups"
    HELLO = "hello"
    JOINING = "joining"
    OFFERS = "offers"
    OTHER = "other"
    PAPERS = "papers"
    PEERS = "peers"
    REACHABILITY = "reachability"
    RECEIPTS = "receipts"
    RELAYS = "relays"
    SUMMARIES = "summaries"


PURPOSES = tuple(sorted(purpose.value for purpose in Purpose))


class ControlMeter:
    """Counter of one process. Its wrappers count what an encoder made and a decoder was given."""

    def __init__(self) -> None:
        self._sent = Counter[str]()
        self._received = Counter[str]()

    def count(self, purpose: Purpose, *, sent: int = 0, received: int = 0) -> None:
        """Count the bytes of a message."""
        self._sent[purpose] += sent
        self._received[purpose] += received

    def encoder(self, purpose: Purpose, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Return the encoder of what is sent, counted."""

        def counted(message: Any) -> bytes:
            raw = encode(message)
            self.count(purpose, sent=len(raw))
            return raw

        return counted

    def decoder(self, purpose: Purpose, decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
        """Return the decoder of what is received, counted. It counts what cannot be decoded, too."""

        def counted(raw: bytes) -> T:
            self.count(purpose, received=len(raw))
            return decode(raw)

        return counted

    @property
    def sent(self) -> Mapping[str, int]:
        """Bytes sent, by purpose."""
        return self._sent

    @property
    def received(self) -> Mapping[str, int]:
        """Bytes received, by purpose."""
        return self._received


def sum_control_bytes(*meters: ControlMeter) -> ControlBytes:
    """Return what these meters counted together, in each direction and for each purpose."""
    return ControlBytes(
        sent={purpose: sum(meter.sent[purpose] for meter in meters) for purpose in PURPOSES},
        received={purpose: sum(meter.received[purpose] for meter in meters) for purpose in PURPOSES},
    )
