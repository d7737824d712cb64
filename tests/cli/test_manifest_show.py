from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.lab.localswarm.plan import derive_manifest
from peer.methods.registry import PRESETS
from peer.run.manifest import default_text, parse_manifest

ROOT = Path(__file__).parents[2]


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
    assert told["method"]["rule"] == PRESETS[preset].method.rule
    assert told["method"]["codec"] == PRESETS[preset].method.codec
    said = {name for name, source in told["sources"].items() if source == "manifest"}
    assert said - {"growth"} == {"clock", "sync_every"}
    assert ("growth" in said) == (preset == "qsr")
    assert told["bytes_per_round"] == max(told["cost"]["fragment_bytes"])
    assert (told["bytes_per_round"] == 0) == (PRESETS[preset].method.topology == "solo")


@pytest.mark.parametrize("command", [["manifest", "new"], ["swarm"]])
def test_help_names_the_page_that_lists_every_preset(command: list[str]) -> None:
    assert "peer help presets" in CliRunner().invoke(peer, [*command, "--help"]).output
    page = (ROOT / "docs/reference/presets.md").read_text()
    assert [preset for preset in PRESETS if f"`{preset}`" not in page] == []


def test_a_person_is_told_who_made_each_choice_and_what_it_costs(tmp_path: Path) -> None:
    output = shown(tmp_path, "--preset", "streaming-noloco", "--set", "fragments=4", as_json=False)
    lines = {line[:22].strip(): line[24:].split() for line in output.splitlines()}
    assert lines["fragments"] == ["4", "manifest"]
    assert lines["fragment layout"] == ["strided", "preset"]
    assert lines["fragments apart"] == ["yes", "default"]
    assert lines["each way a sync"][:2] == ["435", "kB"]
    assert lines["memory of the daemon"][1] == lines["of the arena"][1] == "MB"
    assert lines["of the trainer"][1] in ("MB", "GB")


def test_pairs_are_shown_how_fast_their_replicas_come_together(tmp_path: Path) -> None:
    def told(*options: str) -> tuple[dict[str, str], dict[str, float | None]]:
        folder = tmp_path / "-".join(options)
        folder.mkdir()
        lines = {
            line[:22].strip(): line[24:].split()[0] for line in shown(folder, *options, as_json=False).splitlines()
        }
        found = CliRunner().invoke(peer, ["manifest", "show", str(folder / "run.toml"), "--json"])
        report = json.loads(found.stdout)
        return lines, {name: report[name] for name in ("spread_growth", "pull_growth")}

    lines, report = told("--preset", "gasloc")
    assert (lines["spread growth"], "pull growth" in lines) == ("0.617", False)
    assert report["spread_growth"] == pytest.approx(0.617, abs=5e-4)
    lines, report = told("--preset", "streaming-noloco")
    assert lines["spread growth"] == f"{report['spread_growth']:.3f}"
    assert lines["pull growth"] == f"{report['pull_growth']:.3f}"
    lines, report = told("--preset", "diloco")
    assert "spread growth" not in lines
    assert report == {"spread_growth": None, "pull_growth": None}


def test_muon_has_rows_of_its_own(tmp_path: Path) -> None:
    output = shown(tmp_path, "--set", "optimizer.kind=muon", as_json=False)
    lines = {line[:22].strip(): line[24:].split() for line in output.splitlines()}
    assert lines["inner optimizer"] == ["muon", "lr", "0.004,", "cosine"]
    assert lines["muon moves"][:5] == ["92%", "of", "the", "parameters:", "28"]
    assert lines["muon costs"][0] == "99%"


def test_the_optimizer_is_shown_as_json(tmp_path: Path) -> None:
    assert json.loads(shown(tmp_path))["optimizer"]["kind"] == "adamw"


@pytest.mark.parametrize(
    ("preset", "length", "rounds"),
    [("noloco", {"rounds": 6}, 6), ("streaming-noloco", {"rounds": 6}, 12), ("streaming-diloco", {"steps": 100}, 10)],
)
def test_a_swarms_length_counts_exchanges_of_every_fragment(preset: str, length: dict[str, int], rounds: int) -> None:
    asked = {"rounds": None, "steps": None, "minutes": None} | length
    text = derive_manifest(default_text(), preset=preset, settings=(), seed=None, own_default=True, **asked)  # type: ignore[arg-type]
    assert parse_manifest(text.encode()).train.total_rounds == rounds
