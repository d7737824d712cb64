"""The files that keep statements, one a line: those of a run's folder, and the operator's own beside the manifest."""

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
"""File of a run's folder in which earlier versions kept the start. It counts until a statement says otherwise."""


def beside(manifest: Path, family: Family) -> Path:
    """Return the path of the operator's own file: `run.toml` to `run.amendments` or `run.delegations`."""
    return manifest.with_suffix(family.beside)


def lines_of(statements: Iterable[Statement[Document]]) -> bytes:
    """Encode a file."""
    return b"".join(statement.line + b"\n" for statement in statements)


def write_statements(path: Path, statements: Iterable[Statement[Document]]) -> None:
    """Write the file completely or not at all. Raises HomeUnusable."""
    write_whole(path, lines_of(statements))


def load(path: Path, log: StatementLog) -> list[Statement[Document]]:
    """Add the statements of a file to the log, and return the new ones. A missing file holds none. Papers that a later
    delegation took back are passed over: earlier versions kept them.

    Raises ManifestError, naming the line, when one does not check. Those before it are added."""
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
    """Add what a run's folder keeps. Raises ManifestError for the first file that does not check."""
    for family in FAMILIES:
        load(folder / family.kept, log)


def known_start(log: StatementLog, folder: Path | None) -> float:
    """Return when round 0 began, seconds since the epoch; 0: nothing that is signed says. `folder`: the run's, in the
    home."""
    return log.manifest_start or log.start_time or former_start(folder)


def former_start(folder: Path | None) -> float:
    """Return the start that an earlier version kept in a run's folder; 0: it kept none."""
    if folder is None:
        return 0.0
    try:
        return float((folder / FORMER_START).read_text())
    except (OSError, ValueError):
        return 0.0


def discard_former_start(folder: Path) -> None:
    """Remove what an earlier version kept, now that a statement says when the run began."""
    with contextlib.suppress(OSError):  # a statement outranks it anyway
        (folder / FORMER_START).unlink(missing_ok=True)
