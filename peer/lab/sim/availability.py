"""When each peer is on: from a trace of real machines, or from distributions of the lengths of sessions and absences.

Both are CSV files:

    host,start,end      a trace: one session of a host in each line, in seconds. Each peer plays one host from a random
                        moment of its trace on, and from its beginning again at its end
    weight,on,off       a model: each peer draws a row. The lengths of its sessions and absences, in hours, are drawn
                        from the distributions in this row, such as `weibull 0.393 2.964`

The table `event_trace` of the Failure Trace Archive is a trace, too."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from peer.errors import UsageError
from peer.lab.sim.drawn_values import DrawnValues, quantiles_of
from peer.lab.sim.faults import Fault
from peer.lab.sim.measured_table import NAME, WEIGHT, CsvFile, CsvLine, check_columns, find_file, read_csv

KIND = "availability"
HOST, START, END = "host", "start", "end"
ON, OFF = "on", "off"
ARCHIVE = (
    "event_id",
    "component_id",
    "node_id",
    "platform_id",
    "node_name",
    "event_type",
    "event_start_time",
    "event_end_time",
    "event_end_reason",
)
"""Columns of the table event_trace of the Failure Trace Archive. event_type: 1 is available, 0 is not."""
SHORTEST_S = 1.0
"""Shorter sessions and absences are left out."""
HOUR = 3600.0
LEAST_MEAN_H, LONGEST_H = 1 / 60, 1e6

Span = tuple[float, float]
"""(begin, end) in seconds."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths in hours, from a cell such as `weibull 0.393 2.964`."""

    family: str
    first: float
    second: float = 0.0

    FAMILIES: ClassVar[dict[str, tuple[str, ...]]] = {
        "exponential": ("MEAN",),
        "weibull": ("SHAPE", "SCALE"),
        "gamma": ("SHAPE", "SCALE"),
        "lognormal": ("MU", "SIGMA"),
    }

    @property
    def mean(self) -> float:
        match self.family:
            case "exponential":
                return self.first
            case "weibull":
                return self.second * math.gamma(1 + 1 / self.first)
            case "gamma":
                return self.first * self.second
            case _:
                return math.exp(self.first + self.second**2 / 2)

    def draw(self, rng: random.Random) -> float:
        """Draw the length of one interval."""
        match self.family:
            case "exponential":
                return rng.expovariate(1 / self.first)
            case "weibull":
                return rng.weibullvariate(self.second, self.first)
            case "gamma":
                return rng.gammavariate(self.first, self.second)
            case _:
                return rng.lognormvariate(self.first, self.second)

    def draw_around(self, rng: random.Random) -> float:
        """Draw the length of the interval that contains a random moment. Longer than `draw` on average, because a long
        interval contains more moments: its density is that of `draw` times the length."""
        match self.family:
            case "exponential":
                return rng.gammavariate(2, self.first)
            case "weibull":
                return self.second * float(rng.gammavariate(1 + 1 / self.first, 1) ** (1 / self.first))
            case "gamma":
                return rng.gammavariate(self.first + 1, self.second)
            case _:
                return rng.lognormvariate(self.first + self.second**2, self.second)


@dataclass(frozen=True, slots=True)
class HostClass:
    """A row of a model: hosts whose sessions and absences have the same distributions."""

    weight: float
    on: Lengths
    off: Lengths

    def sessions(self, rng: random.Random) -> Iterator[Span]:
        """Yield the sessions from time 0 on, without end. The state at time 0 is that at a random moment."""
        is_on = rng.random() < self.on.mean / (self.on.mean + self.off.mean)
        begin, end = 0.0, rng.random() * (self.on if is_on else self.off).draw_around(rng)
        while True:
            if is_on:
                yield begin * HOUR, end * HOUR
            is_on = not is_on
            begin, end = end, end + (self.on if is_on else self.off).draw(rng)


