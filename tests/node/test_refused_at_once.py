"""A missing requirement of this machine must be reported before anything is made, opened or fetched."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from peer.errors import DataError, UsageError
from peer.joining import preflight
from peer.node import compose
from peer.node.display import PlainLines
from peer.node.peer import run_peer
from peer.protocol.messages import RunId
from peer.run.options import PeerOptions


def opened(*_: object) -> None:
    raise AssertionError("the network side was opened")


@pytest.mark.parametrize(
    ("wrong", "error"), [({"device": "cuda"}, UsageError), ({"data_dir": Path("/nowhere/at/all")}, DataError)]
)
def test_a_wrong_device_or_data_folder_ends_peer_join_before_it_makes_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: dict[str, Any], error: type[Exception]
) -> None:
    monkeypatch.setattr(preflight.check_cuda, "__defaults__", ((),))
    monkeypatch.setattr(compose, "open_node", opened)
    options = PeerOptions(home=tmp_path / "home", run_id=RunId(bytes(32)), **wrong)
    with pytest.raises(error):
        asyncio.run(run_peer(options, PlainLines(lambda line: None)))
    assert list(tmp_path.iterdir()) == []
