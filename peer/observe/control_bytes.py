"""Bytes of control messages by purpose. A control message is every message between peers that is not a payload.

Each process counts its encoded messages. The overhead of TLS, HTTP/2, libp2p and TCP comes on top;
`benchmarks/control_bytes.py` measures it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, TypeVar

from peer.observe.status.value import ControlBytes

T = TypeVar("T")


class Purpose(StrEnum):
    """The use of a control message. The values are the labels of the metrics and the keys in the status."""

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
    """Counts the bytes of one process's control messages. It wraps encoders and decoders, so that their callers need
    not count."""

    def __init__(self) -> None:
        self._sent = Counter[str]()
        self._received = Counter[str]()

    def count(self, purpose: Purpose, *, sent: int = 0, received: int = 0) -> None:
        """Add a message's size in bytes to its purpose."""
        self._sent[purpose] += sent
        self._received[purpose] += received

    def encoder(self, purpose: Purpose, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
        """Return `encode`, wrapped so that the bytes it produces are counted as sent."""

        def counted(message: Any) -> bytes:
            raw = encode(message)
            self.count(purpose, sent=len(raw))
            return raw

        return counted

    def decoder(self, purpose: Purpose, decode: Callable[[bytes], T]) -> Callable[[bytes], T]:
        """Return `decode`, wrapped so that its input is counted as received, also when it cannot be decoded."""

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
    """Return the sums over several meters, for each purpose and direction."""
    return ControlBytes(
        sent={purpose: sum(meter.sent[purpose] for meter in meters) for purpose in PURPOSES},
        received={purpose: sum(meter.received[purpose] for meter in meters) for purpose in PURPOSES},
    )
