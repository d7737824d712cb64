"""The rules give exact bits: every operation is rounded, and the tests show which values are copied or left
unchanged."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from peer.methods.diloco import nesterov_
from peer.methods.gasloc import gasloc_
from peer.methods.noloco import noloco_, noloco_apart_
from peer.methods.registry import RULES
from peer.methods.sgd import descend_, sgd_
from peer.outer import arithmetic
from peer.outer.arithmetic import all_finite, merge_, pair_mean_, pseudo_gradient_, scale_work_, step_along_

F32 = np.float32
N = 1003
"""No multiple of any vector width: the last elements take another path through the kernels."""


def drawn(count: int, seed: int = 0) -> list[Tensor]:
    return list(torch.randn(count, N, generator=torch.Generator().manual_seed(seed)))


def arrays(tensors: list[Tensor]) -> list[NDArray[np.float32]]:
    return [tensor.numpy().copy() for tensor in tensors]


def same(tensor: Tensor, array: NDArray[np.float32]) -> bool:
    assert array.dtype == np.float32
    return np.array_equal(tensor.numpy(), array)


def test_nesterov_rounds_every_operation_by_itself() -> None:
    outer, momentum, gradient = drawn(3)
    phi, m, g = arrays([outer, momentum, gradient])
    nesterov_(outer, momentum, gradient, outer_lr=0.7, outer_momentum=0.9)
    m = F32(0.9) * m + g
    assert same(momentum, m)
    assert same(outer, phi - F32(0.7) * (g + F32(0.9) * m))


def test_noloco_rounds_every_operation_by_itself() -> None:
    outer, momentum, mean = drawn(3)
    phi, m, theta = arrays([outer, momentum, mean])
    noloco_(outer, momentum, mean, outer_lr=0.7, outer_momentum=0.3)
    m = F32(0.3) * m + F32(0.7) * (theta - phi)
    assert same(momentum, m)
    assert same(outer, phi + m)


def test_noloco_apart_rounds_every_operation_by_itself() -> None:
    outer, momentum, mean, mean_outer = drawn(4)
    phi, m, theta, others = arrays([outer, momentum, mean, mean_outer])
    noloco_apart_(outer, momentum, mean, mean_outer, outer_lr=0.7, outer_momentum=0.3, consensus=0.2)
    m = F32(0.3) * m + F32(0.7) * (theta - others) + F32(0.2) * (others - phi)
    assert same(momentum, m)
    assert same(outer, phi + m)


def test_gasloc_rounds_every_operation_by_itself() -> None:
    outer, momentum, own, partner = drawn(4)
    phi, d, u, y = arrays([outer, momentum, own, partner])
    gasloc_(outer, momentum, own, partner, outer_momentum=0.3, consensus=0.8)
    d = F32(0.3) * (d - (phi - u)) + F32(0.4) * (y - u)
    assert same(momentum, d)
    assert same(outer, u + d)


def test_gasloc_without_a_partner_rounds_every_operation_by_itself() -> None:
    outer, momentum, own = drawn(3)
    phi, d, u = arrays([outer, momentum, own])
    gasloc_(outer, momentum, own, None, outer_momentum=0.3, consensus=0.8)
    d = F32(0.3) * (d - (phi - u))
    assert same(momentum, d)
    assert same(outer, u + d)


def test_two_of_a_pair_that_begin_alike_meet_in_the_middle_with_gasloc() -> None:
    start, one, two = drawn(3)
    ends = []
    for own, partner in ((one, two), (two, one)):
        outer, momentum = start.clone(), torch.zeros(N)
        gasloc_(outer, momentum, own.clone(), partner.clone(), outer_momentum=0.0, consensus=1.0)
        ends.append(outer)
    assert torch.allclose(ends[0], ends[1], atol=1e-6)
    assert torch.allclose(ends[0], (one + two) / 2, atol=1e-6)


def test_merge_rounds_every_operation_by_itself() -> None:
    params, outer = drawn(2)
    theta, phi = arrays([params, outer])
    merge_(params, outer, 0.3)
    assert same(params, F32(0.3) * theta + F32(0.7) * phi)
    assert same(outer, phi)


def test_plain_descent_and_gradient_round_every_operation_by_itself() -> None:
    outer, params = drawn(2)
    phi, theta = arrays([outer, params])
    gradient = pseudo_gradient_(params, outer, 0.3)
    assert gradient is params
    assert same(gradient, F32(0.3) * (phi - theta))
    descend_(outer, gradient, outer_lr=0.7)
    assert same(outer, phi - F32(0.7) * (F32(0.3) * (phi - theta)))


def test_two_of_a_pair_make_the_same_mean() -> None:
    one, two = drawn(2)
    assert torch.equal(pair_mean_(one, two.clone()), pair_mean_(two, one.clone()))


def is_step(function: ast.FunctionDef) -> bool:
    """Return whether the function changes values in place."""
    return function.name.endswith("_") or function.name in ("all_finite", "blocks")


def test_nothing_fused_is_written() -> None:
    """Fault: a fused operation gives other bits on another machine, which the numbers above cannot show."""
    fused = {"addcmul", "addcmul_", "addcdiv", "addcdiv_", "lerp", "lerp_", "addmm", "baddbmm", "rsub", "foreach"}
    modules = (arithmetic, *(sys.modules[type(rule).__module__] for rule in RULES.values()))
    trees = (ast.parse(inspect.getsource(module)) for module in modules)
    steps = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and is_step(node))
    for node in (inner for step in steps for inner in ast.walk(step)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in fused, ast.unparse(node)
            assert {keyword.arg for keyword in node.keywords} <= {"out", "copy"}, ast.unparse(node)
            if node.func.attr in {"add", "add_", "sub_"}:
                assert len(node.args) == 1, ast.unparse(node)


@pytest.mark.parametrize("block", [1, 7, 64, N - 1, N, 4 * N])
def test_the_block_does_not_show(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def computed() -> list[Tensor]:
        outer, momentum, gradient, params = drawn(4)
        nesterov_(outer, momentum, gradient, outer_lr=0.7, outer_momentum=0.9)
        merge_(params, outer, 0.3)
        return [outer, momentum, params]

    whole = computed()
    monkeypatch.setattr(arithmetic, "BLOCK", block)
    assert all(torch.equal(one, other) for one, other in zip(computed(), whole, strict=True))


def test_merging_nothing_leaves_every_bit() -> None:
    params = torch.tensor([1.0, -0.0, float("nan"), float("inf"), 1e-45])
    before = params.view(torch.int32).clone()
    merge_(params, torch.full((5,), float("nan")), 1.0)
    assert torch.equal(params.view(torch.int32), before)


def test_merging_everything_copies_every_bit() -> None:
    outer = torch.tensor([1.0, -0.0, float("nan"), float("inf"), 1e-45])
    params = torch.full((5,), float("nan"))
    merge_(params, outer, 0.0)
    assert torch.equal(params.view(torch.int32), outer.view(torch.int32))
    assert params.data_ptr() != outer.data_ptr()


def test_sgd_with_lr_1_is_the_mean_itself() -> None:
    outer, mean = drawn(2)
    theta = mean.clone()
    sgd_(outer, mean, outer_lr=1.0)
    assert torch.equal(outer, theta)


def test_sgd_goes_a_part_of_the_way() -> None:
    outer = torch.tensor([2.0, 4.0])
    sgd_(outer, torch.tensor([6.0, 0.0]), outer_lr=0.25)
    assert outer.tolist() == [3.0, 3.0]


@pytest.mark.parametrize(("share", "kept"), [(1.0, 6.0), (0.25, 3.0)])
def test_scaled_work_is_a_part_of_the_way(share: float, kept: float) -> None:
    outer, params = torch.full((4,), 2.0), torch.full((4,), 6.0)
    scale_work_(params, outer, share)
    assert params.tolist() == [kept] * 4
    assert outer.tolist() == [2.0] * 4


@pytest.mark.parametrize(("factor", "reached"), [(1.0, 6.0), (0.25, 3.0), (1.5, 8.0)])
def test_a_step_along_the_work_may_be_longer_than_it(factor: float, reached: float) -> None:
    outer, params = torch.full((4,), 2.0), torch.full((4,), 6.0)
    step_along_(params, outer, factor)
    assert params.tolist() == [reached] * 4
    assert outer.tolist() == [2.0] * 4


@pytest.mark.parametrize("scale", [scale_work_, pseudo_gradient_])
@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_is_a_part(scale: Callable[[Tensor, Tensor, float], object], share: float) -> None:
    with pytest.raises(AssertionError):
        scale(torch.ones(1), torch.ones(1), share)


def test_finite() -> None:
    huge = torch.full((8,), 3e38)
    assert all_finite(huge)
    assert all_finite(torch.empty(0))
    for bad in (float("nan"), float("inf"), float("-inf")):
        values = torch.ones(8)
        values[5] = bad
        assert not all_finite(values)
