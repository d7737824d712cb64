from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peer.codec import kernels
from peer.joining.artifacts import RunFiles
from peer.joining.trainer import launch_trainer, trainer_config
from peer.observe.progress import Waits
from peer.ports.trainer import TrainerInfo
from peer.protocol.messages import PeerId, RunId
from peer.run.manifest import default_text, parse_manifest
from peer.run.options import PeerOptions


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16"])
def test_the_trainer_is_told_the_volunteer_s_precision(precision: str) -> None:
    options = PeerOptions(home=Path("unused"), run_id=RunId(bytes(32)), precision=precision)
    told = trainer_config(options, PeerId("a"), parse_manifest(default_text().encode()), RunFiles())
    assert told.precision == precision
    assert told.mask_end_token is None


def test_a_start_tells_which_kernels_the_codecs_have_and_why() -> None:
    async def start(*_: Any) -> TrainerInfo:
        return TrainerInfo("cpu", "no GPU", 512)

    said: list[str] = []
    context: Any = SimpleNamespace(say=said.append)
    state: Any = SimpleNamespace(outer=SimpleNamespace(params=torch.zeros(1)), round=0)
    trainer: Any = SimpleNamespace(start=start)
    asyncio.run(launch_trainer(context, trainer, state, None, None, Waits(lambda: 0.0), lambda event: None))
    assert f"codecs: {kernels.IMPLEMENTATION} ({kernels.REASON})" in said
