"""The order of the tensors follows from the run's fragments. What the model learns must not depend on it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import pytest
import torch

from peer.ports.trainer import Evaluation
from peer.protocol.model.fragments import PATTERNS, cut
from peer.protocol.model.layout import Layout
from peer.run.sections import DataSection, LlamaSection, TrainSection
from peer.trainer.client import TrainerClient
from peer.trainer.config import TrainerConfig
from peer.trainer.data import BLOCK_BYTES, Corpus, load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import first_params, layout_of

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=2, num_key_value_heads=1
)
OWN = layout_of(MODEL)


def inner_loop(layout: Layout) -> InnerLoop:
    data = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 200, np.uint8)
    config = TrainerConfig(
        model=MODEL,
        train=TrainSection(context=16, batch=4, total_rounds=10, eval_windows=8),
        sync_every=10 * len(layout.fragments),
        seed=1,
        peer_id="a",
        device="cpu",
    )
    corpus = Corpus(data[:8000], data[8000:], "")
    return InnerLoop(config, layout, choose_device("cpu"), corpus, first_params(MODEL, 1, layout))


@pytest.mark.parametrize("pattern", PATTERNS[1:])
def test_the_first_values_of_a_tensor_are_the_same_in_every_order(pattern: str) -> None:
    layout = cut(OWN.tensors, fragments=3, pattern=pattern)
    assert layout.tensors != OWN.tensors
    own = dict(views_of(first_params(MODEL, 7), OWN))
    for name, view in views_of(first_params(MODEL, 7, layout), layout):
        assert torch.equal(view, own[name]), name


@pytest.mark.parametrize("pattern", PATTERNS[1:])
def test_the_same_data_gives_the_same_losses_in_every_order(pattern: str) -> None:
    layout = cut(OWN.tensors, fragments=3, pattern=pattern)
    plain, ordered = inner_loop(OWN), inner_loop(layout)
    ours = [(plain.step(), ordered.step()) for _ in range(12)]
    assert all(one is not None for pair in ours for one in pair)
    assert [one for one, _ in ours] == pytest.approx([other for _, other in ours], abs=2e-5)
    assert ours[0][0] == ours[0][1]  # before the first update both orders give the same bits
    values = dict(views_of(plain.params, OWN))
    for name, view in views_of(ordered.params, layout):
        assert torch.allclose(view, values[name], atol=1e-4), name
    one, other = plain.evaluate(plain.params), ordered.evaluate(ordered.params)
    assert one.loss == pytest.approx(other.loss, abs=2e-5)


def test_replacing_a_fragment_touches_its_tensors_and_no_other() -> None:
    layout = cut(OWN.tensors, fragments=3, pattern="strided")
    loop = inner_loop(layout)
    first, end = layout.fragments[1]
    loop.merge(1, torch.zeros(layout.fragment_elements(1)), 0.0)
    inside = {tensor.name for tensor in layout.tensors[first:end]}
    assert inside == {name for name, view in views_of(loop.params, layout) if not view.any()}
    assert all(".layers.1." in name for name in inside)


@pytest.mark.processes
def test_a_trainer_process_is_told_the_order(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.txt").write_bytes((b"the quick brown fox jumps over the lazy dog. " * BLOCK_BYTES)[: 3 * BLOCK_BYTES])
    section, train = DataSection(kind="text"), TrainSection(context=16, batch=4, total_rounds=10, eval_windows=8)
    config = TrainerConfig(
        model=MODEL, data=section, train=train, data_dir=str(data), sync_every=30, seed=1, peer_id="a", device="cpu"
    )
    layout = cut(OWN.tensors, fragments=3, pattern="strided")
    trainer = TrainerClient(tmp_path, layout, config)

    async def evaluated() -> Evaluation:
        async with asyncio.timeout(180):
            try:
                await trainer.start(first_params(MODEL, 1, layout), 0, None)
                return await trainer.evaluate(first_params(MODEL, 1, layout))
            finally:
                await trainer.stop()

    params = first_params(MODEL, 1)
    here = InnerLoop(config, OWN, choose_device("cpu"), load_corpus(section, str(data), train.context), params)
    assert asyncio.run(evaluated()).loss == pytest.approx(here.evaluate(params).loss, abs=1e-6)
