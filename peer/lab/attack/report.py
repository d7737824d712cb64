"""The effect of lies on the honest peers, from their journals."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peer.codes import Code
from peer.observe import events
from peer.protocol.policy.donors import FIRST_ROUNDS

WRONG_VALUES = frozenset({Code.NORM, Code.NOT_FINITE, Code.IMPLAUSIBLE})
"""Refusal codes that are about the values of a partner or of an owner's result."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """How often honest peers refused values of others: a partner's params, a member's contribution to their shard, or
    an owner's result."""

    liars: int
    """Refused values of liars."""
    honest: int
    """Refused values of honest peers."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The state with which an honest newcomer began."""

    donor: str
    """Peer id of the donor of most of it."""
    loss: float | None
    """Loss of the newcomer's first evaluation, in nats per token. None: not finite, or not evaluated."""
    others_loss: float | None
    """Mean of the other honest peers' last losses before it."""
    refused: int
    """Number of states that the newcomer refused."""


@dataclass(frozen=True, slots=True)
class AttackReport:
    """The effect of the lies. Losses are the mean of the honest peers' last evaluations, in nats per token. None: not
    finite, or not evaluated."""

    kind: str
    liars: tuple[str, ...]
    """Peer ids of the liars."""
    honest_loss: float | None
    honest_loss_alone: float | None
    """Loss with the same seeds but without liars. None for real processes, which are not run again."""
    excluded: Excluded
    newcomers: tuple[Newcomer, ...] = ()
    """Honest peers that began with a donor's state after the first rounds."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def more(self) -> float | None:
        """Relative increase of the loss by the liars. None: a loss is unknown."""
        if self.honest_loss is None or not self.honest_loss_alone:
            return None
        return self.honest_loss / self.honest_loss_alone - 1


def mean_last_loss(journals: Iterable[Iterable[events.Event]]) -> float | None:
    """Return the mean of the peers' last losses. None: one is not finite, or no peer was evaluated."""
    lasts = []
    for journal in journals:
        losses = [event.loss for event in journal if isinstance(event, events.Evaluated)]
        lasts += losses[-1:]
    mean = sum(lasts) / len(lasts) if lasts else math.nan
    return mean if math.isfinite(mean) else None


def newcomers(journals: Sequence[Sequence[tuple[float, events.Event]]]) -> tuple[Newcomer, ...]:
    """Return the first states of the peers that joined after the first rounds. `journals`: (time, event) of each honest
    peer."""
    found = list[Newcomer]()
    for journal in journals:
        fetched = [event for _, event in journal if isinstance(event, events.StateFetched)]
        if not fetched or fetched[0].round <= FIRST_ROUNDS:
            continue
        first = next(((at, event.loss) for at, event in journal if isinstance(event, events.Evaluated)), None)
        until = math.inf if first is None else first[0]
        others = [[event for at, event in other if at < until] for other in journals if other is not journal]
        refused = sum(isinstance(event, events.StateRefused) for _, event in journal)
        loss = None if first is None or not math.isfinite(first[1]) else first[1]
        found.append(Newcomer(fetched[0].donor, loss, mean_last_loss(others), refused))
    return tuple(found)


def excluded(journals: Iterable[Iterable[events.Event]], liars: Collection[str]) -> Excluded:
    """Count the refusals in the journals of honest peers. `liars`: their peer ids."""
    refused = [peer in liars for journal in journals for peer in map(_turned_away, journal) if peer]
    return Excluded(sum(refused), len(refused) - sum(refused))


def _turned_away(event: events.Event) -> str:
    """Return the peer whose values the event reports as refused. Empty: the event is no such refusal."""
    if isinstance(event, (events.PartnerFailed, events.ResultRefused)) and event.code in WRONG_VALUES:
        return event.peer
    if isinstance(event, events.ContributorLeftOut):
        return event.peer
    if isinstance(event, events.PartnerJudged) and event.verdict == "refused":
        return event.peer
    return ""


def attack_text(attack: AttackReport, unit: str = "nats a token") -> str:
    """Return the effect of the lies as text. `unit`: of the losses."""
    more = "" if attack.more is None else f" ({attack.more:+.1%})"
    lines = [
        ("attack", f"{attack.kind} by {' '.join(attack.liars)}"),
        ("honest loss", f"{_number(attack.honest_loss)}, alone {_number(attack.honest_loss_alone)} {unit}{more}"),
        ("turned away", f"{attack.excluded.liars} times a liar, {attack.excluded.honest} times an honest peer"),
    ]
    return "\n".join(f"{name:<13} {text}" for name, text in lines)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
