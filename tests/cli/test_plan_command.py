"""`peer plan`: its report, and the manifest that it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from peer.cli.main import peer
from peer.errors import ManifestError, UsageError

PAPERS = ("--params", "125M", "--tokens", "2.5B", "--peers", "4", "--link", "datacentre", "--machine", "100T")


def called(*arguments: str) -> Result:
    result = CliRunner().invoke(peer, ["plan", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_json_has_these_keys() -> None:
    told = json.loads(called(*PAPERS, "--json").stdout)
    assert list(told) == [
        *("preset", "sync_every", "fragments", "codec", "inner_lr", "batch", "outer_lr", "expected_loss"),
        *("worth", "bytes_per_day", "compute_share", "days"),
    ]
    assert float(f"{told['inner_lr']:.1e}") == 2.4e-3


def test_a_person_is_told_sources_and_what_is_extrapolated() -> None:
    inside = called(*PAPERS).stdout
    assert "arXiv 2503.09799; 35 M to 2.4 B parameters, 1 to 8 peers" in inside
    assert "EXTRAPOLATED" not in inside
    outside = called("--params", "1M", "--peers", "4", "--link", "10/100", "--machine", "1T", "--context", "64").stdout
    assert "EXTRAPOLATED: 994,400 parameters" in outside
    report = called("--params", "1M", "--machine", "1T", "--context", "64", "--json")
    assert json.loads(report.stdout)
    assert "extrapolated: inner_lr" in report.stderr


def test_a_caution_of_the_proposed_manifest_is_told() -> None:
    short = ("--params", "1M", "--tokens", "2M", "--machine", "1T", "--context", "64", "--preset", "sparseloco")
    for form in ((), ("--json",)):
        assert "caution: sync.codec: topk sends a 64th" in called(*short, *form).stderr
    assert "caution" not in called(*PAPERS).stderr


def test_a_plan_becomes_a_signed_manifest(tmp_path: Path) -> None:
    file, home = str(tmp_path / "run.toml"), str(tmp_path / "home")
    told = json.loads(called(*PAPERS, "--json", "--write", file, "--home", home).stdout)
    shown = CliRunner().invoke(peer, ["manifest", "show", file, "--json"], catch_exceptions=False)
    report = json.loads(shown.stdout)
    assert report["signature"] == "good"
    assert report["preset"] == told["preset"]
    assert report["method"]["sync_every"] == told["sync_every"]
    with pytest.raises(ManifestError, match="exists"):
        called(*PAPERS, "--write", file, "--home", home)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--params", "1M"), "speed of the machines"),
        (("--params", "1M", "--machine", "1T", "--measure"), "speed of the machines"),
        (("--params", "1M", "--machine", "1T", "--link", "hom"), "link profile"),
        (("--params", "1M", "--machine", "1T", "--link", "0/10"), "carries nothing"),
        (("--params", "1M", "--machine", "1T", "--preset", "gosip"), "gosip"),
        (("--params", "1M", "--machine", "1T", "--peers", "0"), "--peers"),
    ],
)
def test_arguments_that_make_no_plan_are_refused_with_a_fix(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=words) as refusal:
        called(*arguments)
    assert refusal.value.fix


@pytest.mark.parametrize("text", ["", "0", "-5", "many", "5X", "1e99999", "nan"])
def test_what_is_no_number_is_refused(text: str) -> None:
    result = CliRunner().invoke(peer, ["plan", "--params", text, "--machine", "1T"])
    assert result.exit_code == 2
    assert "no number" in result.output
