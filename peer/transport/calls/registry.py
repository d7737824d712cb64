"""The registry of all calls with one request and one reply."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import Any

from peer.transport import calls
from peer.transport.calls.call import Call


@cache
def every_call() -> tuple[Call[Any, Any], ...]:
    """Return all `Call`s defined in the modules of this package, sorted by name."""
    found: dict[str, Call[Any, Any]] = {}
    for module in pkgutil.iter_modules(calls.__path__, f"{calls.__name__}."):
        values = vars(importlib.import_module(module.name)).values()
        found |= {value.name: value for value in values if isinstance(value, Call)}
    return tuple(found[name] for name in sorted(found))
