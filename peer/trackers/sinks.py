"""The child process of one tracker: `python -m peer.trackers.sinks KIND PLACE`, with a record a line at standard input.

A kind of tracker is one class here, and one entry of `SINKS`. The process ends with its input, or with the first error
of the library, which it prints as its last line."""

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
"""Bytes of one line."""
LEFT_OUT = re.compile(r"_(bucket|created|info)$")
"""Samples that are no curves: buckets of histograms, times of beginning, facts of the program."""


class TrackerSink(Protocol):
    """Where curves go. A sink is opened once, when the run's name is known."""

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        """Take the values of one moment. `step`: tokens that the peer has trained on, or of an operator's node the
        round, and never less than before. `at`: seconds since the epoch."""

    def close(self) -> None:
        """Write what is left."""


class CsvSink:
    """A file with a line for each value: seconds since the epoch, step, name, value. It is appended to."""

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
    """Event files of TensorBoard, written by its own package without torch or TensorFlow."""

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
    """A local project of Trackio. Shown by `trackio show`. Needs no account."""

    def __init__(self, place: str, run: str, peer: str) -> None:
        self._trackio = import_module("trackio")
        self._trackio.init(project=place, name=f"{run}-{peer[-6:]}", resume="allow", embed=False)

    def log(self, values: Mapping[str, float], step: int, at: float) -> None:
        self._trackio.log(dict(values), step=step)

    def close(self) -> None:
        self._trackio.finish()


class WandbSink:
    """A project of Weights & Biases: the account, and whether it is online, are those of its own settings."""

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
    """Yield the samples of a page of metrics that make a curve: name, value, whether it has a label. A label's value
    follows the name behind a slash."""
    from prometheus_client.parser import text_string_to_metric_families

    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if not LEFT_OUT.search(sample.name):
                yield "/".join((sample.name, *sample.labels.values())), sample.value, bool(sample.labels)


def follow(lines: Iterator[bytes], kind: str, place: str) -> None:
    """Log each record. A labelled value begins with the first one that is not 0: most refusals never happen."""
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
        last = max(last, int(record["step"]))  # a restored checkpoint has fewer tokens, and trackers refuse to go back
        sink.log(values, last, record["at"])
    if sink is not None:
        sink.close()


def main() -> None:
    kind, place = sys.argv[1:]
    follow(iter(lambda: sys.stdin.buffer.readline(MOST_RECORD), b""), kind, place)


if __name__ == "__main__":
    main()
