from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.lab.localswarm.plan import derive_manifest
from peer.run.manifest import default_text, parse_manifest
from peer.run.presets import PRESETS


def shown(tmp_path: Path, *options: str, as_json: bool = True) -> str:
    runner, file = CliRunner(), str(tmp_path / "run.toml")
    made = runner.invoke(peer, ["manifest", "new", file, "--home", str(tmp_path / "home"), *options])
    assert made.exit_code == 0, made.exception
    result = runner.invoke(peer, ["manifest", "show", file, *(["--json"] if as_json else [])])
    assert result.exit_code == 0, result.exception
    return result.output


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_makes_a_manifest_that_is_shown_as_the_preset(tmp_path: Path, preset: str) -> None:
    told = json.loads(shown(tmp_path, "--preset", preset))
    assert told["preset"] == preset
    assert told["method"]["rule"] == PRESETS[preset].rule
    assert told["method"]["codec"] == PRESETS[preset].codec
    said = {name for name, source in told["sources"].items() if source == "manifest"}
    assert said == {"clock", "sync_every"}
    assert told["bytes_per_round"] == max(told["cost"]["fragment_bytes"])
    assert (told["bytes_per_round"] == 0) == (preset == "none")


@pytest.mark.parametrize("command", [["manifest", "new"], ["swarm"]])
def test_help_names_every_preset(command: list[str]) -> None:
    said = " ".join(CliRunner().invoke(peer, [*command, "--help"]).output.split())
    assert f"Synchronization preset: {', '.join(PRESETS)}." in said


def test_a_person_is_told_who_made_each_choice_and_what_it_costs(tmp_path: Path) -> None:
    output = shown(tmp_path, "--preset", "streaming-noloco", "--set", "fragments=4", as_json=False)
    lines = {line[:22].strip(): line[24:].split() for line in output.splitlines()}
    assert lines["fragments"] == ["4", "manifest"]
    assert lines["fragment layout"] == ["strided", "preset"]
    assert lines["fragments apart"] == ["yes", "default"]
    assert lines["each way a sync"][:2] == ["0.44", "MB"]
    assert lines["memory of the daemon"][1] == lines["of the arena"][1] == lines["of the trainer"][1] == "MiB"


@pytest.mark.parametrize(
    ("preset", "length", "rounds"),
    [("noloco", {"rounds": 6}, 6), ("streaming-noloco", {"rounds": 6}, 12), ("streaming-diloco", {"steps": 100}, 10)],
)
def test_a_swarms_length_counts_exchanges_of_every_fragment(preset: str, length: dict[str, int], rounds: int) -> None:
    asked = {"rounds": None, "steps": None, "minutes": None} | length
    text = derive_manifest(default_text(), preset=preset, settings=(), seed=None, own_default=True, **asked)  # type: ignore[arg-type]
    assert parse_manifest(text.encode()).train.total_rounds == rounds
