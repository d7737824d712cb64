"""The tensors of a user's model are matched with the run's by name, and errors name the difference."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from peer.attached.names import clean_name
from peer.attached.params import BoundTensors, check_optimizers, match_tensors
from peer.errors import ModelError, UsageError
from peer.protocol.model.layout import Layout, TensorSpec

TENSORS = (TensorSpec("0.weight", (3, 2)), TensorSpec("0.bias", (3,)), TensorSpec("1.weight", (2, 3)))
LAYOUT = Layout(TENSORS, ((0, 2), (2, 3)))


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2, bias=False))


def test_tensors_come_in_the_order_of_the_run() -> None:
    own = model()
    found = match_tensors(own, TENSORS[::-1])
    assert [id(tensor) for tensor in found] == [id(own[1].weight), id(own[0].bias), id(own[0].weight)]


@pytest.mark.parametrize(
    ("own", "found"),
    [
        (nn.Sequential(nn.Linear(2, 3)), r"the run's 1.weight \[2, 3\] is not in your model"),
        (
            nn.Sequential(nn.Linear(2, 4), nn.Linear(3, 2)),
            r"0.weight is \[4, 2\] in your model and \[3, 2\] in the run",
        ),
        (model().bfloat16(), "0.weight is torch.bfloat16 in your model and torch.float32 in the run"),
        (model().to("meta"), "0.weight is on the meta device"),
        (nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), r"1.bias \[2\] of your model is not in the run"),
    ],
)
def test_the_first_difference_is_named(own: nn.Module, found: str) -> None:
    with pytest.raises(ModelError, match=found):
        match_tensors(own, TENSORS)


def test_what_is_frozen_and_not_in_the_run_stays_out() -> None:
    own = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    own[1].bias.requires_grad_(False)
    assert len(match_tensors(own, TENSORS)) == len(TENSORS)


def test_names_are_those_without_wrappers() -> None:
    assert clean_name("module._orig_mod.layers.0._checkpoint_wrapped_module.weight") == "layers.0.weight"


def test_an_optimizer_of_other_parameters_is_refused() -> None:
    own, other = model(), model()
    check_optimizers([torch.optim.SGD(own.parameters(), 0.1)], match_tensors(own, TENSORS))
    with pytest.raises(UsageError, match="updates none"):
        check_optimizers([torch.optim.SGD(other.parameters(), 0.1)], match_tensors(own, TENSORS))


def test_snapshot_and_merge_are_exact() -> None:
    own = model()
    params = BoundTensors(LAYOUT, match_tensors(own, TENSORS))
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in params.tensors])
    taken, outer = torch.empty(9), torch.randn(9)
    params.read(0, taken)
    assert torch.equal(taken, flat[:9])
    params.merge(0, outer, 0.0)
    assert torch.equal(own[0].weight.detach().reshape(-1), outer[:6])
    assert torch.equal(own[1].weight.detach().reshape(-1), flat[9:])
    params.shift(0, torch.ones(9))
    assert torch.equal(own[0].bias.detach(), outer[6:] + 1)
    params.load(flat)
    params.read(1, torch.empty(6))
    assert torch.equal(own[1].weight.detach().reshape(-1), flat[9:])
