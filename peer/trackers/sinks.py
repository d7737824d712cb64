"""The child process of one tracker: `python -m peer.trackers.sinks KIND PLACE`, with one JSON record per line on stdin.

Each kind of tracker is one class here and one entry in `SINKS`. The process ends at the end of its input, or with the
first error of the library, which it prints as its last line."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TextIO

MOST_RECORD = 4 * 2**20
"""Longest line in bytes."""
LEFT_OUT = re.compile(r"_(bucket|created|info)$")
"""Samples that are not logged as curves: histogram buckets, creation times, and program information."""


class TrackerSink(Protocol):
    """Writes values to a tracker. Created once the run's name is known."""

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        """Log the values of one moment. `step`: tokens that the peer has trained on, or the round on an operator's
        node; never decreases. `at`: seconds since the epoch."""

    def close(self) -> None:
        """Flush and close the tracker."""


class CsvSink:
    """Appends to a CSV file with one line for each value: seconds since the epoch, step, name, value."""

    def __init__(self, place: str, run: str, peer: str) -> None:
        path = Path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", newline="")
        self._rows = csv.writer(self._file)
        if path.stat().st_size == 0:
            self._rows.writerow(["time", "step", "name", "value"])

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        self._rows.writerows([f"{at:.3f}", step, name, repr(value)] for name, value in values.items())
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class TensorBoardSink:
    """Writes TensorBoard event files with the tensorboard package alone, without torch or TensorFlow."""

    def __init__(self, place: str, run: str, peer: str) -> None:
        files = import_module("tensorboard.summary.writer.event_file_writer")
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._writer = files.EventFileWriter(place)

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(self._event(wall_time=at, step=step, summary=self._summary(value=scalars)))
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class TrackioSink:
    """Logs to a local Trackio project, which `trackio show` displays. Needs no account."""

    def __init__(self, place: str, run: str, peer: str) -> None:
        self._trackio = import_module("trackio")
        self._trackio.init(project=place, name=f"{run}-{peer[-6:]}", resume="allow", embed=False)

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class WandbSink:
    """Logs to a Weights & Biases project. Account and online mode come from wandb's own settings."""

    def __init__(self, place: str, run: str, peer: str) -> None:
        self._run = import_module("wandb").init(project=place, name=f"{run}-{peer[-6:]}")

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Any] = {
    "csv": CsvSink,
    "tensorboard": TensorBoardSink,
    "trackio": TrackioSink,
    "wandb": WandbSink,
}


def curves(text: str) -> Iterator[tuple[str, float, bool]]:
    """Yield the samples of a metrics page that are curves: name, value, whether it has labels. The values of labels are
    appended to the name, separated by slashes."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not LEFT_OUT.search(sample.name):
                yield "/".join((sample.name, *sample.labels.values())), sample.value, bool(sample.labels)


def follow(lines: Iterator[bytes], kind: str, place: str) -> None:
    """Log each record. A labelled value is logged only from its first value other than 0 on, because most of them, such
    as refusals by code, stay 0."""
    sink: TrackerSink | None = None
    seen, last = set[str](), -1
    for line in lines:
        record = json.loads(line)
        if sink is None:
            sink = SINKS[kind](place, record["run"], record["peer"])
        values = dict[str, float](record["logged"])
        for name, value, labelled in curves(record["metrics"]):
            if value or not labelled or name in seen:
                seen.add(name)
                values[name] = value
        # a restored checkpoint may have fewer tokens, and trackers refuse steps that decrease
        last = max(last, int(record["step"]))
        sink.log(values, last, record["at"])
    if sink is not None:
        sink.close()


def main() -> None:
    kind, place = sys.argv[1:]
    follow(iter(lambda: sys.stdin.buffer.readline(MOST_RECORD), b""), kind, place)


if __name__ == "__main__":
    main()
