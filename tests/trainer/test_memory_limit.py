"""The limit of an accelerator's memory. No accelerator is needed: the calls of torch are recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from peer.errors import ModelError
from peer.trainer.data import BLOCK_BYTES
from peer.trainer.device import Device
from peer.trainer.memory_limit import limited_gpu_memory
from tests.trainer.test_trainer_worker import Played

GIB = 2**30
GPU = torch.device("cuda")


@pytest.fixture
def fractions(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the fractions that are set, on a GPU of 16 GiB of which 10 GiB are free and torch has reserved 1 GiB."""
    found = list[float]()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10 * GIB, 16 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: GIB)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda fraction, device: found.append(fraction))
    return found


def test_the_need_and_what_is_free_give_the_fraction(fractions: list[float]) -> None:
    with limited_gpu_memory(GIB, GPU, "training"):
        assert fractions == [11 / 16], "twice the need, nine tenths of the rest and the margin are more than is free"
    with pytest.raises(ModelError) as caught, limited_gpu_memory(GIB, GPU, "training"):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    assert fractions == [11 / 16, 1.0, 11 / 16, 1.0]
    assert caught.value.found.startswith("training takes more GPU memory than the 10.7 GB that it may take here: all")


def test_more_than_the_gpu_has_is_no_fraction(fractions: list[float]) -> None:
    with limited_gpu_memory(20 * GIB, GPU, "training"):
        assert fractions == [1.0]


def test_the_trainer_sets_it_for_its_steps(fractions: list[float], tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_bytes(b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)
    session = Played(tmp_path, texts).session
    with session.limited():
        assert fractions == [], "it trains in main memory"
    session._device = Device(GPU, None, "")
    with session.limited():
        assert fractions == [11 / 16]
