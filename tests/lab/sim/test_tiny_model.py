from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from peer.lab.sim.tiny_model import BLOCKS, SYMBOLS, TENSORS, TinyLoop, _drawn, first_params, least_loss, loss_of
from peer.protocol.model.fragments import cut
from peer.protocol.model.layout import Layout
from peer.trainer.models.flat import views_of

LAYOUT = Layout.whole(TENSORS)
SEEDS = [1, 2, 3]


def loops(seed: int, count: int, layout: Layout = LAYOUT) -> list[TinyLoop]:
    return [TinyLoop(layout, first_params(seed, layout), seed=seed, data=f"peer {n}") for n in range(count)]


def rounds(peers: list[TinyLoop], *, count: int, steps: int, averaged: bool) -> None:
    for round_ in range(count):
        for peer in peers:
            peer.move_to(round_, 0)
            for _ in range(steps):
                peer.step()
        if averaged:
            mean = torch.stack([peer.params for peer in peers]).mean(0)
            for peer in peers:
                peer.merge(0, mean, 0.0)


@pytest.mark.parametrize("seed", SEEDS)
def test_training_lowers_the_loss_and_averaging_four_lowers_it_further(seed: int) -> None:
    (alone,), together = loops(seed, 1), loops(seed, 4)
    start = loss_of(alone.params, LAYOUT, seed)
    rounds([alone], count=15, steps=20, averaged=False)
    rounds(together, count=15, steps=20, averaged=True)
    loss, mean_loss = loss_of(alone.params, LAYOUT, seed), loss_of(together[0].params, LAYOUT, seed)
    assert loss < start - 0.3
    assert mean_loss < loss - 0.1
    assert mean_loss > least_loss(seed) + 0.3, "there is something left to learn"


def test_a_step_follows_the_gradient_of_the_loss() -> None:
    """The step equals that of the same model in torch, on the first step's batch."""
    (loop,) = loops(1, 1)
    weights = {name: view.clone().requires_grad_() for name, view in views_of(loop.params, LAYOUT)}
    before, last, following = (torch.from_numpy(part[0]) for part in _drawn(1, "peer 0", 0, 0))
    embed = weights["model.embed_tokens.weight"]
    x = embed[last] + embed[before].roll(embed.shape[1] // 2, 1)
    for number in range(BLOCKS):
        up, down = (weights[f"model.layers.{number}.mlp.{name}_proj.weight"] for name in ("up", "down"))
        x = x + F.linear(F.linear(x, up).relu(), down)
    loss = F.cross_entropy(F.linear(x, weights["lm_head.weight"]), following)
    loss.backward()
    assert loop.step() == pytest.approx(loss.item(), rel=1e-5)
    moments = dict(views_of(torch.from_numpy(loop.mean), LAYOUT))
    for name, weight in weights.items():
        assert weight.grad is not None
        assert torch.allclose(moments[name], 0.1 * weight.grad, atol=1e-6), name


def test_the_same_arguments_give_the_same_params_and_others_do_not() -> None:
    one, other = loops(1, 2)
    (twin,) = loops(1, 1)
    for loop in (one, twin, other):
        loop.move_to(4, 100)
        for _ in range(30):
            loop.step()
    assert torch.equal(one.params, twin.params)
    assert not torch.equal(one.params, other.params)
    again, elsewhere = loops(1, 1)[0], loops(1, 1)[0]
    again.move_to(4, 100)
    elsewhere.move_to(5, 100)
    assert again.step() != elsewhere.step()


@pytest.mark.parametrize("pattern", ["sequential", "strided", "balanced"])
def test_what_is_learned_does_not_depend_on_the_order_of_the_tensors(pattern: str) -> None:
    layout = cut(TENSORS, fragments=3, pattern=pattern, apart=True)
    (plain,), (ordered,) = loops(2, 1), loops(2, 1, layout)
    for _ in range(20):
        assert plain.step() == pytest.approx(ordered.step(), abs=1e-4)
    values = dict(views_of(plain.params, LAYOUT))
    for name, view in views_of(ordered.params, layout):
        assert torch.allclose(view, values[name], atol=1e-3), name
    assert loss_of(ordered.params, layout, 2) == pytest.approx(loss_of(plain.params, LAYOUT, 2), abs=1e-4)


def test_a_merge_touches_one_fragment() -> None:
    layout = cut(TENSORS, fragments=2, pattern="strided")
    (loop,) = loops(1, 1, layout)
    before, (start, end) = loop.params.clone(), layout.fragment_span(1)
    loop.merge(1, torch.full((end - start,), 2.0), 0.5)
    assert torch.equal(loop.params[:start], before[:start])
    assert torch.equal(loop.params[start:end], 0.5 * before[start:end] + 1.0)


def test_domains_share_no_text_and_a_trainer_of_all_draws_as_ever() -> None:
    parts = [_pairs_drawn((part, 8)) for part in range(8)]
    assert sum(map(len, parts)) == len(set().union(*parts)) == SYMBOLS**2
    assert _pairs_drawn((0, 1)) == set(range(SYMBOLS**2))
    for one, other in zip(_drawn(1, "peer 0", 0, 0), _drawn(1, "peer 0", 0, 0, (0, 1)), strict=True):
        assert (one == other).all()


def _pairs_drawn(domain: tuple[int, int]) -> set[int]:
    drawn = [_drawn(1, "peer 0", round_, 0, domain) for round_ in range(4)]
    return {int(pair) for before, last, _ in drawn for pair in (before * SYMBOLS + last).flat}


def test_a_rate_of_nothing_learns_nothing() -> None:
    first = first_params(1, LAYOUT)
    still = TinyLoop(LAYOUT, first, seed=1, data="peer 0", lr=0.0)
    still.step()
    assert torch.equal(still.params, first)
