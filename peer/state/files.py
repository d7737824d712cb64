"""File operations for checkpoints: they sync and hash, bound what they read, and follow no links."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from blake3 import blake3

from peer.whole_files import write_all

_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_CHUNK = 2**20


def is_plain_name(name: str) -> bool:
    """Return whether a name is plain: it cannot lead out of its folder, and has no special characters."""
    return _PLAIN.fullmatch(name) is not None


def blake3_hex(data: bytes) -> str:
    """Return the BLAKE3 digest in hex."""
    return blake3(data).hexdigest()


def digest_of(path: Path) -> tuple[str, int]:
    """Return (BLAKE3 digest in hex, length in bytes) of a plain file. Raises OSError, also for a link or a folder."""
    hasher, nbytes, buffer = blake3(), 0, bytearray(_CHUNK)
    with os.fdopen(open_plain(path), "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(memoryview(buffer)[:count])
            nbytes += count
    return hasher.hexdigest(), nbytes


def read_small(path: Path, limit: int) -> bytes:
    """Read a plain file of at most `limit` bytes. Raises OSError, also for a longer one, a link or a folder."""
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(None, f"{path.name} is longer than {limit} bytes")
    return data


def write_synced(path: Path, data: bytes) -> None:
    """Write a new file and sync it to disk. Raises OSError, also if the file exists."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def open_plain(path: Path) -> int:
    """Open a plain file for reading and return its descriptor. Raises OSError, also for a link or a folder."""
    # O_NONBLOCK: opening a named pipe would otherwise block until a process writes to it.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(None, f"{path.name} is not a plain file")
    return fd
