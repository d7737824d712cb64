"""`peer compare` in virtual time, from manifests to table, JSON and picture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.compare import command
from peer.errors import UsageError

VIRTUAL = ("--virtual", "--peers", "4", "--steps", "240", "--set", "sync.sync_every=20")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_an_exchange_pays_at_equal_tokens(tmp_path: Path) -> None:
    picture = tmp_path / "compare.svg"
    body = json.loads(run("diloco", "none", *VIRTUAL, "--seeds", "2", "--json", "--svg", str(picture)))
    group, alone = body["methods"]
    assert group["loss"] < alone["loss"]
    assert group["curve"][-1]["tokens"] == alone["curve"][-1]["tokens"] == body["tokens"]
    assert group["curve"][-1]["bytes"] > 217_664, "it stands for the manifest's model"
    assert alone["curve"][-1]["bytes"] == 0
    assert group["to_target"]["tokens"] <= alone["to_target"]["tokens"]
    assert picture.read_text().startswith("<svg")


def test_the_same_seed_gives_the_same_numbers() -> None:
    one, other = (run("streaming-noloco", *VIRTUAL, "--link", "home", "--json") for _ in range(2))
    assert one == other


def test_a_person_reads_a_table() -> None:
    assert "to the target" in run("noloco", *VIRTUAL)


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (("noloco", "--churn", "1"), "--virtual"),
        (("noloco", "--virtual", "--link", "cabel"), "cable"),
        (("noloco", *VIRTUAL, "--svg", "/dev/null/x.svg"), "--svg"),
    ],
)
def test_what_cannot_be_is_refused_with_a_fix(arguments: tuple[str, ...], fix: str) -> None:
    with pytest.raises(UsageError) as refused:
        run(*arguments)
    assert fix in refused.value.fix
