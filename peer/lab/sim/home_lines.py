"""Draws each peer's access link from a table of home lines."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from peer.lab.sim.drawn_values import DrawnValues, quantiles_of
from peer.lab.sim.links import MBIT, PROFILES, Link
from peer.lab.sim.measured_table import Column, MeasuredTable, find_file, read_table

KIND = "links"
COLUMNS = {
    "down": Column("Mbit/s", 0.01, 1e6),
    "up": Column("Mbit/s", 0.01, 1e6),
    "rtt": Column("ms", 0, 10_000),
    "jitter": Column("ms", 0, 10_000, 0.0),
    "loss": Column("%", 0, 50, 0.0),
}
"""Columns of a table of links. rtt: round trip from the home to a server near it. jitter: largest additional delay of a
message, one way. loss: of the packets, in one direction."""


@dataclass(frozen=True, slots=True)
class HomeLines:
    """The links of a simulation: one link of all peers, or a table from which each peer draws its own."""

    option: str
    link: Link | MeasuredTable

    def links(self, seed: int, numbers: Iterable[int]) -> dict[int, Link]:
        """Return the link of each peer, by its number. The link of a peer depends on the seed and its number alone."""
        if isinstance(self.link, Link):
            return dict.fromkeys(numbers, self.link)
        table = self.link
        return {number: link_of(table.name, table.draw(random.Random(f"link {seed} {number}"))) for number in numbers}

    def drawn(self, links: Iterable[Link]) -> DrawnValues | None:
        """Return the report of these links. None: nothing was drawn."""
        if isinstance(self.link, Link):
            return None
        lines = list(links)
        values = {
            "up Mbit/s": [line.up / MBIT for line in lines],
            "down Mbit/s": [line.down / MBIT for line in lines],
            "rtt ms": [2000 * line.latency_s for line in lines],
            "jitter ms": [1000 * line.jitter_s for line in lines],
            "loss %": [100 * line.loss for line in lines],
        }
        spreads = {name: quantiles_of(each) for name, each in values.items()}
        return DrawnValues(self.option, self.link.source, self.link.assumed, spreads)


def home_lines(text: str) -> HomeLines:
    """Return the links that a value of `--link` names: a profile, a table of this package, or a file. Raises
    UsageError."""
    option = f"--link {text}"
    if text in PROFILES:
        return HomeLines(option, PROFILES[text])
    return HomeLines(option, read_table(find_file("--link", text, KIND, tuple(PROFILES)), COLUMNS))


def link_of(name: str, row: Mapping[str, float]) -> Link:
    """Return the link of one row of a table."""
    return Link(
        name,
        up=row["up"] * MBIT,
        down=row["down"] * MBIT,
        latency_s=row["rtt"] / 2000,
        jitter_s=row["jitter"] / 1000,
        loss=row["loss"] / 100,
    )
