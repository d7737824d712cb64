from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.run.presets import PRESETS, resolve
from peer.run.sections import SyncSection
from peer.run.sync.cautions import LONG, cautions


def told(rounds: int = 20, **sync: Any) -> list[str]:
    return [key for key, _ in cautions(resolve(SyncSection(**sync)), rounds)]


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_but_the_late_and_the_sparse_one_needs_a_caution(preset: str) -> None:
    """The sparse one is for long runs, and says so in a short one. Of the late one no long run was measured."""
    late = ["eager"] if preset == "eager" else []
    assert told(1000, preset=preset) == late
    assert told(preset=preset) == (["codec"] if preset == "sparseloco" else late)


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
        ({"preset": "sparseloco", "rounds": LONG}, []),
        ({"preset": "noloco", "outer_lr": 1.3}, []),
        ({"preset": "noloco", "outer_lr": 2.0, "outer_momentum": 0.0}, ["outer_lr"]),
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
