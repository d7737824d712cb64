"""The radial-directional mean of a group (arXiv 2604.21428), which averages direction and length of each tensor
separately. The mean itself is computed in `peer.exchange.group.radial`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peer.methods.entry import MethodEntry
from peer.methods.method import Method, Refusal
from peer.protocol.group.radial_mean import FEWEST

RADIAL = 0.7
"""Factor on the default `outer_lr` of a group with this mean, because the mean is longer than the weighted one."""


def follows(chosen: Method) -> dict[str, Any]:
    """Return the default `outer_lr` for this mean: see docs/explanation/methods.md."""
    radial = chosen.one_state and chosen.mean == "rda"
    return {"outer_lr": round(RADIAL * chosen.outer_lr, 3)} if radial else {}


def refusals(method: Method) -> Iterator[Refusal]:
    """Refuse the radial-directional mean with sparse contributions, eager updates or too few members."""
    if method.mean != "rda" or not method.one_state:
        return
    if method.codec == "topk":
        yield (
            "mean",
            "rda averages directions, and each contribution in topk has a 64th of its own: two of them hardly share an "
            "element",
        )
    if method.eager:
        yield "mean", "an eager member takes its own part of a sum at once, and rda is no sum of its members' parts"
    if method.max_group < FEWEST:
        yield "mean", f"rda takes {FEWEST} members, and max_group is {method.max_group}"


ENTRY = MethodEntry(refusals=refusals, follows=follows)
