"""The growth of a run's rounds. It is computed from the learning rate once, when the manifest is made, and stored in
it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pydantic import ValidationError

from peer.protocol.learning_rate import schedule
from peer.protocol.round_lengths import MOST_CHANGES, MOST_SLOTS, Growth, growth_problem, quadratic_growth, round_of
from peer.run.manifest_errors import ManifestFinding
from peer.run.resolve import method_of
from peer.run.sections import OptimizerSection, SyncSection, TrainSection

SHOWN, SPELLED_OUT = 12, 10_000
"""Number of changes that a finding lists, and longest run in rounds for which it lists them."""
ADVICE = "`peer manifest new` with --set growth_lr=… makes it"


def growth_for(optimizer: OptimizerSection, growth_lr: float, total: int) -> Growth:
    """Return the growth of a run of `total` rounds of the first length. `growth_lr` 0: no growth."""
    return quadratic_growth(growth_lr, partial(_learning_rate, optimizer), total) if growth_lr else ()


def rounds_of(train: TrainSection, sync: SyncSection) -> int:
    """Return the number of rounds of a run. If rounds grow, it is less than `total_rounds`."""
    return round_of(sync.growth or (), train.total_rounds)


def with_growth(table: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest's table with its growth computed anew, or without growth if it asks for none.

    A table that does not validate is returned unchanged: the check of the manifest reports the error."""
    try:
        optimizer, train, sync = (
            section.model_validate(table.get(name, {}))
            for name, section in (("optimizer", OptimizerSection), ("train", TrainSection), ("sync", SyncSection))
        )
    except ValidationError:
        return table
    assert isinstance(optimizer, OptimizerSection)
    assert isinstance(train, TrainSection)
    assert isinstance(sync, SyncSection)
    growth_lr, given = method_of(sync).growth_lr, dict(table.get("sync", {}))
    if not growth_lr and sync.growth is None:
        return table
    given.pop("growth", None)
    if growth_lr and train.total_rounds <= MOST_SLOTS:
        growth = growth_for(optimizer, growth_lr, train.total_rounds)
        given["growth"] = [list(change) for change in growth]
    return table | {"sync": given}


def unequal_rounds(sync: Any) -> bool:
    """Return whether the rounds of this raw section are counted in steps and differ by one step. A program of format 2
    does not support that."""
    try:
        method = method_of(SyncSection.model_validate(sync))
    except ValidationError:
        return False  # the check of the manifest reports the error
    return method.clock == "steps" and method.sync_every % method.fragments != 0


def growth_findings(
    sync: SyncSection, train: TrainSection | None, optimizer: OptimizerSection | None
) -> Iterator[ManifestFinding]:
    """Yield the findings about the growth that a manifest has or lacks."""
    if train is None:
        return
    growth_lr, total = method_of(sync).growth_lr, train.total_rounds
    if growth_lr and total > MOST_SLOTS:
        yield ManifestFinding(("train", "total_rounds"), f"a run whose rounds grow has at most {MOST_SLOTS:,}")
    elif growth_lr and sync.growth is None:
        advice = ADVICE if optimizer is None or total > SPELLED_OUT else _written(optimizer, growth_lr, total)
        yield ManifestFinding(("sync", "growth_lr"), f"the growth of the rounds is missing. {advice}")
    elif sync.growth and not growth_lr:
        yield ManifestFinding(("sync", "growth"), "rounds grow with growth_lr only, and there is none")
    elif reason := growth_problem(sync.growth or (), total):
        yield ManifestFinding(("sync", "growth"), f"{reason}. {ADVICE}")


def _written(optimizer: OptimizerSection, growth_lr: float, total: int) -> str:
    growth = growth_for(optimizer, growth_lr, total)
    return f"Write growth = {[list(change) for change in growth]}" if len(growth) <= SHOWN else ADVICE


def _learning_rate(optimizer: OptimizerSection, progress: float) -> float:
    """Return the learning rate at a fraction of the run. During the warm-up it is the peak rate."""
    if progress < optimizer.warmup_fraction:
        return optimizer.lr
    bounds = optimizer.warmup_fraction, optimizer.final_fraction
    return optimizer.lr * schedule(progress, *bounds, optimizer.schedule, optimizer.decay_fraction)


assert MOST_CHANGES >= 2 * MOST_SLOTS**0.5, "lengths differ, so k changes take k^2 / 2 slots"
