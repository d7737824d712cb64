"""The computing speeds of the peers: spaced by equal factors, log-normal, or drawn from a table."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from peer.errors import UsageError
from peer.lab.sim.drawn_values import DrawnValues, quantiles_of
from peer.lab.sim.measured_table import Column, MeasuredTable, find_file, read_table

KIND = "speeds"
COLUMNS = {"speed": Column("", 1e-3, 1e3)}
MOST_RATIO, MOST_SIGMA = 1000.0, 2.0
LOGNORMAL_SOURCE = (
    "that processor speeds are log-normal: Heien, Kondo, Anderson: A Correlated Resource Model of Internet End Hosts, "
    "IEEE TPDS 23 (6), 2012"
)
_NUMBER = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?|nan|inf", re.ASCII | re.IGNORECASE)
_LOGNORMAL = re.compile(r"lognormal:(\d{1,3}(?:\.\d{1,9})?)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Spaced:
    """Speeds from 1 to `ratio`, spaced by equal factors. Peer 0 is the slowest."""

    ratio: float


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Log-normal speeds with median 1."""

    sigma: float
    """Standard deviation of the natural logarithm."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """The computing speeds of a simulation. The speed of a peer is relative to that of `--step-seconds`."""

    option: str
    of: Spaced | LogNormal | MeasuredTable

    @property
    def description(self) -> str:
        """The speeds for people. Empty: all peers are equal."""
        if not isinstance(self.of, Spaced):
            return self.option.removeprefix("--")
        return f"speeds 1 to {self.of.ratio:g}" if self.of.ratio > 1 else ""

    def speed(self, seed: int, number: int, peers: int) -> float:
        """Return the speed of a peer. A drawn speed depends on the seed and the peer's number alone."""
        if isinstance(self.of, Spaced):
            return float(self.of.ratio ** (number / max(1, peers - 1)))
        rng = random.Random(f"speed {seed} {number}")
        return rng.lognormvariate(0, self.of.sigma) if isinstance(self.of, LogNormal) else self.of.draw(rng)["speed"]

    def slowest(self, seed: int, peers: int) -> float:
        """Return the least speed of the peers."""
        return min(self.speed(seed, number, peers) for number in range(peers))

    def drawn(self, speeds: Iterable[float]) -> DrawnValues | None:
        """Return the report of these speeds. None: nothing was drawn."""
        if isinstance(self.of, Spaced):
            return None
        if isinstance(self.of, LogNormal):
            source, assumed = LOGNORMAL_SOURCE, f"SIGMA {self.of.sigma:g}, as given"
        else:
            source, assumed = self.of.source, self.of.assumed
        return DrawnValues(self.option, source, assumed, {"speed": quantiles_of(list(speeds))})


def speeds_of(given: float | str) -> Speeds:
    """Return the speeds that a value of `--speeds` names: a number, `lognormal:SIGMA`, or a file. Raises UsageError."""
    text = given if isinstance(given, str) else f"{given:g}"
    option = f"--speeds {text}"
    if _NUMBER.fullmatch(text):
        if not 1 <= (ratio := float(text)) <= MOST_RATIO:
            raise UsageError(f"{option} cannot be", f"Give fastest over slowest, from 1 to {MOST_RATIO:g}.")
        return Speeds(option, Spaced(ratio))
    if found := _LOGNORMAL.fullmatch(text):
        if not 0 < (sigma := float(found[1])) <= MOST_SIGMA:
            raise UsageError(f"{option} cannot be", f"Give a SIGMA above 0, at most {MOST_SIGMA:g}.")
        return Speeds(option, LogNormal(sigma))
    path = find_file("--speeds", text, KIND, ("a number", "lognormal:SIGMA"))
    return Speeds(option, read_table(path, COLUMNS))
