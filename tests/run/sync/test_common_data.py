"""In runs whose peers share no data, partners' params cannot be checked by their loss, and every peer reports that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.run.resolve import resolve
from peer.run.sections import DataSection, SyncSection
from peer.run.sync.common_data import unchecked_reason

OWN, PINNED = DataSection(kind="text"), DataSection(kind="text", digest="ab" * 32)


@pytest.mark.parametrize(
    ("sync", "data", "told"),
    [
        (SyncSection(preset="gossip"), OWN, True),
        (SyncSection(preset="gossip"), PINNED, False),
        (SyncSection(preset="gossip"), DataSection(), False),
        (SyncSection(preset="gossip", acceptance="clip"), OWN, False),
        (SyncSection(preset="diloco"), OWN, False),
    ],
)
def test_only_a_check_without_common_data_is_cautioned(sync: SyncSection, data: DataSection, told: bool) -> None:
    assert bool(unchecked_reason(resolve(sync), data)) is told


def test_who_makes_checks_and_shows_a_manifest_is_told_once(tmp_path: Path) -> None:
    file, home = str(tmp_path / "run.toml"), str(tmp_path / "home")

    def said(*command: str) -> tuple[str, str]:
        result = CliRunner().invoke(peer, ["manifest", *command])
        assert result.exit_code == 0, result.output
        return result.stdout, result.stderr

    caution = "caution: sync.acceptance: every volunteer trains on texts of its own"
    for command in (("new", file, "--home", home, "--set", "data.kind=text"), ("check", file), ("show", file)):
        assert said(*command)[1].count(caution) == 1
    for name in ("check", "show"):
        assert list(json.loads(said(name, file, "--json")[0])["cautions"]) == ["sync.acceptance"]
