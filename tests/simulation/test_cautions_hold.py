"""The cautions about a method are true for the tiny model: such a swarm ends no better than one without exchanges."""

from __future__ import annotations

from functools import cache

import pytest

from peer.lab.sim.run import SimulationSettings, simulate
from peer.methods.cautions import cautions
from peer.run.manifest import default_text, derive, parse_manifest
from peer.run.resolve import resolve

STEPS = 400
BASE = ("seed=1", "clock=steps", "sync_every=20", "train.total_rounds=20")


@cache
def loss(*settings: str) -> float:
    text = derive(default_text(), [*BASE, *settings])
    found = simulate(
        SimulationSettings(peers=4, manifest=text, hours=STEPS / 3600, link="lan", trainer="tiny")
    ).loss_last
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        (("preset=streaming-noloco", "fragment_sync_delay=17", "fragment_update_alpha=0.0"), "fragment_sync_delay"),
        (("preset=diloco", "outer_lr=3"), "outer_lr"),
        *(
            pytest.param(*row, marks=pytest.mark.nightly)
            for row in (
                (("preset=gasloc", "outer_lr=2", "outer_momentum=0.5"), "outer_lr"),
                (("preset=noloco", "outer_lr=0.1"), "outer_lr"),
                (("preset=diloco", "mean=rda", "outer_lr=2"), "outer_lr"),
                (("preset=heloco", "outer_lr=3"), "outer_lr"),
                (("preset=heloco", "outer_lr=0.15"), "outer_lr"),
            )
        ),
    ],
)
def test_what_is_cautioned_is_worse_than_silence(settings: tuple[str, ...], key: str) -> None:
    manifest = parse_manifest(derive(default_text(), [*BASE, *settings]).encode())
    assert key in dict(cautions(resolve(manifest.sync), manifest.rounds))
    assert loss(*settings) > 1.03 * loss("preset=none")


def test_the_default_is_better_than_silence() -> None:
    assert loss("preset=noloco") < 0.95 * loss("preset=none")


@pytest.mark.nightly
def test_heloco_is_better_than_silence() -> None:
    assert loss("preset=heloco") < 0.95 * loss("preset=none")


@pytest.mark.nightly
def test_the_radial_mean_with_its_default_is_better_than_silence() -> None:
    assert loss("preset=diloco", "mean=rda") < 0.95 * loss("preset=none")
