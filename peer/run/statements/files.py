"""The files of statements, one statement per line: those in a run's folder, and the operator's own beside the
manifest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

from peer.codes import Code
from peer.errors import BadPayload, ManifestError
from peer.run.home import write_whole
from peer.run.statements.kinds import AMENDMENT, FAMILIES, MAX_COUNT, Document, Family
from peer.run.statements.log import StatementLog
from peer.run.statements.statement import Statement, open_line

MAX_FILE = MAX_COUNT * (2 * AMENDMENT.max_bytes + 256)
"""Bytes of the longest file."""
FORMER_START = "run_start"
"""File in a run's folder in which earlier versions stored the start. It is used until a statement gives one."""


def beside(manifest: Path, family: Family) -> Path:
    """Return the path of the operator's own file: `run.amendments` or `run.delegations` for `run.toml`."""
    return manifest.with_suffix(family.beside)


def lines_of(statements: Iterable[Statement[Document]]) -> bytes:
    """Encode statements as the content of a file."""
    return b"".join(statement.line + b"\n" for statement in statements)


def write_statements(path: Path, statements: Iterable[Statement[Document]]) -> None:
    """Write a file of statements completely or not at all. Raises HomeUnusable."""
    write_whole(path, lines_of(statements))


def load(path: Path, log: StatementLog) -> list[Statement[Document]]:
    """Add the statements of a file to the log, and return the new ones. A missing file counts as empty. Papers that a
    later delegation revoked are skipped, because earlier versions stored them.

    Raises ManifestError, which names the line, for a statement that is invalid. Those on the lines before it are
    added."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise ManifestError(f"cannot read {path}: {error.strerror}", "Make it readable.") from error
    if len(raw) > MAX_FILE:
        raise ManifestError(f"{path} is longer than all statements of a run", "Restore the file from a copy.")
    added = []
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            statement = open_line(line, log.run_id, log.operator)
            if statement.family is AMENDMENT:
                log.ensure_counts(statement)
        except BadPayload as bad:
            fix = "Restore the file from a copy."
            if bad.code is Code.AMENDMENT_FORK:
                fix = "Restore the file that has the first one, and amend again behind it."
            raise ManifestError(f"{path}, line {number}: {bad.reason}", fix) from None
        if log.add(statement):
            added.append(statement)
    return added


def load_kept(folder: Path, log: StatementLog) -> None:
    """Add the statements stored in a run's folder. Raises ManifestError for the first invalid file."""
    for family in FAMILIES:
        load(folder / family.kept, log)


def known_start(log: StatementLog, folder: Path | None) -> float:
    """Return the start of round 0, seconds since the epoch. 0: no signed source gives it. `folder`: the run's folder in
    the home."""
    return log.manifest_start or log.start_time or former_start(folder)


def former_start(folder: Path | None) -> float:
    """Return the start that an earlier version stored in a run's folder. 0: it stored none."""
    if folder is None:
        return 0.0
    try:
        return float((folder / FORMER_START).read_text())
    except (OSError, ValueError):
        return 0.0


def discard_former_start(folder: Path) -> None:
    """Remove the start that an earlier version stored, since a statement gives it now."""
    with contextlib.suppress(OSError):  # a statement outranks it anyway
        (folder / FORMER_START).unlink(missing_ok=True)
