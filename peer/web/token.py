"""The secret token of a volunteer's page, in a file of the home that only its owner can read. A request that presents
the token may run commands."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from peer.errors import HomeUnusable, file_advice
from peer.whole_files import replace_file

FILE = "web.token"
_BYTES = 32
_MOST_CHARACTERS = 100


def load_or_create(home: Path) -> str:
    """Return the token of a home. Replaces a token that is damaged or readable by others.

    Raises HomeUnusable."""
    path = home / FILE
    try:
        return _load(path) or _create(path)
    except OSError as error:
        raise HomeUnusable(
            f"cannot keep the page's token in {path}: {error.strerror}", file_advice(error, path)
        ) from error


def _load(path: Path) -> str:
    """Return the stored token; empty: there is none that is private and well-formed."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(fd)
        if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
            return ""
        word = file.read(_MOST_CHARACTERS).decode("ascii", errors="replace").strip()
    return word if len(word) >= _BYTES and word.replace("-", "a").replace("_", "a").isalnum() else ""


def _create(path: Path) -> str:
    token = secrets.token_urlsafe(_BYTES)
    replace_file(path, f"{token}\n".encode())
    return token
