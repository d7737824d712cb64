"""Findings about a manifest, each with its key path and, if known, its line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

LISTED = 40
"""Number of findings shown at once. A stranger's file may have any number."""
_LONGEST_KEY = 80
_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"\s*([\w.\"' -]+?)\s*=")


@dataclass(frozen=True, slots=True)
class ManifestFinding:
    """One problem of a manifest. `where`: key path, outermost first. Empty: the whole file."""

    where: tuple[str, ...]
    message: str


def listed(findings: Iterable[ManifestFinding], text: str = "") -> str:
    """Format findings as indented lines, in the order of their lines in `text`, the TOML text. Findings without a line
    come last."""
    lines = _lines_of_keys(text)
    placed = sorted(((_line(lines, finding.where), finding) for finding in findings), key=lambda item: item[0] or 1e9)
    shown = [_sentence(line, finding) for line, finding in placed[:LISTED]]
    if len(placed) > LISTED:
        shown.append(f"  and {len(placed) - LISTED} more")
    return "\n".join(shown)


def _sentence(line: int | None, finding: ManifestFinding) -> str:
    place = ".".join(finding.where)[:_LONGEST_KEY]
    if not place.isprintable():
        place = place.encode("unicode_escape").decode()
    return f"  {f'line {line}, ' if line else ''}{place or 'the file'}: {finding.message}"


def _line(lines: dict[tuple[str, ...], int], where: tuple[str, ...]) -> int | None:
    """Return the line of the key, or else of the table that lacks it. None: not known."""
    for end in range(len(where), 0, -1):
        if found := lines.get(where[:end]):
            return found
    return None


def _lines_of_keys(text: str) -> dict[tuple[str, ...], int]:
    """Map key paths to line numbers, counted from 1. This is not a TOML parser: text in a multi-line value that looks
    like a key is taken for one, which only makes a line number wrong."""
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if header := _HEADER.match(line):
            table = _path(header[1])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault((*table, *_path(key[1])), number)
    return lines


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip(" \"'") for part in dotted.split("."))
