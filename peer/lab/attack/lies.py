"""Lies about params: the values that a lying partner of a pair sends in place of its own. In a group, the difference
between outer_params and these values is the contribution.

A lie is a function of the round's key, the flat fp32 params that an honest peer would send, and its outer_params. Only
the sent values are false: the liar's own state continues honestly, so that it stays a plausible partner."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import torch
from torch import Tensor

from peer.errors import UsageError
from peer.exchange.validation import FAR, FAR_FROM_ZERO, rms
from peer.protocol.messages import RoundKey

Lie = Callable[[RoundKey, Tensor, Tensor], Tensor]

NEAR_THE_LIMIT = 0.97
"""Share of the largest accepted distance. Below 1, because the victim's own params, which differ from the liar's,
determine the limit."""
BACKDOOR = "backdoor"
"""The peer's trainer learns wrong targets. The peer honestly sends what it learnt."""
OWNER_LIE = "owner-lie"
"""The owner of a group's shard returns a wrong mean."""
DONOR = "donor"
"""The peer serves joiners noise as a state, claimed to be of a round far ahead."""


def _times_work(factor: float) -> Lie:
    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        return outer.add(own - outer, alpha=factor)

    return lie


def _negate(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
    return -own


def _zero(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
    return torch.zeros_like(own)


def _free_ride(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
    return outer.clone()


def _far(seed: int) -> Lie:
    """Send noise of nearly the largest length that `check_partner` accepts."""

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        noise = _direction(f"far {seed} {key.round} {key.fragment}", own.numel())
        most = NEAR_THE_LIMIT * (FAR * rms(own) + FAR_FROM_ZERO)
        return own.add(noise, alpha=most * math.sqrt(own.numel()))

    return lie


def _noise(seed: int) -> Lie:
    """Send a step as long as the own work, in another random direction each round."""

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        direction = _direction(f"noise {seed} {key.round} {key.fragment}", own.numel())
        return outer.add(direction, alpha=float((own - outer).norm()))

    return lie


def _drift(seed: int) -> Lie:
    """Push in one direction by the length of the own work. All liars with the same seed push in the same direction."""

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        direction = _direction(f"drift {seed} {key.fragment}", own.numel())
        return own.add(direction, alpha=float((own - outer).norm()))

    return lie


def _stuck() -> Lie:
    """Send the params of the first exchange each time."""
    first: dict[int, Tensor] = {}

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        return first.setdefault(key.fragment, own.clone())

    return lie


def _direction(name: str, elements: int) -> Tensor:
    """Return a random vector of length 1, the same for the same name."""
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
    noise = torch.randn(elements, generator=torch.Generator().manual_seed(seed))
    return noise.div_(noise.norm())


LIES: dict[str, Callable[[int], Lie]] = {
    "flip": lambda seed: _times_work(-1.0),
    "x-10": lambda seed: _times_work(-10.0),
    "x9.9": lambda seed: _times_work(9.9),
    "negate": lambda seed: _negate,
    "zero": lambda seed: _zero,
    "far": _far,
    "stuck": lambda seed: _stuck(),
    "freeride": lambda seed: _free_ride,
    "drift": _drift,
    "noise": _noise,
}
"""Kind of attack -> function that makes the lie of one liar, from the seed that all liars share."""

KINDS = (*LIES, BACKDOOR, OWNER_LIE, DONOR)


def ensure_kind(kind: str) -> str:
    """Return the kind. Raises UsageError for an unknown one."""
    if kind not in KINDS:
        raise UsageError(f"there is no attack {kind!r}", f"Choose one of {', '.join(KINDS)}.")
    return kind
