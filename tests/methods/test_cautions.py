from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.methods.cautions import cautions
from peer.methods.experimental.eager import EAGER_GAINED, EAGER_MOMENTUM_LOST
from peer.methods.experimental.sparseloco import DILOCO_GAINED, TOPK_LOST
from peer.methods.registry import PRESETS
from peer.run.resolve import resolve
from peer.run.sections import OptimizerSection, SyncSection
from peer.run.sync.pretrained import PRETRAINED_LR, pretrained_rate_warning


def told(rounds: int = 20, **sync: Any) -> list[str]:
    return [key for key, _ in cautions(resolve(SyncSection(**sync)), rounds)]


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_but_the_late_and_the_sparse_one_needs_a_caution(preset: str) -> None:
    """For both, no measured run had a lower loss than without exchanges."""
    expected = {"eager": ["eager"], "sparseloco": ["codec"]}.get(preset, [])
    assert told(1000, preset=preset) == told(preset=preset) == expected


@pytest.mark.parametrize(
    ("sync", "keys"),
    [
        ({"preset": "streaming-noloco", "fragment_sync_delay": 209.0}, []),
        ({"preset": "streaming-noloco", "fragment_sync_delay": 210.0}, ["fragment_sync_delay"]),
        ({"preset": "streaming-noloco", "topology": "solo", "fragment_sync_delay": 299.0}, []),
        ({"preset": "diloco", "outer_lr": 1.6}, []),
        ({"preset": "diloco", "outer_lr": 1.7}, ["outer_lr"]),
        ({"preset": "diloco", "rule": "sgd", "outer_lr": 2.4}, []),
        ({"preset": "diloco", "rule": "sgd", "outer_lr": 2.5}, ["outer_lr"]),
        ({"preset": "diloco", "codec": "topk", "outer_lr": 4.0}, ["codec", "outer_lr"]),
        ({"preset": "diloco", "codec": "int4"}, []),
        ({"preset": "diloco", "outer_lr": 0.2}, ["outer_lr"]),
        ({"preset": "diloco", "outer_lr": 0.21}, []),
        ({"preset": "snoo", "outer_lr": 0.1}, []),
        ({"preset": "sparseloco"}, ["codec"]),
        ({"preset": "sparseloco", "rounds": 1000}, ["codec"]),
        ({"preset": "noloco", "outer_lr": 1.3}, []),
        ({"preset": "noloco", "outer_lr": 1.95, "outer_momentum": 0.05}, ["outer_lr"]),
        ({"preset": "gasloc", "outer_lr": 1.5}, []),
        ({"preset": "gasloc", "outer_lr": 1.6}, ["outer_lr"]),
        ({"preset": "gasloc", "outer_lr": 0.27}, ["outer_lr"]),
        ({"preset": "gasloc", "outer_momentum": 0.5}, []),
        ({"preset": "gasloc", "outer_momentum": 0.6}, ["outer_momentum"]),
        ({"preset": "gasloc", "consensus": 0.1}, ["outer_momentum"]),
        ({"preset": "diloco", "mean": "rda"}, []),
        ({"preset": "diloco", "mean": "rda", "outer_lr": 1.3}, []),
        ({"preset": "diloco", "mean": "rda", "outer_lr": 1.4}, ["outer_lr"]),
        ({"preset": "qsr", "mean": "rda", "outer_lr": 2.0}, ["outer_lr"]),
        ({"preset": "heloco", "outer_lr": 1.9}, []),
        ({"preset": "heloco", "outer_lr": 2.0}, ["outer_lr"]),
        ({"preset": "heloco", "outer_lr": 2.2, "outer_momentum": 0.9}, []),
        ({"preset": "heloco", "outer_lr": 0.25}, ["outer_lr"]),
        ({"preset": "heloco", "outer_lr": 0.3}, []),
    ],
)
def test_a_range_that_was_worse_than_silence_is_told(sync: dict[str, Any], keys: list[str]) -> None:
    assert told(**sync) == keys


