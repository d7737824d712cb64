"""Tests of the outer state: which elements a step changes, what its digest covers, and when it may be copied."""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from blake3 import blake3
from torch import Tensor

from peer.methods.diloco import NESTEROV
from peer.methods.method import Method
from peer.methods.registry import PRESETS
from peer.outer import arithmetic
from peer.outer import state as state_module
from peer.outer.state import OuterState
from peer.outer.values import MeanGradient, OwnWork, PartnerParams
from peer.protocol.model.layout import Layout, TensorSpec

LAYOUT = Layout(tuple(TensorSpec(name, (size,)) for name, size in (("a", 3), ("b", 5), ("c", 2))), ((0, 1), (1, 3)))
RULE: dict[str, Any] = {"rule": "nesterov", "outer_lr": 0.5, "outer_momentum": 0.5}


def step(
    state: OuterState,
    fragment: int,
    own: Tensor,
    partner: Tensor | None = None,
    *,
    share: float = 1.0,
    partner_outer: Tensor | None = None,
    **terms: Any,
) -> None:
    """Apply a step, with a partner or alone."""
    work = OwnWork(own, share)
    theirs = partner if partner is None or partner_outer is None else torch.cat([partner, partner_outer])
    state.step_with(fragment, work if theirs is None else PartnerParams(work, theirs), made(**terms))


def descend(state: OuterState, fragment: int, gradient: Tensor, spans: Sequence[tuple[int, int]], **terms: Any) -> None:
    state.step_with(fragment, MeanGradient(gradient, spans), made(**terms))


def made(**terms: Any) -> Method:
    """Return a method with these constants. The default of `consensus` is `outer_lr`."""
    return Method(**({"topology": "pair", "codec": "fp32", "consensus": terms["outer_lr"]} | terms))


def fresh(seed: int = 0) -> OuterState:
    state = OuterState.fresh(LAYOUT, torch.randn(10, generator=torch.Generator().manual_seed(seed)))
    state.momentum.copy_(torch.randn(10, generator=torch.Generator().manual_seed(seed + 1)))
    return state


def moved(state: OuterState, before: OuterState) -> tuple[list[int], list[int]]:
    """Return the elements of (params, momentum) that changed."""
    return (
        (state.params != before.params).nonzero().flatten().tolist(),
        (state.momentum != before.momentum).nonzero().flatten().tolist(),
    )


def test_a_step_moves_its_fragment_and_no_other() -> None:
    state = fresh()
    step(state, 1, torch.ones(7), torch.ones(7), rule="noloco", outer_lr=0.7, outer_momentum=0.5)
    assert moved(state, fresh()) == ([3, 4, 5, 6, 7, 8, 9],) * 2


def test_a_descent_leaves_params_and_momentum_where_there_is_no_mean() -> None:
    state, gradient = fresh(), torch.full((7,), float("nan"))
    gradient[1:3] = gradient[5:6] = 1.0
    descend(state, 1, gradient, [(1, 3), (5, 6)], **RULE)
    assert moved(state, fresh()) == ([4, 5, 8],) * 2


def test_a_descent_in_parts_is_the_descent_at_once_bit_for_bit() -> None:
    parts, whole, gradient = fresh(), fresh(), torch.randn(7, generator=torch.Generator().manual_seed(5))
    descend(parts, 1, gradient.clone(), [(0, 2), (2, 2), (2, 7)], **RULE)
    descend(whole, 1, gradient.clone(), [(0, 7)], **RULE)
    assert torch.equal(parts.params, whole.params)
    assert torch.equal(parts.momentum, whole.momentum)


def test_a_descent_without_any_mean_moves_nothing() -> None:
    state = fresh()
    descend(state, 0, torch.full((3,), float("nan")), [], **RULE)
    assert moved(state, fresh()) == ([], [])


