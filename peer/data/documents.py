"""Reads the documents of source files: a text file, a line of JSONL, or a row of a parquet file is a document.

Memory is bounded: long texts are read in pieces."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from blake3 import blake3

from peer.data.lines import MAX_LINE_BYTES, lines
from peer.data.pieces import pieces
from peer.data.sources import SourceFile, changed, opened, refused
from peer.observe.formatting import amount

if TYPE_CHECKING:
    import pyarrow.parquet as pq

FIELD = "text"
WHOLE_BYTES = 2**23
"""Text files up to this many bytes are read at once, longer ones twice: for the digest and for the text."""
BLOCK_BYTES = 2**20
MOST_ROWS = 4096
"""Most rows of a parquet file that are read at once."""
MOST_NAMED, LONGEST_NAMED = 10, 400
"""Most fields that one message names, and most characters of their names."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the sources: the index of a file, and the index of a record (line or row) within it."""

    file: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class TextDocument:
    """Attributes of a document. Its text is delivered separately, in pieces."""

    next_place: Place
    """Where the next document begins."""
    digest: bytes
    """BLAKE3 of the text in UTF-8. It determines whether the document goes to the hold-out."""
    nbytes: int
    """Bytes of the text in UTF-8."""
    read: int
    """Bytes of all sources up to the end of this document."""


Read = tuple[TextDocument, Iterator[str]]
"""A document and the pieces of its text, of which there is at least one."""


