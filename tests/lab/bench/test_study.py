"""The study of defaults: its stacked trainer is the product's, and it plays and judges as its protocol says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from benchmarks.checked_study import StudyJudge
from benchmarks.study.methods import METHODS, partners
from benchmarks.study.plan import CELLS, FIRST, LAST, RUNGS, SCORING, TUNING, rate, tuned, wanted
from benchmarks.study.play import MODEL, StudyCell, StudyRun, play
from benchmarks.study.stacked import StackedLlama
from benchmarks.study.verdict import Interval, decision, gap_closed, over_cells, scores
from peer.run.sections import OptimizerSection, TrainSection
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.loss import TokenLoss
from peer.trainer.models.factory import bind
from peer.trainer.models.llama import empty_model, first_params, layout_of
from peer.trainer.probing.windows import WindowForm

CELL = CELLS[0]
SHORT = TrainSection(context=16, batch=2, total_rounds=2, eval_windows=4)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 4000).astype(np.uint8)
    return Corpus(text[:3000], text[3000:], "0" * 64)


# -- the stacked network and its training ------------------------------------------------------------------------------


def test_each_copy_has_the_loss_and_the_gradient_of_the_products_network() -> None:
    layout = layout_of(MODEL)
    params = torch.stack([first_params(MODEL, seed) for seed in (1, 2)])
    windows = torch.randint(0, 256, (2, 3, 17), generator=torch.Generator().manual_seed(0))
    stacked = StackedLlama(MODEL, params)
    losses = stacked.losses(windows)
    grads = torch.autograd.grad(losses.sum(), list(stacked.tensors.values()))

    for copy, flat in enumerate(params):
        model = empty_model(MODEL)
        bind(model, layout, flat.clone())
        loss = TokenLoss(model, torch.device("cpu"))(windows[copy].numpy(), 1 / 48)

        assert losses[copy].item() == pytest.approx(loss.item(), rel=1e-6)
        assert list(stacked.tensors) == [name for name, _ in model.named_parameters()]
        for own, product in zip(grads, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            assert torch.allclose(own[copy], product, rtol=1e-4, atol=1e-7)


def test_the_losses_of_the_windows_have_the_mean_of_all() -> None:
    stacked = StackedLlama(MODEL, torch.stack([first_params(MODEL, seed) for seed in (1, 2)]))
    windows = torch.randint(0, 256, (2, 3, 17), generator=torch.Generator().manual_seed(0))

    each = stacked.window_losses(windows)

    assert torch.allclose(each.mean(1), stacked.losses(windows), rtol=1e-5)
    assert each[0, 0] != each[0, 1]


def test_a_peer_that_exchanges_nothing_ends_where_the_products_trainer_ends(corpus: Corpus) -> None:
    cell = StudyCell("", 2, 3)
    (played,) = play([StudyRun(cell, "none", 3e-3, 5)], corpus, SHORT)

    for peer, loss in enumerate(played["losses"]):
        config = TrainerConfig(
            model=MODEL,
            train=SHORT,
            optimizer=OptimizerSection(lr=3e-3),
            sync_every=3,
            seed=5,
            peer_id=f"peer-{peer}",
            device="cpu",
            precision="fp32",
        )
        device = choose_device("cpu", "fp32")
        loop = InnerLoop(config, layout_of(MODEL), device, corpus, first_params(MODEL, 5))
        for at in range(6):
            loop.move_to(*divmod(at, 3))
            loop.step()

        assert loss == pytest.approx(loop.evaluate(loop.params).loss, abs=2e-5)
    assert played["losses"][0] != played["losses"][1]


def test_runs_do_not_touch_each_other_and_a_swarm_draws_together(corpus: Corpus) -> None:
    cell = StudyCell("", 4, 2)
    runs = [StudyRun(cell, method, 4e-3, 1) for method in ("none", "noloco", "gasloc-.3", "diloco")]
    together = play(runs, corpus, SHORT)
    (apart,) = play(runs[1:2], corpus, SHORT)
    none, noloco, gasloc, diloco = (one["spread"] for one in together)

    assert together[1]["loss"] == pytest.approx(apart["loss"], abs=1e-5)
    assert diloco < 1e-6 < gasloc < none
    assert diloco < noloco < none


def test_who_refuses_everybody_is_alone_and_who_is_asked_counts(corpus: Corpus) -> None:
    cell, judges = StudyCell("", 2, 2), [StudyJudge(corpus, 1, WindowForm(4, 65)) for _ in range(2)]
    runs = [StudyRun(cell, method, 4e-3, 1) for method in ("none", "noloco-mean", "noloco-mean", "noloco-mean")]
    never = Mock(return_value=False)
    accepts = [never, never, judges[0].accept, judges[1].accept]
    none, refusing, one, other = play(runs, corpus, SHORT, accepts.__getitem__)

    assert none["loss"] == pytest.approx(refusing["loss"], abs=1e-5) != pytest.approx(one["loss"], abs=1e-5)
    assert one["losses"] == pytest.approx(other["losses"], abs=1e-5)
    assert [judge.judged for judge in judges] == [4, 4]


def test_a_judge_refuses_a_lie_and_shortens_what_is_far(corpus: Corpus) -> None:
    judge, own = StudyJudge(corpus, 1, WindowForm(16, 65)), first_params(MODEL, 1)
    outer, lie, far = torch.zeros_like(own), 2 * own, 101 * own

    assert not judge.accept(0, outer, own, lie)
    judge.accept(0, outer, own, far)

    assert (far - own).norm() <= 4 * own.norm()
    assert (judge.judged, judge.refused) == (2, 2)


# -- the exchange ------------------------------------------------------------------------------------------------------


def test_everybody_has_a_partner_and_not_always_the_same() -> None:
    drawn = [partners(8, 0, round_) for round_ in range(100)]

    for found in drawn:
        assert [found[partner] for partner in found] == list(range(8))
        assert all(one != other for one, other in enumerate(found))
    assert len({found[0] for found in drawn}) == 7


# -- plan and verdict --------------------------------------------------------------------------------------------------


def records_of(runs: list[StudyRun], loss: Callable[[StudyRun], float | None]) -> list[dict[str, Any]]:
    return [{**run.key, "loss": loss(run)} for run in runs]


def test_a_method_is_tuned_until_its_best_rate_lies_inside_and_then_scored() -> None:
    best = {method: FIRST + place % 3 * 2 for place, method in enumerate(METHODS)}
    records: list[dict[str, Any]] = []
    while runs := wanted(records, CELL):
        records += records_of(runs[:5], lambda run: 2 + abs(RUNGS[run.lr] - best[run.method]) + run.seed / 1e3)

    assert {method: tuned(records, CELL, method) for method in METHODS} == {
        method: rate(rung) for method, rung in best.items()
    }
    keys = [(one["method"], one["lr"], one["seed"]) for one in records]
    assert len(set(keys)) == len(keys)
    for method, rung in best.items():
        tried = {RUNGS[lr] for name, lr, seed in keys if name == method and seed in TUNING}
        assert min(tried) < rung < max(tried)
        assert tried >= set(range(FIRST, LAST + 1))
        assert {seed for name, lr, seed in keys if (name, lr) == (method, rate(rung))} == {*TUNING, *SCORING}


def test_a_run_that_diverged_is_worse_than_all() -> None:
    records: list[dict[str, Any]] = []
    while runs := wanted(records, CELL):
        records += records_of(runs, lambda run: None if RUNGS[run.lr] > 0 else 2.0 - RUNGS[run.lr] ** 2 / -9)

    assert {tuned(records, CELL, method) for method in METHODS} == {rate(0)}


def scored(losses: dict[str, float]) -> list[dict[str, Any]]:
    """Make the records of all scores, with seeds that are harder than others and an error of each method's own."""
    places = {method: place for place, method in enumerate(METHODS)}
    runs = [StudyRun(CELL, method, 1e-3, seed) for method in METHODS for seed in SCORING]
    return records_of(
        runs, lambda run: losses[run.method] + run.seed / 10 + 1e-3 * ((run.seed + places[run.method]) % 3)
    )