@pytest.mark.parametrize("spans", [[(0, 8)], [(-1, 2)], [(3, 2)], [(2, 4), (3, 5)], [(4, 5), (0, 2)]])
def test_spans_lie_in_order_within_the_fragment(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(AssertionError):
        descend(fresh(), 1, torch.zeros(7), spans, **RULE)


def test_a_gradient_of_another_length_is_an_error() -> None:
    with pytest.raises(AssertionError):
        descend(fresh(), 1, torch.zeros(3), [(0, 3)], **RULE)


def test_a_group_has_no_rule_of_pairs() -> None:
    with pytest.raises(NotImplementedError, match="noloco"):
        descend(fresh(), 0, torch.zeros(3), [(0, 3)], rule="noloco", outer_lr=0.5, outer_momentum=0.5)


def test_pairs_have_no_rule_of_groups() -> None:
    with pytest.raises(AssertionError, match="nesterov"):
        step(fresh(), 0, torch.zeros(3), torch.zeros(3), **RULE)


def test_a_solo_step_of_nesterov_is_a_descent_along_the_own_pseudo_gradient() -> None:
    alone, group, own = fresh(), fresh(), torch.ones(7)
    step(alone, 1, own, None, **RULE, share=0.3)
    descend(group, 1, group.contribution(1, own.clone(), NESTEROV, 0.3), [(0, 7)], **RULE)
    assert torch.equal(alone.params, group.params)
    assert torch.equal(alone.momentum, group.momentum)


def test_a_refounded_gasloc_begins_again_without_momentum() -> None:
    terms: dict[str, Any] = {"rule": "gasloc", "outer_lr": 1.0, "outer_momentum": 0.3, "consensus": 1.0}
    state, start = fresh(), torch.ones(10)
    state.refound(start)
    other = OuterState.fresh(LAYOUT, start.clone())
    for one in (state, other):
        step(one, 1, torch.zeros(7), torch.full((7,), 2.0), **terms)
    assert torch.equal(state.params, other.params)
    assert torch.equal(state.momentum[3:], other.momentum[3:])


@pytest.mark.parametrize("alone", [True, False])
def test_noloco_without_outer_momentum_takes_the_mean_and_never_writes_a_momentum(alone: bool) -> None:
    gossip, state = PRESETS["gossip"].method, fresh()
    own, partner = (torch.randn(7, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6))
    terms = {name: getattr(gossip, name) for name in ("rule", "outer_lr", "outer_momentum", "consensus")}
    assert (terms["rule"], gossip.keeps_momentum) == ("noloco", False)
    step(state, 1, own, None if alone else partner, **terms)
    assert torch.equal(state.fragment(1), own if alone else (own + partner) * 0.5)
    assert torch.equal(state.momentum, fresh().momentum)  # it is not zero, so a step with momentum would change it


@pytest.mark.parametrize(
    "changed", [{}, {"outer_lr": 0.7}, {"outer_lr": 0.7, "consensus": 0.7}, {"outer_momentum": 0.5}]
)
@pytest.mark.parametrize("preset", ["gossip", "noloco", "gasloc"])
def test_a_step_of_a_pair_writes_a_momentum_where_the_method_says_that_it_keeps_one(
    preset: str, changed: dict[str, Any]
) -> None:
    method, state = replace(PRESETS[preset].method, **changed), fresh()
    terms = {name: getattr(method, name) for name in ("rule", "outer_lr", "outer_momentum", "consensus")}
    step(state, 1, torch.ones(7), torch.ones(7), partner_outer=torch.zeros(7), **terms)
    assert bool(moved(state, fresh())[1]) == method.keeps_momentum


def test_a_consensus_of_its_own_needs_the_partners_outer_params() -> None:
    def stepped(consensus: float, partner: bool) -> None:
        params, constants = torch.ones(3) if partner else None, {"outer_lr": 0.7, "outer_momentum": 0.5}
        step(fresh(), 0, torch.zeros(3), params, rule="noloco", consensus=consensus, **constants)

    with pytest.raises(AssertionError, match="partner's outer_params"):
        stepped(0.3, partner=True)
    for consensus, partner in ((0.7, True), (0.3, False)):
        stepped(consensus, partner)


def test_a_pseudo_gradient_is_taken_in_place_and_moves_nothing() -> None:
    state, own = fresh(), torch.ones(7)
    gradient = state.contribution(1, own, NESTEROV, 0.5)
    assert gradient is own
    assert torch.equal(gradient, (state.params[3:] - 1) * 0.5)
    assert moved(state, fresh()) == ([], [])


def test_the_digest_is_of_little_endian_params_then_momentum_of_the_fragment() -> None:
    state = fresh()
    numbers = [*state.params[:3].tolist(), *state.momentum[:3].tolist()]
    assert state.digest(0) == blake3(struct.pack("<6f", *numbers)).digest()


@pytest.mark.parametrize("of", ["params", "momentum"])
def test_the_digest_sees_the_last_bit_of_its_fragment_only(of: str) -> None:
    state = fresh()
    before = state.digest(0), state.digest(1)
    values = getattr(state, of)
    values[9] = torch.nextafter(values[9], torch.tensor(9.0))
    assert state.digest(0) == before[0]
    assert state.digest(1) != before[1]


def test_ten_descents_give_the_same_bits_on_every_machine() -> None:
    """The digest is frozen. Inputs are exact in fp32, and only correctly rounded operations are used."""

    def spread(factor: int) -> torch.Tensor:
        return ((torch.arange(1003) * factor) % 2003 - 1001).float() / 1024

    state = OuterState.fresh(Layout.whole([TensorSpec("w", (1003,))]), spread(7))
    for round_ in range(10):
        descend(
            state, 0, spread(round_ + 11), [(0, 400), (401, 1003)], rule="nesterov", outer_lr=0.7, outer_momentum=0.9
        )
    assert state.digest(0).hex() == "830f73dc7be8bd08165b927f7fb265995af50e32680afc2ec4f13f209d4cea30"


def test_busy_until_the_last_of_several_steps_is_done() -> None:
    state = fresh()
    assert not state.busy
    with state.stepping():
        with state.stepping():
            assert state.busy
        assert state.busy
    assert not state.busy


def test_a_step_that_fails_is_done() -> None:
    state = fresh()
    with pytest.raises(ZeroDivisionError), state.stepping():
        raise ZeroDivisionError
    assert not state.busy


def test_fragments_step_at_once_in_threads() -> None:
    state, alone, start = fresh(), fresh(), threading.Barrier(2, timeout=10)

    def stepped(fragment: int) -> bool:
        with state.stepping():
            start.wait()
            own = torch.ones(LAYOUT.fragment_elements(fragment))
            step(state, fragment, own, None, rule="noloco", outer_lr=0.7, outer_momentum=0.5)
            busy = state.busy
            start.wait()
            return busy

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(stepped, (0, 1))) == [True, True]
    assert not state.busy
    for fragment in (0, 1):
        own = torch.ones(LAYOUT.fragment_elements(fragment))
        step(alone, fragment, own, None, rule="noloco", outer_lr=0.7, outer_momentum=0.5)
    assert torch.equal(state.params, alone.params)
    assert torch.equal(state.momentum, alone.momentum)