@pytest.mark.parametrize(
    ("preset", "setting", "key", "words"),
    [
        ("diloco", "outer_lr=2", "outer_lr", "outer_lr * (1 + outer_momentum) is 3"),
        ("gasloc", "outer_momentum=0.7", "outer_momentum", "with outer_momentum 0.7 and consensus 1"),
    ],
)
def test_who_makes_checks_and_shows_a_manifest_is_told(
    tmp_path: Path, preset: str, setting: str, key: str, words: str
) -> None:
    file, home = str(tmp_path / "run.toml"), str(tmp_path / "home")

    def said(*command: str) -> tuple[str, str]:
        result = CliRunner().invoke(peer, ["manifest", *command])
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    caution = f"caution: sync.{key}: {words}"
    assert caution in said("new", file, "--home", home, "--preset", preset, "--set", setting)[1]
    assert caution in said("check", file)[1]
    assert caution in said("show", file)[1]
    for command in ("check", "show"):
        assert list(json.loads(said(command, file, "--json")[0])["cautions"]) == [f"sync.{key}"]


def measured(periods: int, method: str) -> float:
    """Return by how many percent a method's loss exceeds that of `none` in the benchmark, each at the better of its
    learning rates."""
    tables = json.loads((Path(__file__).parents[2] / "results" / "methods_loss.json").read_text())["tables"]
    of = [table for table in tables if table["title"].startswith(f"{periods} periods")]
    best_first = sorted(of, key=lambda table: "better rate" not in table["title"])
    rows = [
        row[table["heads"].index("over none, %")] for table in best_first for row in table["rows"] if row[0] == method
    ]
    return float(rows[0])


def test_the_numbers_of_topk_and_eager_are_those_of_the_results() -> None:
    for exchanges, lost in TOPK_LOST.items():
        assert lost == pytest.approx(measured(exchanges, "sparseloco"), abs=0.05)
    assert pytest.approx(-measured(20, "diloco"), abs=0.05) == DILOCO_GAINED
    for exchanges, gained in EAGER_GAINED.items():
        assert gained == pytest.approx(-measured(exchanges, "eager"), abs=0.05)
    assert pytest.approx(measured(20, "eager-with-momentum"), abs=0.05) == EAGER_MOMENTUM_LOST


def test_a_rate_for_random_weights_is_cautioned_for_pretrained_ones(tmp_path: Path) -> None:
    usual, weights = OptimizerSection(), "ab" * 32
    assert pretrained_rate_warning("", usual) == ""
    assert "0.004 is for a small model that begins from random weights" in pretrained_rate_warning(weights, usual)
    assert "--set lr=1e-4" in pretrained_rate_warning(weights, usual)
    for given in ({"lr": PRETRAINED_LR}, {"kind": "muon"}):
        assert pretrained_rate_warning(weights, OptimizerSection.model_validate(given)) == ""
    words = ["manifest", "new", str(tmp_path / "run.toml"), "--home", str(tmp_path), "--set", f"init={weights}"]
    assert "caution: optimizer.lr: 0.004 is for" in CliRunner().invoke(peer, words).stderr


def test_eager_with_a_momentum_is_cautioned_twice() -> None:
    found = dict(cautions(resolve(SyncSection(preset="eager", outer_momentum=0.5)), 20))
    assert list(found) == ["eager", "outer_momentum"]
    assert "0 is the preset's" in found["outer_momentum"]


@pytest.mark.parametrize("exchanges", [20, 50, 400])
def test_topk_is_cautioned_at_every_length_as_none_was_measured_to_gain(exchanges: int) -> None:
    told = dict(cautions(resolve(SyncSection(preset="sparseloco")), exchanges))
    assert "4 % after 20 and 5.7 % after 50 exchanges" in told["codec"]
    assert ("longer than any that was measured" in told["codec"]) == (exchanges > 50)
