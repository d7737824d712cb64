from __future__ import annotations

from pathlib import Path

import pytest

from peer.join.artifacts import RunFiles
from peer.join.trainer import trainer_config
from peer.protocol.messages import PeerId, RunId
from peer.run.manifest import default_text, parse_manifest
from peer.run.options import JoinOptions


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_the_trainer_is_told_the_volunteer_s_precision(precision: str) -> None:
    options = JoinOptions(home=Path("unused"), run_id=RunId(bytes(32)), precision=precision)
    told = trainer_config(options, PeerId("a"), parse_manifest(default_text().encode()), RunFiles())
    assert told.precision == precision
    assert told.mask_end_token is None
