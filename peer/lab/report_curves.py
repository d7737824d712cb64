"""Reads the loss curves that `peer plot` draws from earlier reports, of one or of several commands.

A report is the JSON of `peer compare --json`, `peer swarm --report` or `peer simulate --json`, or the CSV file of
`--log csv`."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.errors import UsageError

MOST_BYTES = 250_000_000
FIX = "Give a file that peer compare --json, peer swarm --report, peer simulate --json or --log csv has written."


@dataclass(frozen=True, slots=True)
class ReportCurve:
    """One curve of a plot."""

    name: str
    losses: tuple[float, ...]
    """Loss at each point, in nats per token."""
    along: Mapping[str, tuple[float, ...]]
    """Measure ("tokens", "bytes", "seconds", "rounds") -> its value at each point."""


def read_report(file: Path) -> list[ReportCurve]:
    """Return the curves of a report. Raises UsageError for a file that cannot be read, is no report, or has no loss."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise UsageError(f"{file} is larger than {MOST_BYTES // 10**6} MB", FIX)
        text = file.read_text()
        curves = list(_logged(text) if file.suffix.lower() == ".csv" else curves_of(json.loads(text)))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}", FIX) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{file} is no report: {error}", FIX) from error
    found = [curve for curve in curves if curve.losses]
    if not found:
        raise UsageError(f"{file} has no loss", "Play longer, or with a smaller --set eval_every=...")
    return found


def curves_of(report: Any) -> Iterator[ReportCurve]:
    """Return the curves of a report's JSON. Raises ValueError, TypeError, KeyError or AttributeError if it is no
    report."""
    if "methods" in report:
        for method in report["methods"]:
            marks = method["curve"]
            along = {name: _numbers(mark[name] for mark in marks) for name in ("tokens", "bytes", "seconds")}
            along["rounds"] = _numbers(mark["round"] for mark in marks)
            yield ReportCurve(str(method["name"]), _numbers(mark["loss"] for mark in marks), along)
    elif "swarm" in report:
        for number, peer in enumerate(report["peers"], 1):
            measured = [(round_, loss) for round_, loss in peer["val_loss"] if loss is not None]
            rounds = _numbers(round_ for round_, _ in measured)
            yield ReportCurve(f"peer {number}", _numbers(loss for _, loss in measured), {"rounds": rounds})
    elif "loss_by_hour" in report:
        hours = [(hour, loss) for hour, loss in enumerate(report["loss_by_hour"], 1) if loss is not None]
        seconds = _numbers(3600.0 * hour for hour, _ in hours)
        yield ReportCurve(f"{report['peers']} peers", _numbers(loss for _, loss in hours), {"seconds": seconds})
    else:
        raise ValueError("it has neither methods nor peers nor hours")


def _logged(text: str) -> Iterator[ReportCurve]:
    """Return the curve of a tracker's CSV file. It repeats the last evaluation in each row; only the first of equal
    losses in a row counts, because it has the time of the evaluation."""
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["name"] == "peer_eval_loss_nats"]
    changed = [next(same) for _, same in itertools.groupby(rows, key=lambda row: row["value"])]
    start = float(rows[0]["time"]) if rows else 0.0
    along = {
        "own tokens": _numbers(row["step"] for row in changed),
        "seconds": _numbers(float(row["time"]) - start for row in changed),
    }
    yield ReportCurve("hold-out", _numbers(row["value"] for row in changed), along)


def _numbers(values: Iterator[Any]) -> tuple[float, ...]:
    numbers = tuple(map(float, values))
    if not all(map(math.isfinite, numbers)):
        raise ValueError("a number is not finite")
    return numbers


def named_curves(reports: Mapping[Path, Sequence[ReportCurve]]) -> list[ReportCurve]:
    """Return all curves. If there are several files, a curve's name begins with its file's name."""
    if len(reports) == 1:
        return list(*reports.values())
    return [
        ReportCurve(file.stem if len(curves) == 1 else f"{file.stem}: {curve.name}", curve.losses, curve.along)
        for file, curves in reports.items()
        for curve in curves
    ]