def test_what_is_taken_over_is_the_others_state_of_that_fragment_alone() -> None:
    own, other = fresh(1), fresh(2)
    before = own.digest(0)
    own.put(1, other.fragment(1).clone(), other.momentum[slice(*other.layout.fragment_span(1))].clone())
    assert own.digest(1) == other.digest(1)
    assert own.digest(0) == before != other.digest(0)


TERMS = [
    {"rule": "noloco", "outer_momentum": 0.5},
    {"rule": "noloco", "outer_momentum": 0.5, "consensus": 0.3},
    {"rule": "sgd", "outer_momentum": 0.0},
    {"rule": "gasloc", "outer_momentum": 0.5, "consensus": 0.8},
    {"rule": "nesterov", "outer_momentum": 0.5},
]


@pytest.mark.parametrize("terms", TERMS, ids=["noloco", "apart", "sgd", "gasloc", "nesterov"])
@pytest.mark.parametrize("share", [1.0, 0.3])
@pytest.mark.parametrize("alone", [True, False])
def test_a_step_in_blocks_is_the_step_at_once_bit_for_bit_and_only_reads_what_it_is_given(
    monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any], share: float, alone: bool
) -> None:
    given = [torch.randn(7, generator=torch.Generator().manual_seed(seed)) for seed in (5, 6, 7)]
    alone |= terms["rule"] in ("nesterov", "sgd")  # these rules are not for pairs
    own, partner, outer = given[0], None if alone else given[1], None if alone else given[2]
    befores = [values.clone() for values in given]
    found = set()
    for block in (1, 2, 3, 7, 100):
        monkeypatch.setattr(arithmetic, "BLOCK", block)
        monkeypatch.setattr(state_module, "BLOCK", block)
        state = fresh()
        step(state, 1, own, partner, outer_lr=0.7, share=share, partner_outer=outer, **terms)
        found.add(state.digest(1))
    assert len(found) == 1
    assert found != {fresh().digest(1)}
    assert all(torch.equal(values, before) for values, before in zip(given, befores, strict=True))


@pytest.mark.parametrize("wrong", ["own", "partner", "partner_outer"])
def test_a_step_with_values_of_another_length_moves_nothing(wrong: str) -> None:
    state = fresh()
    given = {name: torch.zeros(6 if name == wrong else 7) for name in ("own", "partner", "partner_outer")}
    with pytest.raises(AssertionError):
        step(state, 1, rule="noloco", outer_lr=0.7, outer_momentum=0.5, consensus=0.3, **given)
    assert moved(state, fresh()) == ([], [])
