"""Whether the mean with a partner may be applied, judged by losses on the run's data; and what a peer whose params were
refused again and again is worth as a candidate."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_WINDOWS = 4
"""Fewer windows say nothing about their own error."""
GAINED = 0.5
"""Part of what our own work has gained that a mean may lose."""
ERRORS = 3.0
"""Standard errors that a mean may be worse by."""
RUNNING = 2
"""Refusals one after the other that make a partner the last choice."""
FIRST_ROUNDS, MOST_ROUNDS = 8, 64
"""For how many rounds, at first and at most. The number doubles from one time to the next."""
REMEMBERED = 512
"""Partners whose refusals are counted."""


@dataclass(frozen=True, slots=True)
class ProbeLosses:
    """Mean losses in nats a token, one for each window of a probe."""

    base: tuple[float, ...]
    """Of our outer_params."""
    own: tuple[float, ...]
    """Of our work on them."""
    mixed: tuple[float, ...]
    """Of the mean that would be applied."""
    partner: tuple[float, ...]
    """Of the partner's params as they came."""
    guess: float
    """Of a guess among all tokens: the logarithm of their number."""
    source: str = ""
    """Where the windows are from, for a person."""


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """The judgement on one partner's params."""

    accepted: bool
    reason: str
    """Why they are refused, for a person. Empty: they are not."""
    gained: float
    """Nats a token that our own work has gained."""
    lost: float
    """Nats a token by which the mean is worse than our own params."""
    limit: float
    """The most that it may be worse by."""
    nonsense: bool = False
    """Whether the partner's params are refused, and worse than guessing where our own are better. Early in a run an
    honest partner with data of its own may be worse than guessing on that of all."""
    windows: str = ""
    """How many windows it was judged by, and where they are from, for a person."""


def judge(losses: ProbeLosses) -> ProbeVerdict | None:
    """Return the judgement, or None where the losses allow none: too few windows, or our own params have no loss."""
    own = losses.own
    assert len(losses.base) == len(own) == len(losses.mixed) == len(losses.partner), losses
    if len(own) < LEAST_WINDOWS or not all(map(math.isfinite, (*losses.base, *own))):
        return None
    gained = _mean([base - mine for base, mine in zip(losses.base, own, strict=True)])
    worse = [mixed - mine for mixed, mine in zip(losses.mixed, own, strict=True)]
    windows = f"{len(own)} windows {losses.source}".rstrip()
    nonsense = _mean(own) < losses.guess and _worse_than(losses.partner, losses.guess)
    if not all(map(math.isfinite, worse)):
        return ProbeVerdict(False, "the mean with the partner has no loss", gained, math.inf, 0.0, nonsense, windows)
    lost, limit = _mean(worse), max(GAINED * gained, ERRORS * _error(worse))
    if lost <= limit:
        return ProbeVerdict(True, "", gained, lost, limit, windows=windows)
    worse_by = f"{lost:.3g} nats a token worse than our own params"
    reason = f"on {windows}, the mean with the partner is {worse_by}; at most {limit:.3g} is taken"
    return ProbeVerdict(False, reason, gained, lost, limit, nonsense, windows)


def _worse_than(partner: Sequence[float], guess: float) -> bool:
    if not all(map(math.isfinite, partner)):
        return True
    return _mean(partner) > guess + ERRORS * _error(partner)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


@dataclass(slots=True)
class _Refused:
    running: int = 0
    rounds: int = 0
    until: int = 0
    """The first round in which it is a candidate as any other."""


class LastChoices:
    """The partners whose params were refused again and again. They are sought when nobody else is there."""

    def __init__(self) -> None:
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    def refused(self, peer: str, round_: int) -> None:
        """Note a refusal in this round."""
        known = self._refused.setdefault(peer, _Refused())
        self._refused.move_to_end(peer)
        known.running += 1
        if known.running >= RUNNING:
            known.rounds = min(max(2 * known.rounds, FIRST_ROUNDS), MOST_ROUNDS)
            known.running, known.until = 0, round_ + 1 + known.rounds
        while len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    def accepted(self, peer: str) -> None:
        """Note that the peer's params were taken: it begins anew."""
        self._refused.pop(peer, None)

    def includes(self, peer: str, round_: int) -> bool:
        """Return whether the peer is a last choice in this round."""
        return self.rounds_left(peer, round_) > 0

    def rounds_left(self, peer: str, round_: int) -> int:
        """Return for how many rounds, this one included, the peer is a last choice. 0: it is none."""
        return max(0, known.until - round_) if (known := self._refused.get(peer)) is not None else 0
