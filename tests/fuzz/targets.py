"""All fuzz targets by name, created on demand, because some import torch and one uses a folder."""

from __future__ import annotations

import functools

from tests.fuzz import directory, disk, groups, http2, papers, router, summaries, wire
from tests.fuzz.engine import Target

MAKERS = {
    maker.__name__.replace("_", "-"): maker
    for module in (wire, http2, groups, directory, papers, disk, router, summaries)
    for maker in module.TARGETS
}


@functools.cache
def target(name: str) -> Target:
    """Create a target. Raises KeyError for an unknown name."""
    made: Target = MAKERS[name]()
    return made