@dataclass(frozen=True, slots=True)
class HostTrace:
    """The sessions of one host of a trace, ascending and disjoint, and the time from its first event to its last."""

    sessions_on: tuple[Span, ...]
    span: Span

    def sessions(self, rng: random.Random) -> Iterator[Span]:
        """Yield the sessions from time 0 on, without end. Time 0 is a random moment of the trace."""
        begin, end = self.span
        offset, length = begin + rng.random() * (end - begin), end - begin
        for again in itertools.count():
            for start, stop in self.sessions_on:
                if (at := stop - offset + again * length) > 0:
                    yield max(0.0, start - offset + again * length), at


@dataclass(frozen=True, slots=True)
class Availability:
    """When the peers of a simulation are on."""

    option: str
    source: str
    assumed: str
    hosts: tuple[HostClass | HostTrace, ...]
    weights: tuple[float, ...]

    def sessions(self, seed: int, number: int, seconds: float) -> list[Span]:
        """Return the sessions of a peer from 0 to `seconds`. They depend on the seed and the peer's number alone."""
        rng = random.Random(f"availability {seed} {number}")
        (host,) = rng.choices(self.hosts, self.weights)
        if isinstance(host, HostTrace) and not host.sessions_on:
            return []
        cut = ((begin, min(end, seconds)) for begin, end in host.sessions(rng))
        return _joined(itertools.takewhile(lambda span: span[0] < seconds, cut))

    def drawn(self, sessions: Sequence[Sequence[Span]], seconds: float) -> DrawnValues:
        """Return the report of the peers' sessions."""
        on = [sum(end - begin for begin, end in each) for each in sessions]
        lengths = [(end - begin) / HOUR for each in sessions for begin, end in each]
        values = {
            "on %": quantiles_of([100 * time / seconds for time in on]),
            "sessions": quantiles_of([len(each) for each in sessions]),
            "session h": quantiles_of(lengths),
        }
        assumed = "; ".join(filter(None, [self.assumed, "peer 0 is always on, so that there is a donor"]))
        return DrawnValues(self.option, self.source, assumed, values)


def _joined(spans: Iterator[Span]) -> list[Span]:
    """Join sessions with shorter absences than SHORTEST_S between them, and leave out shorter sessions."""
    joined: list[Span] = []
    for begin, end in spans:
        if joined and begin - joined[-1][1] < SHORTEST_S:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return [(begin, end) for begin, end in joined if end - begin >= SHORTEST_S]


def sessions_of(availability: Availability, seed: int, numbers: Sequence[int], seconds: float) -> list[list[Span]]:
    """Return the sessions of the peers with these numbers. The first one is always on."""
    return [
        [(0.0, seconds)] if place == 0 else availability.sessions(seed, number, seconds)
        for place, number in enumerate(numbers)
    ]


def absent_at_first(sessions: Sequence[Sequence[Span]]) -> frozenset[int]:
    """Return the places of the peers that are off at time 0."""
    return frozenset(place for place, each in enumerate(sessions) if not each or each[0][0] > 0)


def session_faults(sessions: Sequence[Sequence[Span]], seconds: float) -> tuple[Fault, ...]:
    """Return the faults with which the peers go off, without notice, and come back with their disks."""
    plan: list[Fault] = []
    for place, each in enumerate(sessions):
        for begin, end in each:
            plan += [Fault("restart", place, at=round(begin, 2))] if begin > 0 else []
            plan += [Fault("kill", place, at=round(end, 2))] if end < seconds else []
    return tuple(plan)


