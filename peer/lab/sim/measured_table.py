"""Tables of measurements, from which each simulated peer draws a row: links and computing speeds.

A table is a CSV file. Comments before its head name the source. The first columns decide how a row is drawn:

    weight,down,up,rtt          a peer draws one of the rows, with a probability in proportion to its weight
    quantile,down,up,rtt        the rows are points of a distribution: a peer draws a share of the population, and its
                                values are interpolated between the two next quantiles, in the logarithm

Between two quantiles all columns belong to the same share: a fast line is fast in both directions. Outside the
outermost quantiles nothing was measured, so the outermost row is used there."""

from __future__ import annotations

import bisect
import csv
import difflib
import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peer.errors import UsageError

FOLDER = Path(__file__).with_name("tables")
"""The tables of this package, one folder for each kind."""
WEIGHT, QUANTILE, NAME = "weight", "quantile", "name"
MOST_BYTES = 64_000_000
NOTES = ("source", "url", "assumed")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of numbers that a kind of table has."""

    unit: str
    least: float
    most: float
    default: float | None = None
    """Value of all rows of a table without this column. None: every table has it."""


@dataclass(frozen=True, slots=True)
class CsvLine:
    """One line of a file after its head: its cells by column."""

    file: str
    number: int
    """Number of the line in the file, from 1."""
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        """Return a cell without surrounding spaces. Raises UsageError for a missing or empty one."""
        cell = (self.cells.get(column) or "").strip()
        if not cell:
            raise self.wrong(column, "is empty", "Fill it in.")
        return cell

    def value(self, column: str, least: float, most: float, unit: str = "") -> float:
        """Return a cell as a number. Raises UsageError unless it is one from `least` to `most`."""
        cell = self.text(column)
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            span = f"from {least:g} to {most:g}"
            raise self.wrong(column, f"is {cell!r}", f"Give a number {span}{unit and f', in {unit}'}.")
        return value

    def wrong(self, column: str, found: str, fix: str) -> UsageError:
        """Return the error about a cell of this line."""
        return UsageError(f"{self.file}, line {self.number}, column {column}: {found}", fix)


@dataclass(frozen=True, slots=True)
class CsvFile:
    """A CSV file: the comments before its head, the columns of the head, and the lines after it."""

    name: str
    notes: Mapping[str, str]
    """Comments of the form `# source: text`, by their first word. Several of one kind are joined."""
    columns: tuple[str, ...]
    lines: tuple[CsvLine, ...]
    head: int
    """Number of the line of the head, from 1."""


def find_file(option: str, text: str, kind: str, others: Sequence[str] = ()) -> Path:
    """Return the file that an option's value names: a table of this package, else a path. Raises UsageError.

    others: further values of the option, for the error."""
    path, names = Path(text), names_of(kind)
    if text in names:
        return FOLDER / kind / f"{text}.csv"
    if path.is_file():
        return path
    known = [*others, *names]
    near = difflib.get_close_matches(text, known, 1, 0.4)
    hint = f"Did you mean {near[0]}? " if near else ""
    raise UsageError(
        f"{option} {text}: there is no such name or file", f"{hint}Known: {', '.join(known)}. Or give a CSV file."
    )


def names_of(kind: str) -> tuple[str, ...]:
    """Return the names of this package's tables of a kind."""
    return tuple(sorted(path.stem for path in (FOLDER / kind).glob("*.csv")))


