"""Lines of JSONL files, plain or packed with gzip or zstandard, each of bounded length."""

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
"""Most bytes of a line, and of a text in a row of a parquet file. Longer texts go into files of their own."""
MAX_WINDOW_BYTES = 2**31
"""Most bytes of a zstandard window: what `zstd --long=31` needs, the largest that the zstd program writes."""
_FED = 2**12
"""Packed bytes unpacked at once: even the densest come to 128 MiB at most."""


class _DamagedError(Exception):
    """Packed data that is cut off or wrong."""


class _WindowError(Exception):
    """A zstandard frame needs a larger window than is allowed: the text says which."""


def lines(file: SourceFile, on_offset: Callable[[int], None]) -> Iterator[bytes]:
    """Read the lines of a file, without a byte order mark. Raises DataError, with the line.

    `on_offset` is called with the bytes of the file that are read so far."""
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
                if raw.tell() > file.nbytes:  # else a file that grows as fast as it is read would never end
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
    """The text of a file packed with zstandard. Unlike the library's own reader it tells that a file is cut off."""

    def __init__(self, packed: BinaryIO) -> None:
        super().__init__()
        import zstandard  # only now: other kinds of files are read without it

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
    """Return the window of a zstandard frame (RFC 8878, section 3.1.1.1), for a person. `begin`: its first bytes."""
    if len(begin) < 6 or begin[4] & 0x20:  # too short to tell, or the window is the content's size
        return "larger than that"
    base = 1 << (10 + (begin[5] >> 3))
    return amount(base + base // 8 * (begin[5] & 7), "bytes")
