"""The effect of lies, counted from the journals of the honest."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from peer.observe import events

WRONG_VALUES = frozenset({"norm", "not_finite", "implausible"})
"""Codes of what was refused for the values of a partner, or of an owner's result."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """Times that honest peers refused another's values: a partner's params, or the result of a shard's owner."""

    liars: int
    """Values of liars."""
    honest: int
    """Values of each other."""


@dataclass(frozen=True, slots=True)
class AttackReport:
    """The effect of the lies. Losses are the mean of the honest peers' last evaluations, nats. None: not finite, or
    there was no evaluation."""

    kind: str
    liars: tuple[str, ...]
    """Peer ids."""
    honest_loss: float | None
    honest_loss_alone: float | None
    """The same seeds, without the liars. None of real processes: they do not play it."""
    excluded: Excluded

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def more(self) -> float | None:
        """Return by which part the liars raised the loss. None: a loss is not known."""
        if self.honest_loss is None or not self.honest_loss_alone:
            return None
        return self.honest_loss / self.honest_loss_alone - 1


def mean_last_loss(journals: Iterable[Iterable[events.Event]]) -> float | None:
    """Return the mean of the last evaluations. None: one is not finite, or there is none."""
    lasts = []
    for journal in journals:
        losses = [event.loss for event in journal if isinstance(event, events.Evaluated)]
        lasts += losses[-1:]
    mean = sum(lasts) / len(lasts) if lasts else math.nan
    return mean if math.isfinite(mean) else None


def excluded(journals: Iterable[Iterable[events.Event]], liars: Collection[str]) -> Excluded:
    """Count the refusals in the journals of honest peers."""
    refused = [peer in liars for journal in journals for peer in map(_turned_away, journal) if peer]
    return Excluded(sum(refused), len(refused) - sum(refused))


def _turned_away(event: events.Event) -> str:
    """Return the peer whose values were refused. Empty: the event tells of no such refusal."""
    if isinstance(event, (events.PartnerFailed, events.ResultRefused)) and event.code in WRONG_VALUES:
        return event.peer
    if isinstance(event, events.PartnerJudged) and event.verdict == "refused":
        return event.peer
    return ""


def told_attack(attack: AttackReport) -> str:
    """Write the effect of the lies as text."""
    more = "" if attack.more is None else f" ({attack.more:+.1%})"
    lines = [
        ("attack", f"{attack.kind} by {' '.join(attack.liars)}"),
        ("honest loss", f"{_number(attack.honest_loss)}, alone {_number(attack.honest_loss_alone)}{more}"),
        ("turned away", f"{attack.excluded.liars} times a liar, {attack.excluded.honest} times an honest peer"),
    ]
    return "\n".join(f"{name:<13} {text}" for name, text in lines)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