def read_csv(path: Path, headless: Sequence[str] = ()) -> CsvFile:
    """Read a CSV file with a head, delimited by commas or tabs. Raises UsageError if it cannot be read, has no head, or
    a line has another number of cells than the head.

    headless: the columns of a file whose first line is numbers."""
    name = path.stem if path.is_relative_to(FOLDER) else str(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise UsageError(f"{name} is larger than {MOST_BYTES // 10**6} MB", "Give a part of it.")
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        raise UsageError(f"{name} cannot be read: {reason}", "Give a CSV file that you may read.") from error
    notes: dict[str, str] = {}
    for line in itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), lines):
        word, colon, rest = line.lstrip("# ").partition(":")
        if colon and word in NOTES:
            notes[word] = f"{notes[word]}; {rest.strip()}" if word in notes else rest.strip()
    rows = [(number, line) for number, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not rows:
        raise UsageError(f"{name} has no head", "Begin with a line of column names, separated by commas.")
    head, first = rows[0]
    delimiter = "\t" if "\t" in first else ","
    columns = tuple(cell.strip().lower() for cell in next(csv.reader([first], delimiter=delimiter)))
    if columns[0].isdecimal() and headless:
        columns = tuple(headless[: len(columns)])
    else:
        rows = rows[1:]
    return CsvFile(name, notes, columns, tuple(_lines(name, columns, rows, delimiter)), head)


def _lines(file: str, columns: Sequence[str], rows: Sequence[tuple[int, str]], delimiter: str) -> Iterator[CsvLine]:
    for number, row in rows:
        cells = next(csv.reader([row], delimiter=delimiter))
        if len(cells) != len(columns):
            reason = f"{file}, line {number}: {len(cells)} cells, and the head has {len(columns)} columns"
            raise UsageError(reason, f"Give one cell each for {', '.join(columns)}.")
        yield CsvLine(file, number, dict(zip(columns, cells, strict=True)))


def check_columns(file: CsvFile, needed: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raise UsageError unless the head has the needed columns, and no others than these and the optional ones."""
    known = [*needed, *optional]
    where = f"{file.name}, line {file.head}"
    for column in file.columns:
        if column not in known:
            near = difflib.get_close_matches(column, known, 1, 0.5)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(f"{where}: there is no column {column!r}", f"{hint}Known: {', '.join(known)}.")
        if file.columns.count(column) > 1:
            raise UsageError(f"{where}: column {column} is there twice", "Leave one out.")
    if missing := [column for column in needed if column not in file.columns]:
        raise UsageError(f"{where}: column {missing[0]} is missing", f"Needed: {', '.join(needed)}.")
    if not file.lines:
        raise UsageError(f"{file.name} has no rows", "Give at least one line after the head.")


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """A population: rows with their shares, or points of its distribution."""

    name: str
    source: str
    assumed: str
    """Which values are assumptions, not measured. Empty: none."""
    shares: tuple[float, ...]
    """Of each row: the share of the population up to and including it, or its quantile."""
    rows: tuple[Mapping[str, float], ...]
    interpolated: bool
    """The rows are quantiles."""

    def at(self, share: float) -> Mapping[str, float]:
        """Return the values at this share of the population, from 0 to 1."""
        if not self.interpolated:
            return self.rows[min(bisect.bisect_right(self.shares, share), len(self.rows) - 1)]
        above = bisect.bisect_right(self.shares, share)
        if above in (0, len(self.rows)):
            return self.rows[min(above, len(self.rows) - 1)]
        low, high = self.rows[above - 1], self.rows[above]
        part = (share - self.shares[above - 1]) / (self.shares[above] - self.shares[above - 1])
        return {column: _between(low[column], high[column], part) for column in low}

    def draw(self, rng: random.Random) -> Mapping[str, float]:
        """Draw the values of one peer."""
        return self.at(rng.random())


def _between(low: float, high: float, part: float) -> float:
    """Interpolate in the logarithm, or linearly if a value is 0."""
    if low <= 0 or high <= 0:
        return low + part * (high - low)
    return math.exp(math.log(low) + part * (math.log(high) - math.log(low)))


def read_table(path: Path, columns: Mapping[str, Column]) -> MeasuredTable:
    """Read a table of a population. Raises UsageError, which names the line and the column."""
    file = read_csv(path)
    by = QUANTILE if QUANTILE in file.columns else WEIGHT
    needed = [column for column, kind in columns.items() if kind.default is None]
    optional = [column for column, kind in columns.items() if kind.default is not None]
    check_columns(file, [by, *needed], [NAME, *optional])
    rows = tuple(
        {
            name: column.default
            if column.default is not None and name not in file.columns
            else line.value(name, column.least, column.most, column.unit)
            for name, column in columns.items()
        }
        for line in file.lines
    )
    left_out = " and ".join(column for column in optional if column not in file.columns)
    notes = [file.notes.get("assumed", ""), f"{left_out}: not in the table, taken as 0" if left_out else ""]
    return MeasuredTable(
        file.name,
        file.notes.get("source", ""),
        "; ".join(filter(None, notes)),
        tuple(_quantiles(file) if by == QUANTILE else _cumulated(file)),
        rows,
        by == QUANTILE,
    )


def _quantiles(file: CsvFile) -> Iterator[float]:
    last = -1.0
    for line in file.lines:
        value = line.value(QUANTILE, 0, 1)
        if value <= last:
            raise line.wrong(QUANTILE, f"is {value:g} after {last:g}", "Sort the lines by rising quantile.")
        yield (last := value)


def _cumulated(file: CsvFile) -> Iterator[float]:
    weights = [line.value(WEIGHT, 0, 1e18) for line in file.lines]
    total = math.fsum(weights)
    if not total:
        raise file.lines[0].wrong(WEIGHT, "is 0 in all rows", "Give at least one row a weight above 0.")
    yield from (sum_ / total for sum_ in itertools.accumulate(weights))
