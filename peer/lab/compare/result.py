"""The outcome of a comparison: numbers as JSON, and a table for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peer.errors import SwarmFailed
from peer.lab.compare.curve import Curve, Mark, Row, SwarmCourse, loss_at, mean_of, reached
from peer.lab.compare.entries import DDP, SINGLE, Entry, baseline_in_words
from peer.lab.compare.worth import Worth, Yardstick, measure, worths

Play = Callable[[Entry, int], SwarmCourse]
"""Runs the swarm of an entry with a seed."""


@dataclass(frozen=True, slots=True)
class PlayedEntry:
    """One swarm of a comparison."""

    method: str
    seed: int
    total_rounds: int
    """Its length in rounds: `--worth` plays `single` at several lengths."""
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """The outcome of one method."""

    entry: Entry
    curve: Curve
    """Mean curve over the seeds."""
    losses: tuple[float, ...]
    """Loss of each seed in nats per token, at the number of tokens that all methods reached."""
    at_target: Mark | None
    """The first evaluation of `curve` that reached the target. None: it was not reached."""
    worth: Worth | None = None
    """None: not requested."""

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of all methods, and how they were compared."""

    peers: int
    seeds: tuple[int, ...]
    place: str
    """Where the swarms ran, as a sentence for people."""
    tokens: float
    """Tokens of all peers together at which the losses are compared: the most that every method reached, except
    `single`, which has the tokens of one peer."""
    target: float
    why: str
    """Why this is the target, as a sentence for people."""
    standings: tuple[Standing, ...]
    yardstick: Yardstick | None = None
    """The losses of `single` from which the worth is interpolated. None: the worth was not requested."""
    played: tuple[PlayedEntry, ...] = ()
    """All swarms, including those of `single` at other lengths."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one flat record for each round of each peer of each swarm. Losses in nats per token; seconds, tokens
        and bytes count from the start."""
        for swarm in self.played:
            for row in swarm.rows:
                yield {
                    "method": swarm.method,
                    "seed": swarm.seed,
                    "total_rounds": swarm.total_rounds,
                    **asdict(row),
                    "bytes": round(row.bytes),
                    "seconds": round(row.seconds, 3),
                }

    def to_json(self) -> dict[str, Any]:
        return {
            "peers": self.peers,
            "seeds": list(self.seeds),
            "place": self.place,
            "tokens": round(self.tokens),
            "target": self.target,
            "target_reason": self.why,
            "methods": [_method_as_json(standing) for standing in self.standings],
            "single": None if self.yardstick is None else self.yardstick.to_json(),
            "rows": list(self.rows()),
        }


def compare(
    entries: Sequence[Entry],
    peers: int,
    seeds: Sequence[int],
    place: str,
    play: Play,
    target: float | None = None,
    single: Entry | None = None,
) -> Comparison:
    """Run every entry with every seed, the entries by turns. `single`: that baseline, if the worth of each method is to
    be measured; it need not be one of the entries. Raises SwarmFailed for a swarm that was never evaluated."""

    swarms = list[PlayedEntry]()

    def curve_of(entry: Entry, seed: int) -> Curve:
        course = play(entry, seed)
        if not course.curve:
            raise SwarmFailed(f"{entry.name} with seed {seed}: no peer was evaluated", "Give more --steps.")
        swarms.append(PlayedEntry(entry.name, seed, entry.manifest.train.total_rounds, course.rows))
        return course.curve

    played: dict[str, list[Curve]] = {entry.name: [] for entry in entries}
    for seed in seeds:
        for entry in entries:
            played[entry.name].append(curve_of(entry, seed))
    means = {name: mean_of(curves) for name, curves in played.items()}
    equal = [entry.name for entry in entries if not entry.has_fewer_tokens] or list(played)
    tokens = min(curve[-1].tokens for name in equal for curve in played[name])
    losses = {name: tuple(loss_at(curve, tokens) for curve in curves) for name, curves in played.items()}
    aim, why = _aim(means, target)
    yardstick = None if single is None else measure(single, curve_of, seeds, losses, peers)
    worth = {} if yardstick is None else worths(yardstick, seeds, losses)
    standings = tuple(
        Standing(entry, means[entry.name], losses[entry.name], reached(means[entry.name], aim), worth.get(entry.name))
        for entry in entries
    )
    return Comparison(peers, tuple(seeds), place, tokens, aim, why, standings, yardstick, tuple(swarms))


def _aim(curves: dict[str, Curve], target: float | None) -> tuple[float, str]:
    """Return the target loss and the reason for it."""
    if target is not None:
        return target, "as --target says"
    name, curve = max(curves.items(), key=lambda item: min(mark.loss for mark in item[1]))
    return min(mark.loss for mark in curve), f"the least loss of {name}, which every method came to"


def _method_as_json(standing: Standing) -> dict[str, Any]:
    manifest = standing.entry.manifest
    at = standing.at_target
    return {
        "name": standing.entry.name,
        "method": asdict(standing.entry.method),
        "total_rounds": manifest.train.total_rounds,
        "loss": standing.loss,
        "losses": list(standing.losses),
        "peers": standing.entry.peers,
        "worth": None if standing.worth is None else standing.worth.to_json(),
        "to_target": None if at is None else at.to_json(),
        "curve": [mark.to_json() for mark in standing.curve],
    }


