"""Writes a comparison's rows, one for each round of each peer: as CSV, or as Parquet if pyarrow is installed."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from peer.lab.compare.result import Comparison
from peer.whole_files import replace_file

TYPES = {
    "method": "string",
    "seed": "int64",
    "total_rounds": "int64",
    "round": "int64",
    "peer": "int64",
    "outcome": "string",
    "loss": "float64",
    "tokens": "int64",
    "bytes": "int64",
    "seconds": "float64",
}
"""The columns and their types, as pyarrow names them."""


def write_rows(outcome: Comparison, file: Path) -> None:
    """Write `outcome.rows()` as CSV or Parquet, chosen by the file's suffix. The file is replaced atomically.

    A loss that was not measured is an empty field in CSV and null in Parquet. Raises OSError, and ModuleNotFoundError
    for Parquet without pyarrow."""
    if file.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in TYPES.items()])
        packed = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(list(outcome.rows()), schema=schema), packed)
        replace_file(file, packed.getvalue().to_pybytes(), mode=0o666)
        return
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, TYPES, lineterminator="\n")
    writer.writeheader()
    writer.writerows(outcome.rows())
    replace_file(file, lines.getvalue().encode(errors="surrogateescape"), mode=0o666)
