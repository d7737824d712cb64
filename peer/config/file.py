"""Reads the configuration file `config.toml`. Its keys are named like options, its sections like commands.

Keys above the first section apply to every command with such an option. A key in a command's section takes
precedence."""

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
"""The section path of the keys above the first section."""
_HEADER = re.compile(r"\s*\[\s*([\w.\- \"']+?)\s*\]")
_KEY = re.compile(r"\s*([\w\-\"']+)\s*=")


def default_path() -> Path:
    """Return the path of this user's file: ~/.config/peer/config.toml on Linux.

    Raises HomeUnusable for a user without a home directory."""
    if sys.platform == "darwin":
        from platformdirs import user_config_path

        return user_config_path("peer", appauthor=False) / FILE
    return config_folder() / "peer" / FILE


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One value of the file. `line`: from 1; 0: unknown."""

    value: Any
    line: int


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """The contents of the file. Without entries if it does not exist."""

    path: Path
    sections: Mapping[tuple[str, ...], Mapping[str, ConfigEntry]] = field(default_factory=dict)
    """Path of the command, such as `("manifest", "new")` -> option without its dashes -> entry."""

    def where(self, entry: ConfigEntry) -> str:
        """Return the entry's file and line, for people."""
        return f"{self.path}:{entry.line}" if entry.line else str(self.path)


def read_config(path: Path, *, required: bool = False) -> ConfigFile:
    """Read the file. `required`: the user named it, so it must exist.

    Raises UsageError if it cannot be read or is no TOML."""
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
    except (ValueError, RecursionError) as error:  # invalid TOML or UTF-8
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
    """Return a key spelt like an option: max_upload and max-upload are the same key."""
    return name.replace("_", "-")


def _entries(tree: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _entries(value, (*place, name))
        else:
            yield place, key_of(name), value


def _lines(text: str) -> Iterator[tuple[tuple[tuple[str, ...], str], int]]:
    """Yield (section, key) and line number of every key, which tomllib does not report."""
    place: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            place = tuple(part.strip(" \"'") for part in header[1].split("."))
        elif key := _KEY.match(line):
            yield (place, key_of(key[1].strip("\"'"))), number
