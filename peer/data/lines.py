"""Lines of JSONL files, plain or packed with gzip or zstandard, each of bounded length."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from peer.data.sources import refused

MAX_LINE_BYTES = 2**24
"""Most bytes of a line, and of a text in a row of a parquet file. Longer texts go into files of their own."""
_FED = 2**12
"""Packed bytes unpacked at once: even the densest come to 128 MiB at most."""


def lines(path: Path, tell: Callable[[int], None]) -> Iterator[bytes]:
    """Read the lines of a file. Raises DataError, with the line. `tell` is told how far the file is read, in bytes."""
    number = 0
    try:
        with path.open("rb") as raw, _unpacked(path, raw) as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise refused(
                        f"{path}, line {number} is longer than {MAX_LINE_BYTES >> 20} MiB",
                        "JSONL has one document a line. Put a longer text into a .txt file of its own.",
                    )
                tell(raw.tell())
                yield line
    except (EOFError, zlib.error, zstandard.ZstdError, gzip.BadGzipFile) as error:
        raise refused(
            f"{path} is cut off or damaged after line {number}: {error}",
            "Get the file again, or leave it out.",
        ) from error
    except OSError as error:
        raise refused(f"{path} cannot be read: {error.strerror}", "Make it readable, or leave it out.") from error


def _unpacked(path: Path, raw: BinaryIO) -> BinaryIO:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(raw))
        case ".zst":
            return io.BufferedReader(_Unzstd(raw), 2**20)
        case _:
            return raw


class _Unzstd(io.RawIOBase):
    """The text of a file packed with zstandard. Unlike the library's own reader it tells that a file is cut off."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        self._packed = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the base takes more kinds of buffers
        while not self._ready:
            fed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = zstandard.ZstdDecompressor().decompressobj(), False
            fed = fed or self._packed.read(_FED)
            if not fed:
                if self._begun:
                    raise EOFError("the packed data ends too early")
                return 0
            self._begun = True
            self._ready = memoryview(self._frame.decompress(fed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count
