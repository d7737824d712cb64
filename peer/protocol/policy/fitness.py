"""Fitness of a machine for a run. A peer whose inner steps or link are too slow for the rounds reports it to its
volunteer when it joins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

GRACE = 1 / 20
"""Fraction of a round by which the trainer may finish its last inner step late. Its partner waits meanwhile."""
STANDSTILL = 0.25
"""A trainer that stands still for exchanges for more than this fraction of a round is reported."""
LEAST_RATE = 62_500.0
"""Bytes per second. An exchange with a partner of unknown rate is ended if it is slower than this after `SLACK_S`
seconds."""
SLACK_S = 5.0
"""Seconds that any exchange may take in addition to its transfer."""


@dataclass(frozen=True, slots=True)
class FitnessFinding:
    """A finding about the machine, which the volunteer reads."""

    found: str
    fix: str
    never: bool
    """Whether the machine could never take part in an exchange. Joining is then refused."""


def rounds_a_step(step_s: float, round_s: float) -> int:
    """Return n if a machine with inner steps of `step_s` seconds takes part in one of n rounds. 1: a step fits into a
    round."""
    return max(1, math.ceil(step_s / round_s - GRACE))


def of_steps(step_s: float, round_s: float, rounds_left: int) -> FitnessFinding | None:
    """Judge a machine whose inner step takes `step_s` seconds, including rests, in a run with rounds of `round_s`
    seconds. None: it is fit."""
    rounds = rounds_a_step(step_s, round_s)
    if rounds == 1:
        return None
    takes = f"one inner step takes {_seconds(step_s)} here, a round is {_seconds(round_s)}"
    fix = "Give it more --threads or a higher --speed, use an accelerator, or join a run with a smaller model or batch."
    if rounds > rounds_left:
        return FitnessFinding(
            f"{takes}, and the run ends in {rounds_left} rounds: nothing would be done by then", fix, True
        )
    return FitnessFinding(f"{takes}: this machine would sit out {rounds - 1} of {rounds} rounds", fix, False)


@dataclass(frozen=True, slots=True)
class Load:
    """What one round of the run transfers over a link."""

    nbytes: int
    """Bytes in each direction, in the largest round."""
    round_s: float
    again_s: float
    """Seconds until the same fragment is due again. A running exchange is then ended. (With `waits`, rounds that are
    due meanwhile are missed instead.)"""
    waits: bool
    """Whether the trainer stands still during the exchange."""
    alone: Literal["solo", "dropped"]
    """What happens to the work if the exchange is ended: a solo outer step, or it is dropped."""


def of_link(load: Load, rate: float, what: str) -> FitnessFinding | None:
    """Judge a link with `rate` bytes per second. `what`: description of the direction, such as `upload, by its cap`.
    None: it is fit."""
    if not load.nbytes:
        return None
    took = load.nbytes / rate
    takes = f"a round's {_megabytes(load.nbytes)} take {_seconds(took)} over {_rate(rate)} of {what}, "
    takes += f"a round is {_seconds(load.round_s)}"
    fix = "Raise the cap, or join a run with a smaller model, longer rounds, or a codec of fewer bits."
    if _given_up(load, took):
        end = "you would end solo" if load.alone == "solo" else "your work would be dropped"
        return FitnessFinding(f"{takes}: {end} in every round", fix, True)
    if load.waits and took > load.round_s:
        missed = math.ceil(took / load.round_s)
        return FitnessFinding(
            f"{takes}: training would stand still and miss {missed} of {missed + 1} rounds", fix, False
        )
    if load.waits and took > STANDSTILL * load.round_s:
        part = round(100 * took / load.round_s)
        return FitnessFinding(f"{takes}: training would stand still {part} % of the time", fix, False)
    return None


def _given_up(load: Load, took: float) -> bool:
    if not load.waits:
        return took > load.again_s
    return took > SLACK_S + load.nbytes / LEAST_RATE


def _seconds(value: float) -> str:
    return f"{value:.3g} s" if value < 9.5 else f"{value:.0f} s"


def _megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3g} MB" if nbytes < 99.5e6 else f"{nbytes / 1e6:.0f} MB"


def _rate(rate: float) -> str:
    return f"{8 * rate / 1e6:.3g} Mbit/s" if 8 * rate < 99.5e6 else f"{8 * rate / 1e6:.0f} Mbit/s"
