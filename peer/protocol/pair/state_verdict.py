"""Whether a state that donors gave may be begun with, judged by its losses on the run's data.

A newcomer has no params of its own to compare with. What it knows is the loss of a guess among all tokens, which an
untrained model has about, and the losses of other donors' states. So a state that is a little worse than it should be
passes: exchanges with honest partners mend that. The module is pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_WINDOWS = 4
"""Fewer windows say nothing about their own error."""
UNTRAINED = 0.5
"""Nats a token that an untrained model may be worse than a guess: its first logits are small, but not equal."""
ERRORS = 3.0
"""Standard errors that a mean may be off by."""
EARLY_ROUNDS = 10
"""After this round a state that is no better than a guess is compared with others."""
MOST_RMS = 100.0
"""Root mean square of a state's values: weights of language models lie orders of magnitude below it."""


@dataclass(frozen=True, slots=True)
class StateLosses:
    """Mean losses in nats a token, one for each window."""

    windows: tuple[float, ...]
    guess: float
    """Of a guess among all tokens: the logarithm of their number."""
    source: str = ""
    """Where the windows are from, for a person."""

    @property
    def mean(self) -> float:
        return math.fsum(self.windows) / len(self.windows)


def why_impossible(losses: StateLosses) -> str:
    """Return why no honest donor gives such a state, for a person; empty: one may."""
    if len(losses.windows) < LEAST_WINDOWS:
        return ""
    if not all(map(math.isfinite, losses.windows)):
        return "its loss is not finite"
    most = losses.guess + max(UNTRAINED, ERRORS * _error(losses.windows))
    if losses.mean <= most:
        return ""
    return f"its loss is {losses.mean:.4g} nats a token on {_told(losses)}, more than an untrained model has"


def why_doubted(losses: StateLosses, round_: int) -> str:
    """Return why a state of this round is to be compared with others, for a person; empty: it is good."""
    if (why := why_impossible(losses)) or len(losses.windows) < LEAST_WINDOWS or round_ <= EARLY_ROUNDS:
        return why
    if losses.mean <= losses.guess - ERRORS * _error(losses.windows):
        return ""
    return f"its loss is {losses.mean:.4g} nats a token on {_told(losses)}, no better than a guess, in round {round_}"


def clearly_better(one: StateLosses, other: StateLosses) -> bool:
    """Return whether `one` is better than `other` by more than chance explains. Both are of the same windows."""
    if not all(map(math.isfinite, one.windows)):
        return False
    if not all(map(math.isfinite, other.windows)):
        return True
    gains = [b - a for a, b in zip(one.windows, other.windows, strict=True)]
    return math.fsum(gains) / len(gains) > ERRORS * _error(gains)


def why_too_large(rms: float) -> str:
    """Return why values of this root mean square are no state, for a person; empty: they may be one."""
    if math.isfinite(rms) and rms <= MOST_RMS:
        return ""
    return f"the root mean square of its values is {rms:.3g}; at most {MOST_RMS:g} is taken"


def _told(losses: StateLosses) -> str:
    return f"{len(losses.windows)} windows {losses.source}".rstrip()


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
