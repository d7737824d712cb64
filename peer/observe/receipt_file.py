"""The file with a peer's chain of receipts. Each receipt is one write, so a SIGKILL after `append` has returned does
not lose it. A record that a kill cut off is overwritten by the next one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from peer.errors import HomeUnusable, ReceiptsBroken, file_advice
from peer.protocol.pair.receipt_chain import (
    LENGTH_BYTES,
    MAX_RECORD,
    BoundsOf,
    BrokenChain,
    ChainCheck,
    Verify,
    framed,
    no_bounds,
)
from peer.whole_files import write_all

MIB = 2**20


class ReceiptFile:
    """The receipts of one run, owned by one process (guaranteed by the home's lock) and used from one thread. Only the
    offset of the end is held in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._end = 0
        """Offset after the last complete record."""

    def read(self) -> Iterator[bytes]:
        self._end = 0
        with _usable(self._path, "read"), contextlib.suppress(FileNotFoundError), self._path.open("rb") as file:
            for record in complete_records(file):
                self._end += LENGTH_BYTES + len(record)
                yield record
            rest = file.seek(0, os.SEEK_END) - self._end
            if rest > LENGTH_BYTES + MAX_RECORD:  # a kill cuts off one write at most, so this is damage
                raise HomeUnusable(f"{self._path} ends with {rest} bytes that are no receipts")

    def append(self, record: bytes) -> None:
        data = framed(record)
        with _usable(self._path, "write"):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.ftruncate(descriptor, self._end)
                write_all(descriptor, data, self._end)
            finally:
                os.close(descriptor)
        self._end += len(data)

    def set_aside(self) -> None:
        with _usable(self._path, "move"):
            self._path.replace(self._path.with_name(f"{self._path.name}.damaged"))
        self._end = 0


def complete_records(file: BinaryIO) -> Iterator[bytes]:
    """Yield the records up to the first one that is cut off, or too long to be a record."""
    while len(length := file.read(LENGTH_BYTES)) == LENGTH_BYTES:
        nbytes = int.from_bytes(length, "big")
        record = file.read(nbytes) if nbytes <= MAX_RECORD else b""
        if len(record) != nbytes:
            return
        yield record


def check_file(
    path: Path, verify: Verify, bounds: BoundsOf = no_bounds, *, unfinished: bool = False
) -> tuple[ChainCheck, int]:
    """Verify a chain of receipts from its beginning. Return the checked chain and the number of bytes of its complete
    records.

    `bounds`: see `ChainCheck`. `unfinished`: the file may end within a record, as after a kill. Raises
    ReceiptsBroken."""
    try:
        with path.open("rb") as file:
            return check_stream(file, verify, bounds, unfinished=unfinished)
    except OSError as error:
        raise ReceiptsBroken(f"cannot read {path}: {error.strerror}", "Name a file that you can read.") from error
    except BrokenChain as error:
        raise ReceiptsBroken(f"{path}: {error}") from None


def check_stream(
    file: BinaryIO, verify: Verify, bounds: BoundsOf = no_bounds, *, unfinished: bool = False
) -> tuple[ChainCheck, int]:
    """Verify a chain of receipts from an open file, as `check_file` does. Raises BrokenChain."""
    check, end = ChainCheck(verify, bounds), 0
    for record in complete_records(file):
        check.take(record)
        end += LENGTH_BYTES + len(record)
    rest = file.seek(0, os.SEEK_END) - end
    if not check.head:
        raise BrokenChain(0, "this is no chain of receipts")
    if rest and not unfinished:
        raise BrokenChain(check.entries + 1, f"{rest} bytes that are no complete entry")
    return check, end


def copy_checked(path: Path, out: Path, verify: Verify, bounds: BoundsOf = no_bounds) -> ChainCheck:
    """Verify a chain and copy its complete records to a new file. Raises ReceiptsBroken for an invalid chain and
    HomeUnusable when the copy cannot be written."""
    check, left = check_file(path, verify, bounds, unfinished=True)
    with _usable(out, "write"), path.open("rb") as source, out.open("xb") as target:
        while left:
            part = source.read(min(left, MIB))
            target.write(part)
            left -= len(part)
    return check


@contextlib.contextmanager
def _usable(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HomeUnusable(f"cannot {doing} {path}: {error.strerror or error}", file_advice(error, path)) from error
