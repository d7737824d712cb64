"""Reads the lines of JSONL files, plain or compressed with gzip or zstandard. The length of a line is bounded."""

from __future__ import annotations

import codecs
import contextlib
import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

from peer.data.sources import SourceFile, changed, opened, refused
from peer.observe.formatting import amount

if TYPE_CHECKING:
    import zstandard

MAX_LINE_BYTES = 2**24
"""Most bytes of a line, and of a text in a parquet file. A longer text has to be a text file."""
MAX_WINDOW_BYTES = 2**31
"""Most bytes of a zstandard window: that of `zstd --long=31`, the largest that the zstd program writes."""
_FED = 2**12
"""Compressed bytes that are decompressed at once. Even the highest compression makes at most 128 MiB of them."""


class _DamagedError(Exception):
    """The compressed data is truncated or wrong."""


class _WindowError(Exception):
    """A zstandard frame needs a window above `MAX_WINDOW_BYTES`. The message is its size, for a person."""


def lines(file: SourceFile, on_offset: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the lines of a file, without a byte order mark. Raises DataError, which names the line.

    `on_offset`: is called before each line with the number of bytes of the file that were read."""
    path, number = file.path, 0
    try:
        with opened(file) as raw, _unpacked(path, raw) as content:
            while line := content.readline(MAX_LINE_BYTES + 1):
                number += 1
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                if len(line) > MAX_LINE_BYTES:
                    raise refused(
                        f"{path}, line {number} is longer than {amount(MAX_LINE_BYTES, 'bytes')}",
                        "JSONL has one document a line. Put a longer text into a .txt file of its own.",
                    )
                if raw.tell() > file.nbytes:  # the file is growing, so reading it might never end
                    raise changed(file)
                on_offset(raw.tell())
                yield line
    except _WindowError as error:
        most = amount(MAX_WINDOW_BYTES, "bytes")
        raise refused(
            f"{path} is packed with a zstandard window of {error}, at most {most} are taken",
            "Pack it again with a smaller window: zstd -d, then zstd without --long or --ultra.",
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile, _DamagedError) as error:
        raise refused(
            f"{path} is cut off or damaged after line {number}: {error}",
            "Get the file again, or leave it out.",
        ) from error
    except OSError as error:
        raise refused(f"{path} cannot be read: {error.strerror}", "Make it readable, or leave it out.") from error


def _unpacked(path: Path, raw: BinaryIO) -> contextlib.AbstractContextManager[BinaryIO]:
    match path.suffix.lower():
        case ".gz":
            return cast(BinaryIO, gzip.open(raw))
        case ".zst":
            return io.BufferedReader(_Unzstd(raw), 2**20)
        case _:
            return contextlib.nullcontext(raw)


class _Unzstd(io.RawIOBase):
    """Decompresses a zstandard file. Unlike the library's reader, it raises EOFError for a truncated file."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        import zstandard  # imported here, because it is optional and only .zst files need it

        self._library = zstandard
        self._packed = packed
        self._frame = self._new_frame()
        self._begun = False
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # the base takes more kinds of buffers
        while not self._ready:
            fed = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._begun = self._new_frame(), False
            fed = fed or self._packed.read(_FED)
            if not fed:
                if self._begun:
                    raise EOFError("the packed data ends too early")
                return 0
            self._begun = True
            self._ready = memoryview(self._unpacked(fed))
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _new_frame(self) -> zstandard.ZstdDecompressionObj:
        return self._library.ZstdDecompressor(max_window_size=MAX_WINDOW_BYTES).decompressobj()

    def _unpacked(self, fed: bytes) -> bytes:
        try:
            return self._frame.decompress(fed)
        except self._library.ZstdError as error:
            if "too much memory" in str(error):
                raise _WindowError(_window_of(fed)) from error
            raise _DamagedError(str(error)) from error


def _window_of(begin: bytes) -> str:
    """Return the window size of a zstandard frame (RFC 8878, section 3.1.1.1) for a person. `begin`: its first
    bytes."""
    if len(begin) < 6 or begin[4] & 0x20:  # too short to decode, or a single segment, which has no window field
        return "larger than that"
    base = 1 << (10 + (begin[5] >> 3))
    return amount(base + base // 8 * (begin[5] & 7), "bytes")
