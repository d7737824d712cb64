from __future__ import annotations

import asyncio

import pytest
import torch

from peer.lab.sim.links import Link, capped, wire_bytes
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.ports.trainer import WorkRequest
from peer.protocol.messages import RoundKey
from peer.protocol.model.layout import Layout
from peer.run.manifest import Manifest, default_text, derive, parse_manifest
from peer.run.model_layout import tensors_of
from peer.run.sections import LlamaSection
from peer.trainer.data import load_corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.models.llama import first_params
from peer.transport.wire.pacing import BULK_SHARE
from tests.support.real_trainer import ModelTrainer, config_of

SMALL = ("model.num_hidden_layers=1", "train.batch=1", "train.context=16", "train.eval_windows=4", "sync.clock=steps")


def small() -> Manifest:
    return parse_manifest(derive(default_text(), [*SMALL]).encode())


def test_it_learns_what_the_real_trainer_learns() -> None:
    manifest, steps = small(), 3
    config = config_of(manifest, "peer 0")
    assert isinstance(manifest.model, LlamaSection)
    layout = Layout.whole(tensors_of(manifest.model))
    first = first_params(manifest.model, manifest.seed, layout)

    async def virtual() -> tuple[torch.Tensor, float, float]:
        clock = VirtualClock()
        trainer = ModelTrainer(config, layout, clock, step_seconds=10.0)
        await trainer.start(first, 0, None)
        work = await trainer.work(WorkRequest(RoundKey(0, 0), steps, None, True))
        loss = (await trainer.evaluate(None)).loss
        return work.params.clone(), loss, asyncio.get_running_loop().time()

    params, loss, seconds = run_virtual(virtual())
    loop = InnerLoop(config, layout, choose_device("cpu"), load_corpus(config.data, None, config.train.context), first)
    for _ in range(steps):
        loop.step()
    assert torch.equal(params, loop.params)
    assert loss == loop.evaluate(loop.params).loss
    assert seconds == pytest.approx(10.0 * steps)


@pytest.mark.parametrize("cap", [20e3, 1e6, 1e9])
def test_payload_moves_as_the_cap_allows_whatever_is_put_around_it(cap: float) -> None:
    link = capped(Link("free", 1e12, 1e12, 0.0), max_upload=cap)
    payload = 10**8
    seconds = wire_bytes(payload) / link.up
    assert payload / seconds == pytest.approx(BULK_SHARE * cap, rel=0.025)  # frames have headers of their own
    assert payload / seconds < BULK_SHARE * cap
    assert link.down == 1e12


def test_a_cap_does_not_widen_a_link() -> None:
    link = Link("narrow", 1e3, 2e3, 0.0)
    assert capped(link, 1e6, 1e6) == link
