"""Edits the configuration file, keeping its comments and order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.items import Table

from peer.config.file import key_of
from peer.errors import UsageError, file_advice
from peer.user_folders import make_private
from peer.whole_files import replace_file


def set_value(path: Path, place: Sequence[str], key: str, value: Any) -> None:
    """Set one value, and create the file if there is none. `place`: path of the command's section. Raises UsageError if
    the file cannot be read or written."""
    path = _file(path)
    document = _read(path)
    table: Any = document
    for name in place:
        if name not in table:
            table[name] = tomlkit.table(is_super_table=False)
        table = table[name]
    table[_present(table, key) or key] = value
    _write(path, document)


def remove_value(path: Path, place: Sequence[str], key: str) -> bool:
    """Remove one value. Return False if the file does not have it. Raises UsageError as `set_value` does."""
    path = _file(path)
    document = _read(path)
    table: Any = document
    for name in place:
        table = table.get(name, {})
    present = _present(table, key)
    if not present:
        return False
    del table[present]
    _write(path, document)
    return True


def toml_value(text: str) -> Any:
    """Return a value from the command line as a TOML value: a number, a boolean, or a string."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _present(table: Any, key: str) -> str:
    """Return the key as it is spelt in the table. Empty: the table does not have it."""
    return next((name for name, value in table.items() if key_of(name) == key and not isinstance(value, Table)), "")


def _file(path: Path) -> Path:
    """Return the target of a link. Raises UsageError for a device or folder, which a write would replace."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise UsageError(f"{target} is no file", "Name a file with --config.")
    return target


def _read(path: Path) -> tomlkit.TOMLDocument:
    try:
        return tomlkit.parse(path.read_text("utf-8-sig"))
    except FileNotFoundError:
        return tomlkit.document()
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror}", file_advice(error, path, "name another --config")
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no TOML: {error}", "Correct the file first.") from error


def _write(path: Path, document: tomlkit.TOMLDocument) -> None:
    try:
        make_private(path.parent)
        replace_file(path, tomlkit.dumps(document).encode())
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror}", file_advice(error, path, "name another --config")
        ) from error