def table(outcome: Comparison) -> str:
    """Return the outcome as a text table."""
    rows = [_row(standing, outcome) for standing in outcome.standings]
    widths = [max(len(row[column]) for row in [HEADS, *rows]) for column in range(len(HEADS))]
    shown = [place for place, head in enumerate(HEADS) if head not in OF_WORTH or outcome.yardstick is not None]

    def line(cells: Sequence[str]) -> str:
        first, *others = ((cells[place], widths[place]) for place in shown)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])

    until = {place: widths[place] for place in shown}
    before = sum(width + 2 for place, width in until.items() if place < TO_TARGET) - 2
    behind = sum(width + 2 for place, width in until.items() if TO_TARGET <= place < TO_TARGET + 3) - 2
    lines = [
        f"{outcome.peers} peers, {seeds_in_words(outcome.seeds)}, {outcome.place}",
        f"target {outcome.target:.4f}: {outcome.why}",
        f"a loss is the mean of the peers that were evaluated in that round: {_evaluated(outcome)} of {outcome.peers}",
        *_remarks(outcome),
        "",
        f"{'at ' + amount(outcome.tokens) + ' tokens':^{before}}  {'to the target':^{behind}}".rstrip(),
        line(HEADS),
    ]
    return "\n".join([*lines, *map(line, rows)])


HEADS = (
    *("method", "codec", "every", "loss", "+ %", "spread", "sent", "time"),
    *("tokens", "sent", "time", "worth", "+-", "of ddp"),
)
TO_TARGET = HEADS.index("tokens")
OF_WORTH = ("worth", "+-", "of ddp")


def _remarks(outcome: Comparison) -> list[str]:
    """Return sentences that explain the baselines and the worth, if the table has them."""
    names = [standing.entry.name for standing in outcome.standings]
    remarks = [baseline_in_words(name, outcome.peers) for name in (SINGLE, DDP) if name in names]
    if outcome.yardstick is not None:
        lengths = [factor for pairs in outcome.yardstick.losses.values() for factor, _ in pairs]
        remarks.append(
            f"worth: how many times the tokens of a peer one peer alone needs for the loss, at the manifest's learning "
            f"rate; {SINGLE} was played at {min(lengths):g} to {max(lengths):g} times"
        )
    return remarks


def _row(standing: Standing, outcome: Comparison) -> list[str]:
    best = min(one.loss for one in outcome.standings)
    last, at, method = standing.curve[-1], standing.at_target, standing.entry.method
    unit = "" if method.clock == "steps" else " s"
    time = time_scale(max(one.curve[-1].seconds for one in outcome.standings))
    spread = f"{max(standing.losses) - min(standing.losses):.4f}" if len(standing.losses) > 1 else "-"
    row = [
        standing.entry.name,
        "-" if not method.exchanges else method.codec,
        "-" if not method.exchanges else f"{method.sync_every:g}{unit}",
        f"{standing.loss:.4f}",
        f"{100 * (standing.loss / best - 1):.2f}",
        spread,
        amount(last.bytes) + "B",
        time.written(last.seconds),
    ]
    row += (
        ["not reached", "", ""]
        if at is None
        else [amount(at.tokens).strip(), amount(at.bytes) + "B", time.written(at.seconds)]
    )
    return row + _worth(standing.worth)


def _worth(worth: Worth | None) -> list[str]:
    if worth is None:
        return ["-", "-", "-"]
    shown = worth.text.partition(" ")[0]
    half = "-" if worth.half_width is None else f"{worth.half_width:.2f}"
    return [shown, half, "-" if worth.share is None else f"{worth.share:.0%}"]


def _evaluated(outcome: Comparison) -> str:
    counts = [mark.evaluated for standing in outcome.standings for mark in standing.curve]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def seeds_in_words(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


@dataclass(frozen=True, slots=True)
class Scale:
    """The unit in which a measure is shown to people."""

    size: float
    """Size of the unit in that of the JSON: tokens, bytes or seconds."""
    unit: str

    def written(self, value: float) -> str:
        """Return a value in this unit as text, with three digits if it is below a thousand."""
        scaled = value / self.size
        return f"{scaled:.0f} {self.unit}" if scaled >= 100 else f"{scaled:.3g} {self.unit}"


def count_scale(most: float) -> Scale:
    """Return the scale for counts up to `most`: k, M, G, T, or none."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if most >= 10**power:
            return Scale(10.0**power, letter)
    return Scale(1.0, "")


def time_scale(most: float) -> Scale:
    """Return the scale for times up to `most` seconds: s, min or h. All methods of a comparison use the same one."""
    return Scale(1.0, "s") if most < 120 else Scale(60.0, "min") if most < 7200 else Scale(3600.0, "h")


def amount(value: float) -> str:
    """Return a number as text, with three digits and k, M, G or T."""
    return count_scale(value).written(value)
