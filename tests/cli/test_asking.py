"""Commands that only query a daemon create no files."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from peer.cli.main import peer
from peer.errors import NotRunning


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["pause"], ["resume"], ["leave"]])
@pytest.mark.parametrize("depth", [1, 12], ids=["short", "too long for a socket"])
def test_nothing_is_made(words: list[str], depth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = tmp_path.joinpath(*(["somewhere"] * depth))
    result = CliRunner().invoke(peer, [*words, "--home", str(home)])
    assert isinstance(result.exception, NotRunning)
    assert "peer join TICKET" in result.exception.fix
    assert list(tmp_path.iterdir()) == []
