"""Judgement on a partner's params by losses on the run's data, and the penalty for partners that were refused
repeatedly."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_WINDOWS = 4
"""Minimum number of windows. Fewer allow no estimate of their standard error."""
GAINED = 0.5
"""The mean with a partner may lose this fraction of what our own work has gained."""
ERRORS = 3.0
"""The mean may be worse than our own params by this many standard errors."""
RUNNING = 2
"""Number of consecutive refusals after which a partner becomes a last choice (`LastChoices`)."""
FIRST_ROUNDS, MOST_ROUNDS = 8, 64
"""Number of rounds for which a partner is a last choice: at first, and at most. It doubles each time."""
REMEMBERED = 512
"""Maximum partners whose refusals are counted."""


@dataclass(frozen=True, slots=True)
class ProbeLosses:
    """Mean losses in nats per token, one for each window of a probe."""

    base: tuple[float, ...]
    """Loss of our outer_params."""
    own: tuple[float, ...]
    """Loss of our params after our work."""
    mixed: tuple[float, ...]
    """Loss of the mean that would be applied."""
    partner: tuple[float, ...]
    """Loss of the partner's params as received."""
    guess: float
    """Loss of a uniform guess: the logarithm of the number of different tokens."""
    source: str = ""
    """Where the windows come from, for people to read."""


@dataclass(frozen=True, slots=True)
class ProbeVerdict:
    """The judgement on one partner's params."""

    accepted: bool
    reason: str
    """Why they are refused, for people to read. Empty: they are accepted."""
    gained: float
    """Nats per token that our own work has gained."""
    lost: float
    """Nats per token by which the mean is worse than our own params."""
    limit: float
    """Largest accepted value of `lost`."""
    nonsense: bool = False
    """Whether the refused params are worse than a uniform guess, while ours are better. This alone proves no fault:
    early in a run an honest partner with other data may be worse than a guess on the data of all."""
    windows: str = ""
    """Number and source of the windows, for people to read."""


def judge(losses: ProbeLosses) -> ProbeVerdict | None:
    """Return the judgement. None: the losses allow none, because there are too few windows or our own params have no
    finite loss."""
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
    """Refusals of one partner."""

    running: int = 0
    """Consecutive refusals."""
    rounds: int = 0
    """Number of rounds of the last penalty."""
    until: int = 0
    """First round in which it is a normal candidate again."""


class LastChoices:
    """Partners whose params were refused repeatedly. They are asked only when no other candidate is left."""

    def __init__(self) -> None:
        self._refused: OrderedDict[str, _Refused] = OrderedDict()

    def refused(self, peer: str, round_: int) -> None:
        """Record that the peer's params were refused in this round."""
        known = self._refused.setdefault(peer, _Refused())
        self._refused.move_to_end(peer)
        known.running += 1
        if known.running >= RUNNING:
            known.rounds = min(max(2 * known.rounds, FIRST_ROUNDS), MOST_ROUNDS)
            known.running, known.until = 0, round_ + 1 + known.rounds
        while len(self._refused) > REMEMBERED:
            self._refused.popitem(last=False)

    def accepted(self, peer: str) -> None:
        """Record that the peer's params were accepted. Clears its refusals."""
        self._refused.pop(peer, None)

    def in_round(self, round_: int) -> set[str]:
        """Return the peers that are last choices in this round."""
        return {peer for peer, refused in self._refused.items() if refused.until > round_}

    def rounds_left(self, peer: str, round_: int) -> int:
        """Return for how many rounds, including this one, the peer is a last choice. 0: it is none."""
        return max(0, known.until - round_) if (known := self._refused.get(peer)) is not None else 0
