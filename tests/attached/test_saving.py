"""The loop's part of a checkpoint is restored bit for bit."""

from __future__ import annotations

from pathlib import Path

import torch

from peer.attached.saving import load, save


def test_tensors_that_share_memory_come_back_as_they_were(tmp_path: Path) -> None:
    flat = torch.randn(10)
    live = {"first": flat[:5], "second": flat[5:], "whole": flat, "twice": flat, "across": torch.randn(3, 2).t()}
    before = {name: tensor.clone() for name, tensor in live.items()}
    save(tmp_path, live, [], (7, 1, 2, 3), [])
    flat.zero_()
    live["across"].zero_()
    place, _ = load(tmp_path, live, [], 7)
    assert place is not None
    assert (place.tokens, place.round, place.step_in_round, place.since_snapshot) == (7, 1, 2, 3)
    assert all(torch.equal(live[name], before[name]) for name in live)


def test_the_state_of_an_optimizer_comes_back_and_other_params_do_not_take_it(tmp_path: Path) -> None:
    param = torch.nn.Parameter(torch.ones(4))
    optimizer = torch.optim.AdamW([param])
    param.grad = torch.arange(4.0)
    optimizer.step()
    save(tmp_path, {"param": param}, [optimizer], (1, 0, 1, 1), [])
    fresh = torch.optim.AdamW([param])
    load(tmp_path, {"param": param}, [fresh], 2)
    for name, value in optimizer.state[param].items():
        assert torch.equal(fresh.state[param][name], value)
    other = torch.optim.AdamW([torch.nn.Parameter(torch.ones(5))])
    _, told = load(tmp_path, {"param": param}, [other], 2)
    assert "other parameters" in told
    assert not other.state
