"""The file of a comparison's rows, one for each round of each peer: CSV, or Parquet where pyarrow is installed."""

from __future__ import annotations

import csv
from pathlib import Path

from peer.lab.compare.result import Comparison

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
    """Write `outcome.rows()`, as CSV or Parquet by the ending of the file. A loss that was not measured is an empty
    field in CSV and null in Parquet. Raises OSError, and ModuleNotFoundError for Parquet without pyarrow."""
    if file.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in TYPES.items()])
        pq.write_table(pa.Table.from_pylist(list(outcome.rows()), schema=schema), file)
        return
    with file.open("w", newline="", encoding="utf-8") as lines:
        writer = csv.DictWriter(lines, TYPES, lineterminator="\n")
        writer.writeheader()
        writer.writerows(outcome.rows())
