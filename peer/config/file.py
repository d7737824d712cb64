"""The configuration file `config.toml`: its keys are named as flags are, its sections as commands are.

Keys above the first section hold for every command that has such a flag. A key in a command's section comes before."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.errors import UsageError, toml_error
from peer.user_folders import config_folder

FILE = "config.toml"
MOST_BYTES = 1_000_000
EVERYWHERE: tuple[str, ...] = ()
"""The path of the keys above the first section."""
_HEADER = re.compile(r"\s*\[\s*([\w.\- \"']+?)\s*\]")
_KEY = re.compile(r"\s*([\w\-\"']+)\s*=")


def default_path() -> Path:
    """Return the file's place for this user: ~/.config/peer/config.toml on Linux.

    Raises HomeUnusable for a user without a home directory."""
    if sys.platform == "darwin":
        from platformdirs import user_config_path

        return user_config_path("peer", appauthor=False) / FILE
    return config_folder() / "peer" / FILE


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value of the file. `line` counts from 1; 0: not known."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A file that was read. A file that does not exist has no entries."""

    path: Path
    sections: Mapping[tuple[str, ...], Mapping[str, ConfigEntry]] = field(default_factory=dict)
    """Entries by the command's path, such as `("manifest", "new")`, then by the flag without its dashes."""

    def where(self, entry: ConfigEntry) -> str:
        """Return the entry's place, for a person."""
        return f"{self.path}:{entry.line}" if entry.line else str(self.path)


def read_config(path: Path, *, required: bool = False) -> ConfigFile:
    """Read a file. `required`: a person named it, so that it must exist.

    Raises UsageError when it cannot be read or is no TOML."""
    text = ""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8-sig")
        if len(text) > MOST_BYTES:
            raise UsageError(f"{path} is larger than {MOST_BYTES} bytes", "A configuration is a few lines long.")
        tree = tomllib.loads(text)
    except FileNotFoundError as error:
        if not required:
            return ConfigFile(path)
        raise UsageError(f"there is no configuration file {path}", "Name another --config, or leave it out.") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "Name another --config.") from error
    except (ValueError, RecursionError) as error:  # of TOML or UTF-8
        what = toml_error(error, text)
        raise UsageError(f"{path} is no TOML: {what}", 'Write lines such as: max-upload = "1MB"') from error
    lines = dict(_lines(text))
    sections: dict[tuple[str, ...], dict[str, ConfigEntry]] = {}
    for place, key, value in _entries(tree):
        entries = sections.setdefault(place, {})
        if key in entries:
            raise UsageError(f"{path}: {key} is given twice", "Delete one of the two lines.")
        entries[key] = ConfigEntry(value, lines.get((place, key), 0))
    return ConfigFile(path, sections)


def key_of(name: str) -> str:
    """Return a key as flags are written: max_upload and max-upload are the same."""
    return name.replace("_", "-")


def _entries(tree: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _entries(value, (*place, name))
        else:
            yield place, key_of(name), value


def _lines(text: str) -> Iterator[tuple[tuple[tuple[str, ...], str], int]]:
    """Find the line of every key. TOML's parser does not tell it."""
    place: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            place = tuple(part.strip(" \"'") for part in header[1].split("."))
        elif key := _KEY.match(line):
            yield (place, key_of(key[1].strip("\"'"))), number
