"""The memory of receipts that outlives the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol


class ReceiptStore(Protocol):
    """Keeps the records of a chain (`peer.protocol.pair.receipt_chain`), and never changes one."""

    def read(self) -> Iterator[bytes]:
        """All records, in order. Raises HomeUnusable."""

    def append(self, record: bytes) -> None:
        """Keep one more record, behind those that were read and appended. Raises HomeUnusable; it is then not kept."""

    def set_aside(self) -> None:
        """Begin anew; what was kept stays beside it. Raises HomeUnusable."""


class MemoryReceipts:
    """A `ReceiptStore` that lasts as long as the process."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def read(self) -> Iterator[bytes]:
        return iter(tuple(self.records))

    def append(self, record: bytes) -> None:
        self.records.append(record)

    def set_aside(self) -> None:
        self.records.clear()
