"""A new folder that is complete or not there: it is written under a draft's name and renamed."""

from __future__ import annotations

import contextlib
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from peer.errors import UsageError, file_advice
from peer.whole_files import sync


def check_vacant(out: Path) -> None:
    """Raise UsageError where a folder cannot be made because something is there."""
    try:
        taken = out.is_symlink() or (out.exists() and (not out.is_dir() or any(out.iterdir())))
    except OSError as error:
        raise UsageError(
            f"cannot write to {out}: {error.strerror}", file_advice(error, out, "name another folder")
        ) from error
    if taken:
        raise UsageError(f"{out} exists", "Name a new folder. Nothing was overwritten.")


@contextlib.contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder to fill, which gets its name when the block ends well, and is removed else.

    Raises UsageError when it cannot be written."""
    check_vacant(out)
    draft = out.parent / f".{out.name}.{secrets.token_hex(8)}"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir()
        try:
            yield draft
            rights = draft.stat().st_mode & 0o666
            for path in draft.iterdir():
                path.chmod(rights)  # the library gives weights to their owner alone
                sync(path)
            draft.rename(out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {out}: {reason}", file_advice(error, out, "name another folder")) from error
