"""Warnings about valid choices that were worse than no exchange at all in simulations.

Every number compares the final loss of the simulator's tiny model with that of the preset `none`, for 4 peers, 20 inner
steps between two exchanges of a fragment, 20 exchanges of each fragment, and seeds 1 and 2 (for delays and rda also
seed 3, for rda also 8 peers). `tests/simulation/test_cautions_hold.py` repeats some of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from peer.methods.method import Caution, Method
from peer.methods.registry import ENTRIES

LATE = 0.7
"""Fraction of `sync_every`. With a longer delay, a merge loses more than the exchange gains."""
STEEP = {"pair": 2.0, "group": 2.5, "rda": 2.0}
"""Topology or mean -> `OuterRule.fresh_gain` from which on an outer step overshoots so far that nothing is gained."""
SHORT = 0.4
"""Up to this `OuterRule.lasting_gain`, an outer step loses more of the work than the exchange gains."""


def cautions(method: Method, rounds: int) -> Iterator[Caution]:
    """Yield the warnings that an operator should see before a run of this method with this number of rounds."""
    yield from _delay(method)
    for entry in ENTRIES:
        yield from entry.cautions(method, rounds // method.fragments)
    yield from _steep(method)
    yield from _short(method)
    yield from method.outer_rule.cautions(method)


def _delay(method: Method) -> Iterator[Caution]:
    delay, every = method.fragment_sync_delay, method.sync_every
    if not method.exchanges or delay < LATE * every:
        return
    yield (
        "fragment_sync_delay",
        f"{delay:g} of {every:g}: a late merge undoes what was learned meanwhile. With 17 of 20 steps and "
        "fragment_update_alpha 0 the loss was 2.5 to 5 % above that of no exchange; with 0.5 up to half of the gain "
        "was lost. A quarter of sync_every is enough on most links",
    )


def _steep(method: Method) -> Iterator[Caution]:
    formula, factor = method.outer_rule.fresh_gain(method)
    kind = "rda" if method.mean == "rda" else method.topology
    if factor < STEEP.get(kind, math.inf):
        return
    found = {
        "pair": "At 2 to 2.6 the loss was 1 to 6 % above that of no exchange, in streaming equal. Presets gained 5 %",
        "group": "At 3 to 4.5 the loss was 0 to 9 % above that of no exchange, while outer_lr 0.7 gained 10 %",
        "rda": "With rda at 2.1 the loss was 2 % below to 5 % above that of no exchange, and at 3 it was 4 to 10 % "
        "above. At outer_lr 0.49 it gained 10 to 13 %",
    }
    yield (
        "outer_lr",
        f"{formula} is {factor:g}, so each step goes that much further than the mean. " + found[kind],
    )


def _short(method: Method) -> Iterator[Caution]:
    formula, factor = method.outer_rule.lasting_gain(method)
    if method.exchanges and factor <= SHORT:
        yield (
            "outer_lr",
            f"{formula} is {factor:.2g}, so no more than that of the work is kept. At 0.1 to "
            "0.3 the loss was 3 to 9 % above that of no exchange, and at 0.4 up to 2 % above",
        )
