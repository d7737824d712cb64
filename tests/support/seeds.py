"""How many seeds a simulation plays: daily as few as show its fault, and all of them nightly (`make seeds`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def seeds(few: int | Iterable[int], all_seeds: int) -> list[Any]:
    """Return `range(all_seeds)` as parameters. All except `few` (how many, or which) are marked `nightly`."""
    daily = set(range(few) if isinstance(few, int) else few)
    return [seed if seed in daily else pytest.param(seed, marks=pytest.mark.nightly) for seed in range(all_seeds)]


def nightly(values: Iterable[Any]) -> list[Any]:
    """Return parameters marked `nightly`."""
    return [pytest.param(value, marks=pytest.mark.nightly) for value in values]