class DocumentReader:
    """Iterates over all documents from a place on, in the order of the files.

    The pieces of a document have to be consumed before the next document is requested."""

    def __init__(self, files: tuple[SourceFile, ...], start: Place) -> None:
        self._files = files
        self._start_place = start
        self._before = sum(file.nbytes for file in files[: start.file])
        self._within = 0

    def __iter__(self) -> Iterator[Read]:
        """Yield the documents. Raises DataError, which names the file and the line or row."""
        readers = {"text": self._text, "jsonl": self._lines, "parquet": self._rows}
        for number in range(self._start_place.file, len(self._files)):
            file = self._files[number]
            self._within = 0
            yield from readers[file.kind](number, self._start_place.record if number == self._start_place.file else 0)
            self._before += file.nbytes

    def _text(self, number: int, _: int) -> Iterator[Read]:
        file, next_place = self._files[number], Place(number + 1)
        if file.nbytes <= WHOLE_BYTES:
            content = b"".join(_blocks(file))
            text = "".join(_decoded(file.path, iter([content])))
            yield self._document(next_place, text, content, file.nbytes)
            return
        hasher, nbytes = blake3(), 0
        for block in _blocks(file):
            hasher.update(block)
            nbytes += len(block)
        document = TextDocument(next_place, hasher.digest(), nbytes, self._before + file.nbytes)
        yield document, pieces(_decoded(file.path, _blocks(file)))

    def _lines(self, number: int, first: int) -> Iterator[Read]:
        file = self._files[number]
        for at, line in enumerate(lines(file, self._set_offset)):
            if at < first or not line.strip():
                continue
            where = f"{file.path}, line {at + 1}"
            text = _text_of(line, where)
            yield self._document(Place(number, at + 1), text, _utf8(text, where), self._within)

    def _rows(self, number: int, first: int) -> Iterator[Read]:
        file = self._files[number]
        for row, rows, value in _rows(file, first):
            where = f"{file.path}, row {row + 1}"
            if not isinstance(value, str):
                raise refused(f"{where} has no `{FIELD}`", "Leave out the rows without text, or fill them.")
            content = _utf8(value, where)
            if len(content) > MAX_LINE_BYTES:
                raise refused(
                    f"{where} has a text of more than {amount(MAX_LINE_BYTES, 'bytes')}",
                    "Put it into a .txt file of its own.",
                )
            yield self._document(Place(number, row + 1), value, content, file.nbytes * (row + 1) // rows)

    def _document(self, next_place: Place, text: str, content: bytes, within: int) -> Read:
        document = TextDocument(next_place, blake3(content).digest(), len(content), self._before + within)
        return document, pieces([text]) if text else iter([""])

    def _set_offset(self, within: int) -> None:
        self._within = within


# -- text files --------------------------------------------------------------------------------------------------------


def _blocks(file: SourceFile) -> Iterator[bytes]:
    """Yield the content of a file in blocks, without a byte order mark. Raises DataError."""
    mark = codecs.BOM_UTF8
    try:
        with opened(file) as source:
            while block := source.read(BLOCK_BYTES):
                if source.tell() > file.nbytes:
                    raise changed(file)
                yield block.removeprefix(mark)
                mark = b""
    except OSError as error:
        raise refused(f"{file.path} cannot be read: {error.strerror}", "Make it readable, or leave it out.") from error


def _decoded(path: Path, blocks: Iterator[bytes]) -> Iterator[str]:
    decoder, before, held = codecs.getincrementaldecoder("utf-8")(), 0, 0
    try:
        for block in blocks:
            yield decoder.decode(block)
            before += len(block)
            held = len(decoder.getstate()[0])
        decoder.decode(b"", final=True)
    except UnicodeDecodeError as error:
        raise refused(
            f"{path} is not UTF-8 at byte {before - held + error.start}",
            "Convert it, e.g. with iconv -t UTF-8, or leave it out.",
        ) from error


# -- JSONL -------------------------------------------------------------------------------------------------------------


def _text_of(line: bytes, where: str) -> str:
    try:
        record = json.loads(line.decode())
    except UnicodeDecodeError as error:
        raise refused(f"{where} is not UTF-8", "Convert the file, e.g. with iconv -t UTF-8.") from error
    except json.JSONDecodeError as error:
        raise refused(f"{where} is no JSON: {error.msg} at column {error.colno}", "Mend or remove the line.") from error
    except ValueError as error:  # Python's bound on the digits of a number
        raise refused(f"{where} has a number of too many digits", "Mend or remove the line.") from error
    except RecursionError as error:
        raise refused(f"{where} is nested too deeply", "Mend or remove the line.") from error
    text = record.get(FIELD) if isinstance(record, dict) else None
    if not isinstance(text, str):
        found = ", ".join(map(repr, list(record)[:MOST_NAMED])) if isinstance(record, dict) else ""
        raise refused(
            f"{where} has no `{FIELD}` that is a string"
            + (f", but the fields {found[:LONGEST_NAMED]}" if found else ""),
            f'Every line is an object {{"{FIELD}": "…"}}. Rename the field that holds the texts.',
        )
    return text


def _utf8(text: str, where: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise refused(f"{where} has half a character (a lone surrogate)", "Mend or remove the record.") from error


# -- parquet -----------------------------------------------------------------------------------------------------------


def _rows(file: SourceFile, first: int) -> Iterator[tuple[int, int, object]]:
    """Yield (row, number of rows in the file, value) of the text column, from row `first` on. Raises DataError."""
    import pyarrow as pa  # imported here, because it is optional and only parquet files need it
    import pyarrow.parquet as pq

    path = file.path
    try:
        with opened(file) as source, pq.ParquetFile(source, buffer_size=BLOCK_BYTES, pre_buffer=False) as table:
            column = _column(path, table)
            begin, rows = 0, table.metadata.num_rows
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                if begin + group.num_rows > first:
                    for row, value in _values(table, number, column, begin):
                        if row >= first:
                            yield row, rows, value
                begin += group.num_rows
    except (pa.ArrowException, UnicodeDecodeError) as error:
        what = str(error).partition("\n")[0]
        raise refused(f"{path} is cut off, damaged or no parquet: {what}", "Get it again, or leave it out.") from error
    except OSError as error:
        what = (error.strerror or str(error)).partition("\n")[0]
        raise refused(f"{path} cannot be read: {what}", "Get it again, or leave it out.") from error


def _column(path: Path, table: pq.ParquetFile) -> int:
    """Return the index of the text column among the file's leaf columns. Raises DataError when there is none."""
    from pyarrow import types

    schema = table.schema_arrow
    if FIELD not in schema.names:
        found = ", ".join(schema.names[:MOST_NAMED])
        raise refused(f"{path} has no column `{FIELD}`, but {found}", f"Rename the column of the texts to `{FIELD}`.")
    if (count := schema.names.count(FIELD)) > 1:
        raise refused(f"{path} has {count} columns `{FIELD}`", f"Rename all but one column `{FIELD}`.")
    kind = schema.field(FIELD).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)):
        raise refused(f"{path} has a column `{FIELD}` of {kind}, not of strings", "Write the texts as strings.")
    return [table.schema.column(at).path for at in range(len(table.schema))].index(FIELD)


def _values(table: pq.ParquetFile, group: int, column: int, begin: int) -> Iterator[tuple[int, object]]:
    about = table.metadata.row_group(group)
    nbytes = about.column(column).total_uncompressed_size
    rows = max(1, min(MOST_ROWS, BLOCK_BYTES * about.num_rows // max(1, nbytes)))
    for batch in table.iter_batches(rows, row_groups=[group], columns=[FIELD], use_threads=False):
        yield from enumerate(batch.column(0).to_pylist(), begin)
        begin += batch.num_rows
