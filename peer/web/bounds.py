"""Bounds the data that a page shows. Names, ids and sentences in it come from strangers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

MOST_ITEMS = 600
MOST_CHARACTERS = 500
MOST_DEPTH = 6


def bounded(value: Any, items: int = MOST_ITEMS, depth: int = MOST_DEPTH) -> Any:
    """Return a JSON-able copy of `value`. Long texts and lists are cut. Data nested deeper than `depth`, NaN and
    infinity become None."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case str():
            return value if len(value) <= MOST_CHARACTERS else value[: MOST_CHARACTERS - 1] + "…"
        case Mapping() if depth:
            return {str(key)[:100]: bounded(one, items, depth - 1) for key, one in list(value.items())[:items]}
        case list() | tuple() if depth:
            return [bounded(one, items, depth - 1) for one in value[:items]]
    return None