PAIRS = [name for name, method in METHODS.items() if method.topology == "pair"]
ENDS = {"none": 3.0, "diloco": 2.0}


def test_a_better_method_is_the_candidate_and_one_within_the_noise_is_not() -> None:
    of = scores(scored(ENDS | dict.fromkeys(PAIRS, 2.6) | {"noloco": 2.5, "gasloc-.3": 2.4}), CELL)

    assert over_cells([of], "gasloc-.3").below_zero
    assert "It is the candidate" in decision([of])
    assert gap_closed(of, "noloco").mean == pytest.approx(50, abs=0.2)
    assert gap_closed(of, "gasloc-.3").mean == pytest.approx(60, abs=0.2)

    tie = scores(scored(ENDS | dict.fromkeys(PAIRS, 2.5)), CELL)
    assert "The interval holds 0: noloco stays" in decision([tie])


def test_a_method_that_loses_a_cell_is_no_candidate() -> None:
    others = ENDS | dict.fromkeys(PAIRS, 2.6) | {"noloco": 2.5}
    cells = [scores(scored(others | {"gasloc-.3": loss}), CELL) for loss in (2.0, 2.52)]

    assert over_cells(cells, "gasloc-.3").below_zero
    assert "loses more than 0.3 % in a cell: noloco stays" in decision(cells)


def test_the_interval_is_students() -> None:
    found = Interval.of([1.0, 2.0, 3.0, 4.0, 5.0])

    assert (found.mean, found.half) == (3.0, pytest.approx(2.776 * 2.5**0.5 / 5**0.5))
    assert not found.below_zero
    assert Interval.of([-1.0, -1.1, -0.9]).below_zero
    assert Interval.of([]) == Interval(None, None)
