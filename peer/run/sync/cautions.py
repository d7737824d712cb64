"""Choices that check, and that were worse than no exchange at all.

Every number is the final loss of the simulator's tiny model against that of the preset `none`: 4 peers, 20 inner steps
between two exchanges of a fragment, 20 exchanges of each, seeds 1 and 2, of delays and rda 3 too, of rda 8 peers too.
Those of `eager` and of `topk` are of real text, from results/methods_loss.json: `tests/run/sync/test_cautions.py`
compares them. `tests/simulation/test_cautions_hold.py` plays some of the others again. The learning rates of published
models are from table 2.1 of arXiv 2005.14165."""

from __future__ import annotations

import math
from collections.abc import Iterator

from peer.run.method import Method
from peer.run.method_checks import spread_growth
from peer.run.sections import OptimizerSection

Caution = tuple[str, str]
"""The key of the choice in [sync], and what it did."""
LATE = 0.7
"""Part of `sync_every`: from such a delay on, a merge loses more than the exchange gains."""
STEEP = {"pair": 2.0, "group": 2.5, "rda": 2.0}
"""Factor on the fresh mean in an outer step, from which on the step overshoots so far that nothing is gained."""
SHORT = 0.4
"""Factor on a constant mean in the long run, up to which an outer step leaves out more than the exchange gains."""
SLOW = 0.85
"""Growth of the spread of gasloc's replicas, from which on most of the gain is lost."""
TOPK_LOST = {20: 4.0, 50: 5.7}
"""Percent by which the loss with `topk` (the preset `sparseloco`) was above that of no exchange, at the better learning
rate tried, by the number of exchanges. No longer run was measured."""
DILOCO_GAINED = 4.6
"""Percent by which fp32 (the preset `diloco`) was below it, in the run of 20 exchanges."""
EAGER_GAINED = {20: 0.3, 50: 1.5}
"""Percent by which the loss with `eager` was below that of no exchange, at the better learning rate tried, by the
number of exchanges."""
EAGER_MOMENTUM_LOST = 6.5
"""As `TOPK_LOST`, of `eager` with a momentum of 0.5, in the run of 20 exchanges."""
PRETRAINED_LR = 6e-4
"""Peak learning rate of the smallest model of the table, with 125 M parameters. Larger ones had lower ones."""


def forgetting_rate(init: str, optimizer: OptimizerSection) -> str:
    """Return why the learning rate is too high for a run that begins from pretrained weights (`init`: their digest).
    Empty: it is not, or the weights are random. Muon's is of another scale."""
    if not init or optimizer.kind != "adamw" or optimizer.lr <= PRETRAINED_LR:
        return ""
    return (
        f"{optimizer.lr:g} is for a small model that begins from random weights. This run begins from pretrained ones, "
        "which lose what they know at a much higher rate than their own. Models of 125 M parameters were trained with "
        f"{PRETRAINED_LR:g} at most, of 13 B with 1e-4 (arXiv 2005.14165). Take no more than the model's own, as with "
        "--set lr=1e-4"
    )


def cautions(method: Method, rounds: int) -> Iterator[Caution]:
    """Return what a person should know before a run of so many rounds."""
    yield from _delay(method)
    yield from _sparse(method, rounds // method.fragments)
    yield from _steep(method)
    yield from _short(method)
    yield from _slow(method)
    yield from _eager(method)


def _delay(method: Method) -> Iterator[Caution]:
    delay, every = method.fragment_sync_delay, method.sync_every
    if method.topology == "solo" or delay < LATE * every:
        return
    yield (
        "fragment_sync_delay",
        f"{delay:g} of {every:g}: a late merge undoes what was learned meanwhile. With 17 of 20 steps and "
        "fragment_update_alpha 0 the loss was 2.5 to 5 % above that of no exchange; with 0.5 up to half of the gain "
        "was lost. A quarter of sync_every is enough on most links",
    )


def _sparse(method: Method, exchanges: int) -> Iterator[Caution]:
    if method.codec == "topk" and method.topology == "group":
        measured = " and ".join(f"{lost:g} % after {count}" for count, lost in TOPK_LOST.items())
        longer = f"this run of {exchanges:,} is longer than any that was measured" if exchanges > max(TOPK_LOST) else ""
        yield (
            "codec",
            "topk sends a 64th of each update, and the rest waits. On real text the loss was above that of no exchange "
            f"by {measured} exchanges, while fp32 gained {DILOCO_GAINED:g} % in 20"
            f"{f': {longer}' if longer else ''}",
        )


def _steep(method: Method) -> Iterator[Caution]:
    factor = method.outer_lr * (1 + method.outer_momentum)
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
        f"outer_lr * (1 + outer_momentum) is {factor:g}, so each step goes that much further than the mean. "
        + found[kind],
    )


def _short(method: Method) -> Iterator[Caution]:
    factor = method.outer_lr / (1 - method.outer_momentum)
    if method.topology != "solo" and factor <= SHORT:
        yield (
            "outer_lr",
            f"outer_lr / (1 - outer_momentum) is {factor:.2g}, so no more than that of the work is kept. At 0.1 to "
            "0.3 the loss was 3 to 9 % above that of no exchange, and at 0.4 up to 2 % above",
        )


def _slow(method: Method) -> Iterator[Caution]:
    if method.rule == "gasloc" and method.topology == "pair" and (growth := spread_growth(method)) >= SLOW:
        yield (
            "outer_momentum",
            f"with outer_momentum {method.outer_momentum:g} and consensus {method.consensus:g} a round of pairs leaves "
            f"{growth:.2f} of the replicas' variance. At 0.86 to 0.99 the loss was from 2.5 % below to 1 % above that "
            "of no exchange, while the preset (0.62) gained 5 %",
        )


def _eager(method: Method) -> Iterator[Caution]:
    if not method.eager:
        return
    gained = " and ".join(f"{percent:g} % after {count}" for count, percent in EAGER_GAINED.items())
    yield (
        "eager",
        f"the others' part of a step comes a period late. On real text it gained {gained} exchanges over no exchange, "
        f"where diloco gained {DILOCO_GAINED:g} % in 20",
    )
    if method.outer_momentum > 0:
        yield (
            "outer_momentum",
            "with eager, a momentum repeats a step that is a period late already. With 0.5 the loss was "
            f"{EAGER_MOMENTUM_LOST:g} % above that of no exchange after 20 exchanges. 0 is the preset's",
        )
