"""The lies about params: what a pair's partner sends in the place of its own. In a group their distance from
outer_params is the contribution.

Every lie is a function of the round's key, the flat fp32 params that an honest peer would send, and its outer_params.
It is told on the wire alone: the liar's own state goes on honestly, so it stays a plausible partner for as long as the
run lasts."""

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
"""Part of the largest distance that is taken. The victim's own params differ from the liar's, and they count."""
BACKDOOR = "backdoor"
"""The trainer of this one learns other targets. It says what it learnt."""
OWNER_LIE = "owner-lie"
"""An owner of a group's shard gives another mean."""
DONOR = "donor"
"""Joiners are given noise for a state, of a round that nobody has reached yet."""


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
    """Noise, as long as `check_partner` lets pass."""

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        noise = _direction(f"far {seed} {key.round} {key.fragment}", own.numel())
        most = NEAR_THE_LIMIT * (FAR * rms(own) + FAR_FROM_ZERO)
        return own.add(noise, alpha=most * math.sqrt(own.numel()))

    return lie


def _noise(seed: int) -> Lie:
    """As long as the work, and in another random direction every round."""

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        direction = _direction(f"noise {seed} {key.round} {key.fragment}", own.numel())
        return outer.add(direction, alpha=float((own - outer).norm()))

    return lie


def _drift(seed: int) -> Lie:
    """All that have the same seed push in the same direction, as far as their own work goes."""

    def lie(key: RoundKey, own: Tensor, outer: Tensor) -> Tensor:
        direction = _direction(f"drift {seed} {key.fragment}", own.numel())
        return own.add(direction, alpha=float((own - outer).norm()))

    return lie


def _stuck() -> Lie:
    """Always the params of the first exchange."""
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
"""Makes the lie of one liar, from the seed that all liars share."""

KINDS = (*LIES, BACKDOOR, OWNER_LIE, DONOR)


def ensure_kind(kind: str) -> str:
    """Return the kind. Raises UsageError when there is none of this name."""
    if kind not in KINDS:
        raise UsageError(f"there is no attack {kind!r}", f"Choose one of {', '.join(KINDS)}.")
    return kind
