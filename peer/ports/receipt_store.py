"""Interface of the store for a peer's chain of receipts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class ReceiptStore(Protocol):
    """Append-only store of the records of a chain (`peer.protocol.pair.receipt_chain`)."""

    def read(self) -> Iterator[bytes]:
        """Return all records in order. Raises HomeUnusable."""

    def append(self, record: bytes) -> None:
        """Append a record. Raises HomeUnusable; the record is then not stored."""

    def set_aside(self) -> None:
        """Start an empty chain, and keep the old one beside it under another name. Raises HomeUnusable."""


class MemoryReceipts:
    """A `ReceiptStore` in memory."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def read(self) -> Iterator[bytes]:
        return iter(tuple(self.records))

    def append(self, record: bytes) -> None:
        self.records.append(record)

    def set_aside(self) -> None:
        self.records.clear()
