from __future__ import annotations

import pytest

from peer.errors import ManifestError
from peer.run.presets import describe, resolve, spread_growth
from peer.run.sections import SyncSection


@pytest.mark.parametrize(
    ("momentum", "consensus", "growth"),
    [(0.0, 1.0, 0.5), (0.0, 0.7, 0.545), (0.3, 0.7, 0.553), (0.5, 0.7, 0.7), (0.7, 0.7, 0.891), (0.9, 0.7, 1.098)],
)
def test_how_the_spread_shrinks_or_grows_a_round(momentum: float, consensus: float, growth: float) -> None:
    assert spread_growth(momentum, consensus) == pytest.approx(growth, abs=6e-4)


def test_the_presets() -> None:
    pair, control = resolve(SyncSection(preset="noloco")), resolve(SyncSection(preset="none"))
    assert (pair.topology, pair.outer_lr, pair.outer_momentum, pair.consensus) == ("pair", 0.7, 0.5, 0.7)
    assert (control.topology, control.rule, control.outer_lr, control.outer_momentum) == ("solo", "sgd", 1.0, 0.0)


def test_consensus_follows_outer_lr() -> None:
    assert resolve(SyncSection(outer_lr=0.5)).consensus == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outer_momentum": 0.9}, "diverges"),
        ({"consensus": 0.5}, "differs from outer_lr"),
        ({"preset": "none", "outer_lr": 0.7}, "control"),
    ],
)
def test_what_cannot_be_says_why(options: dict[str, object], words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        resolve(SyncSection(**options))  # type: ignore[arg-type]


def test_all_reasons_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        resolve(SyncSection(outer_momentum=0.9, consensus=0.8))
    assert "diverges" in caught.value.found
    assert "differs" in caught.value.found


def test_the_cost_is_told() -> None:
    rows = dict(describe(resolve(SyncSection(codec="bf16", sync_every=60)), 1_000_000))
    assert rows["each way a round"] == "2.00 MB"
    assert rows["each way an hour"] == "120 MB"
