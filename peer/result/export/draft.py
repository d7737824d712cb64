"""Creates a folder atomically: it is written under a temporary name and then renamed, so that it is complete or
absent."""

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
    """Raise UsageError if something exists at the path of the new folder."""
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
    """Yield an empty folder to fill. It is renamed to `out` when the block ends, and removed if the block raises.

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
                path.chmod(rights)  # safetensors makes its files readable for the owner only
                sync(path)
            draft.rename(out)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"cannot write {out}: {reason}", file_advice(error, out, "name another folder")) from error