def availability_of(text: str) -> Availability:
    """Return the availability that a value of `--availability` names: a table of this package, or a file. Raises
    UsageError, which names line and column."""
    file = read_csv(find_file("--availability", text, KIND), ARCHIVE)
    notes = (f"--availability {text}", file.notes.get("source", ""), file.notes.get("assumed", ""))
    if ON in file.columns:
        classes = tuple(_host_class(line) for line in _checked(file, [ON, OFF], [WEIGHT, NAME]).lines)
        weights = tuple(each.weight for each in classes)
        if not any(weights):
            raise file.lines[0].wrong(WEIGHT, "is 0 in all rows", "Give at least one row a weight above 0.")
        return Availability(*notes, classes, weights)
    if "event_type" in file.columns:
        needed = ["node_id", "event_type", "event_start_time", "event_end_time"]
        _checked(file, needed, [column for column in ARCHIVE if column not in needed])
        events = [(line.text("node_id"), _event(line), _is_on(line)) for line in file.lines]
    else:
        events = [(line.text(HOST), _session(line), True) for line in _checked(file, [HOST, START, END]).lines]
    hosts = tuple(_traces(events))
    if not hosts:
        raise UsageError(f"{file.name} has no session", "Give at least one that is longer than 0 seconds.")
    return Availability(*notes, hosts, (1.0,) * len(hosts))


def _checked(file: CsvFile, needed: Sequence[str], optional: Sequence[str] = ()) -> CsvFile:
    check_columns(file, needed, optional)
    return file


def _host_class(line: CsvLine) -> HostClass:
    weight = line.value(WEIGHT, 0, 1e18) if WEIGHT in line.cells else 1.0
    return HostClass(weight, _lengths(line, ON), _lengths(line, OFF))


def _lengths(line: CsvLine, column: str) -> Lengths:
    """Parse a distribution. Raises UsageError."""
    cell = line.text(column)
    forms = ", ".join(" ".join([family, *names]) for family, names in Lengths.FAMILIES.items())
    fix = f"Give one of: {forms}. Numbers are for hours, SHAPE and SIGMA from 0.05 to 10."
    family, *rest = cell.split()
    try:
        numbers = [float(word) for word in rest]
    except ValueError:
        numbers = []
    names = Lengths.FAMILIES.get(family.lower(), ())
    if not names or len(numbers) != len(names):
        raise line.wrong(column, f"is {cell!r}", fix)
    limits = {"MEAN": (1e-3, LONGEST_H), "SCALE": (1e-3, LONGEST_H), "MU": (-10, 15)}
    for name, number in zip(names, numbers, strict=True):
        least, most = limits.get(name, (0.05, 10))
        if not least <= number <= most:
            raise line.wrong(column, f"is {cell!r}: {name} is {number:g}", f"Give {least:g} to {most:g}. {fix}")
    lengths = Lengths(family.lower(), *numbers)
    if lengths.mean < LEAST_MEAN_H:
        raise line.wrong(column, f"is {cell!r}, on average less than a minute", f"Numbers are for hours. {fix}")
    return lengths


def _session(line: CsvLine) -> Span:
    return _times(line, START, END)


def _event(line: CsvLine) -> Span:
    return _times(line, "event_start_time", "event_end_time")


def _times(line: CsvLine, start: str, end: str) -> Span:
    begin, stop = (line.value(column, 0, 1e11, "seconds") for column in (start, end))
    if stop < begin:
        raise line.wrong(end, f"is {stop:g}, before {start} {begin:g}", "Give the end of the session.")
    return begin, stop


def _is_on(line: CsvLine) -> bool:
    return line.value("event_type", 0, 1e9) == 1


def _traces(events: Sequence[tuple[str, Span, bool]]) -> Iterator[HostTrace]:
    """Yield the hosts of a trace, in the order of their first lines."""
    by_host: dict[str, list[tuple[Span, bool]]] = {}
    for host, span, is_on in events:
        by_host.setdefault(host, []).append((span, is_on))
    for each in by_host.values():
        begin, end = min(span[0] for span, _ in each), max(span[1] for span, _ in each)
        if end > begin:
            yield HostTrace(tuple(_joined(iter(sorted(span for span, is_on in each if is_on)))), (begin, end))
