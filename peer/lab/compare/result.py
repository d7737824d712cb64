"""The outcome of a comparison: numbers as JSON, and a table for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peer.errors import SwarmFailed
from peer.lab.compare.curve import Curve, Mark, loss_at, mean_of, reached
from peer.lab.compare.entries import Entry

Play = Callable[[Entry, int], Curve]
"""Plays an entry with a seed."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One method's outcome."""

    entry: Entry
    curve: Curve
    """Mean over the seeds."""
    losses: tuple[float, ...]
    """One for each seed, at the tokens that all methods came to."""
    at_target: Mark | None
    """The first evaluation of `curve` that reached the target."""

    @property
    def loss(self) -> float:
        return sum(self.losses) / len(self.losses)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The outcomes of all methods."""

    peers: int
    seeds: tuple[int, ...]
    place: str
    """Where the swarms ran, for a person."""
    tokens: float
    """The tokens of all peers together at which the losses are compared: the most that every method came to."""
    target: float
    why: str
    """Why this is the target, for a person."""
    standings: tuple[Standing, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "peers": self.peers,
            "seeds": list(self.seeds),
            "place": self.place,
            "tokens": round(self.tokens),
            "target": self.target,
            "target_reason": self.why,
            "methods": [_method_as_json(standing) for standing in self.standings],
        }


def compare(
    entries: Sequence[Entry], peers: int, seeds: Sequence[int], place: str, play: Play, target: float | None = None
) -> Comparison:
    """Play every entry with every seed, the entries by turns. Raises SwarmFailed for a swarm that was never
    evaluated."""
    played: dict[str, list[Curve]] = {entry.name: [] for entry in entries}
    for seed in seeds:
        for entry in entries:
            curve = play(entry, seed)
            if not curve:
                raise SwarmFailed(f"{entry.name} with seed {seed}: no peer was evaluated", "Give more --steps.")
            played[entry.name].append(curve)
    means = {name: mean_of(curves) for name, curves in played.items()}
    tokens = min(curve[-1].tokens for curves in played.values() for curve in curves)
    losses = {name: tuple(loss_at(curve, tokens) for curve in curves) for name, curves in played.items()}
    aim, why = _aim(means, target)
    standings = tuple(
        Standing(entry, means[entry.name], losses[entry.name], reached(means[entry.name], aim)) for entry in entries
    )
    return Comparison(peers, tuple(seeds), place, tokens, aim, why, standings)


def _aim(curves: dict[str, Curve], target: float | None) -> tuple[float, str]:
    """Return the target and why it is that."""
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
        "to_target": None if at is None else at.to_json(),
        "curve": [mark.to_json() for mark in standing.curve],
    }


def table(outcome: Comparison) -> str:
    """Write the outcome as a table."""
    width = max(6, *(len(standing.entry.name) for standing in outcome.standings))
    best = min(standing.loss for standing in outcome.standings)
    until = f"{'':{width}}  {'at ' + amount(outcome.tokens) + ' tokens':^45}  {'to the target':^32}"
    head = f"{'method':{width}}  {'loss':>8} {'+ %':>6} {'spread':>7} {'sent':>10} {'seconds':>10}"
    lines = [
        f"{outcome.peers} peers, {_seeds(outcome.seeds)}, {outcome.place}",
        f"target {outcome.target:.4f}: {outcome.why}",
        f"a loss is the mean of the peers that were evaluated in that round: {_evaluated(outcome)} of {outcome.peers}",
        "",
        until.rstrip(),
        f"{head}  {'tokens':>10} {'sent':>10} {'seconds':>10}",
    ]
    return "\n".join([*lines, *(_row(standing, best, width) for standing in outcome.standings)])


def _row(standing: Standing, best: float, width: int) -> str:
    last, at = standing.curve[-1], standing.at_target
    spread = f"{max(standing.losses) - min(standing.losses):.4f}" if len(standing.losses) > 1 else "-"
    row = f"{standing.entry.name:{width}}  {standing.loss:>8.4f} {100 * (standing.loss / best - 1):>6.2f} {spread:>7}"
    row += f" {amount(last.bytes) + 'B':>10} {last.seconds:>10.1f}"
    if at is None:
        return f"{row}  {'not reached':>32}"
    return f"{row}  {amount(at.tokens):>10} {amount(at.bytes) + 'B':>10} {at.seconds:>10.1f}"


def _evaluated(outcome: Comparison) -> str:
    counts = [mark.evaluated for standing in outcome.standings for mark in standing.curve]
    return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def amount(value: float) -> str:
    """Write a number with three digits and k, M, G or T."""
    for power, letter in ((12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if value >= 10**power:
            return f"{value / 10**power:.3g} {letter}"
    return f"{value:.3g} "
