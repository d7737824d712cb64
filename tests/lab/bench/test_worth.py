"""The study of a swarm's worth: its stacked trainer agrees with the product's, and it runs and judges by its
protocol."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from benchmarks import large_swarms, pairs_at_scale, worth, worth_plots, worth_runs
from benchmarks.stacked import StackedLlama, losses_of
from benchmarks.worth import CELLS, CHECK_SEEDS, CHECKS, RUNGS, SEEDS, TUNING, name_of, run_of, tuned_with, wanted
from benchmarks.worth_runs import CONTEXT, MODEL, WorthRun, partners, play
from peer.lab.compare.worth import length_for
from peer.run.sections import OptimizerSection, TrainSection
from peer.run.worth import MEASURED, SCALE
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.loss import TokenLoss
from peer.trainer.models.factory import bind
from peer.trainer.models.llama import empty_model, first_params, layout_of

pytestmark = pytest.mark.nightly

SHORT = WorthRun(method="none", peers=2, steps=6, every=3, batch=2, lr=3e-3, seed=5)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    text = np.random.default_rng(0).integers(0, 64, 40_000).astype(np.uint8)
    return Corpus(text[:30_000], text[30_000:], "0" * 64)


@pytest.fixture(autouse=True)
def _few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worth_runs, "EVAL_WINDOWS", 16)


def run(**fields: Any) -> WorthRun:
    return WorthRun(**(SHORT.key | fields))


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
        for own, product in zip(grads, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            assert torch.allclose(own[copy], product, rtol=1e-4, atol=1e-7)


def inner_loop(corpus: Corpus, peer: int, batch: int = 2) -> InnerLoop:
    config = TrainerConfig(
        model=MODEL,
        train=TrainSection(context=CONTEXT, batch=batch, total_rounds=2, eval_windows=worth_runs.EVAL_WINDOWS),
        optimizer=OptimizerSection(lr=SHORT.lr),
        sync_every=3,
        seed=SHORT.seed,
        peer_id=f"peer-{peer}",
        device="cpu",
        precision="fp32",
    )
    first = first_params(MODEL, SHORT.seed)
    return InnerLoop(config, layout_of(MODEL), choose_device("cpu", "fp32"), corpus, first)


def test_a_peer_that_exchanges_nothing_ends_where_the_products_trainer_ends(corpus: Corpus) -> None:
    (played,) = play([SHORT], corpus)
    losses = []
    for peer in range(2):
        loop = inner_loop(corpus, peer)
        for at in range(SHORT.steps):
            loop.move_to(*divmod(at, 3))
            loop.step()
        losses.append(loop.evaluate(loop.params).loss)

    assert played["loss"] == pytest.approx(sum(losses) / 2, abs=2e-5)
    assert played["worst"] == pytest.approx(max(losses), abs=2e-5)


def test_ddp_is_one_loop_with_the_batch_of_all(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    (played,) = play([run(method="ddp")], corpus)
    loop = inner_loop(corpus, 0, batch=4)
    streams = [inner_loop(corpus, peer).batches for peer in range(2)]
    monkeypatch.setattr(loop, "_next_windows", lambda: np.concatenate([one.next().windows for one in streams]))
    for at in range(SHORT.steps):
        loop.move_to(*divmod(at, 3))
        loop.step()

    assert played["loss"] == pytest.approx(loop.evaluate(loop.params).loss, abs=2e-5)
    assert played["spread"] < 1e-6
    assert len(played["noise_scale"]) == 4


def test_runs_do_not_touch_each_other_and_a_swarm_draws_together(corpus: Corpus) -> None:
    runs = [run(method=method, peers=4, every=2) for method in ("none", "noloco", "gossip", "diloco", "ddp")]
    together = play(runs, corpus)
    (apart,) = play(runs[1:2], corpus)
    none, noloco, gossip, diloco, ddp = (one["spread"] for one in together)

    assert together[1]["loss"] == pytest.approx(apart["loss"], abs=1e-5)
    assert max(diloco, ddp) < 1e-6 < gossip < none
    assert noloco < none


def test_own_data_a_warm_start_and_bent_rounds_change_what_is_trained(corpus: Corpus) -> None:
    plain, own, warm, bent = play(
        [run(method="diloco", **more) for more in ({}, {"own": True}, {"start": 3}, {"every": 1, "bend": 2.0})], corpus
    )
    assert len({one["loss"] for one in (plain, own, warm, bent)}) == 4
    assert run(every=1, bend=2.0).exchanges == [1, 2, 3, 4, 6], "six of them, of which two fall together"
    assert run(every=1).exchanges == [1, 2, 3, 4, 5, 6]


def test_the_mean_of_the_last_rounds_is_evaluated(corpus: Corpus) -> None:
    (played,) = play([run(method="diloco", every=6)], corpus)
    assert played["late"] == pytest.approx(played["loss"], abs=1e-6), "one round is its own mean"
    (longer,) = play([run(method="diloco", every=1)], corpus)
    assert longer["late"] != longer["loss"]


def test_everybody_has_a_partner_and_not_always_the_same() -> None:
    drawn = [partners(8, 0, round_) for round_ in range(100)]
    for found in drawn:
        assert [found[partner] for partner in found] == list(range(8))
        assert all(one != other for one, other in enumerate(found))
    assert len({found[0] for found in drawn}) == 7


def test_the_losses_of_rows_are_those_of_the_network() -> None:
    params = torch.stack([first_params(MODEL, seed) for seed in (1, 2)])
    windows = torch.randint(0, 256, (40, 17), generator=torch.Generator().manual_seed(0))
    expected = StackedLlama(MODEL, params).losses(windows.expand(2, *windows.shape))
    assert losses_of(MODEL, params, windows) == pytest.approx(expected.tolist(), rel=1e-5)


# -- plan and verdict --------------------------------------------------------------------------------------------------


def test_a_record_names_its_run_and_every_cell_is_there_once() -> None:
    cells = [*CELLS, *CHECKS]
    for of in cells:
        assert run_of(of.key) == of
    assert len({name_of(of) for of in cells}) == len(cells)
    assert {name_of(tuned_with(of)) for of in CHECKS} < {name_of(of) for of in CELLS}


@pytest.mark.parametrize("best", [-2, 0, 1, 3])
def test_a_cell_is_tuned_until_its_best_rate_lies_inside_and_then_scored(best: int) -> None:
    of, records = CELLS[0], []
    while runs := wanted(records, of):
        records += [one.key | {"loss": 2 + abs(RUNGS[one.lr] - best)} for one in runs]

    tried = {RUNGS[one["lr"]] for one in records if one["seed"] == TUNING}
    assert min(tried) < best < max(tried) or (best in (0, 1) and {best - 1, best, best + 1} <= tried)
    scored = [(one["lr"], one["seed"]) for one in records if one["seed"] != TUNING]
    assert scored == [(worth.rate(best), seed) for seed in SEEDS]


def test_a_check_has_the_rate_of_the_map_and_other_seeds() -> None:
    of, records = CHECKS[0], []
    assert wanted(records, of) == []
    while runs := wanted(records, tuned_with(of)):
        records += [one.key | {"loss": 2 + abs(RUNGS[one.lr] - 2)} for one in runs]
    assert worth.scores(worth.by_cell(records), of) == {}
    checked = wanted(records, of)
    assert [(one.lr, one.seed, one.text) for one in checked] == [(worth.rate(2), seed, "kjv") for seed in CHECK_SEEDS]
    records += [one.key | {"loss": 3.0} for one in checked]
    assert worth.scores(worth.by_cell(records), of) == dict.fromkeys(CHECK_SEEDS, 3.0)
    assert worth.scores(worth.by_cell(records), tuned_with(of)) == dict.fromkeys(SEEDS, 2.0)


def test_a_run_that_diverged_is_worse_than_all() -> None:
    of, records = CELLS[0], []
    while runs := wanted(records, of):
        records += [one.key | {"loss": None if RUNGS[one.lr] > 0 else 2.0 - RUNGS[one.lr]} for one in runs]
    assert {one["lr"] for one in records if one["seed"] != TUNING} == {worth.rate(0)}


def kept(of: worth.WorthRun, loss: float) -> list[dict[str, Any]]:
    """Return records of a cell whose loss at its best learning rate is `loss`."""
    records: list[dict[str, Any]] = []
    while runs := wanted(records, of):
        records += [one.key | dict.fromkeys(("loss", "late"), loss + abs(RUNGS[one.lr])) for one in runs]
    return records


def test_the_tokens_are_read_between_two_lengths_of_single() -> None:
    curve = [(400, 2.0), (800, 1.8), (1600, 1.7)]
    assert length_for(curve, 2.0) == 400
    assert length_for(curve, 1.9) == pytest.approx(400 * math.sqrt(2))
    assert length_for(curve, 1.7) == pytest.approx(1600)
    assert length_for(curve, 1.6) == math.inf
    assert length_for(curve, 2.1) == length_for([], 2.0) == 0


def test_the_speed_up_is_against_the_same_batch_and_against_the_best_one() -> None:
    """Made-up losses: 400 steps of 2 windows, a quarter of the tokens of 400 steps of 8, reach the same loss."""
    lengths = {(8, 200): 2.5, (8, 400): 2.0, (8, 800): 1.8, (2, 400): 2.0, (2, 800): 1.8}
    records = [
        one
        for (batch, steps), loss in lengths.items()
        for one in kept(worth.cell("single", 1, steps, batch=batch), loss)
    ]
    records += kept(worth.cell("gossip", 4, 400), 1.8)
    found = {worth.name_of(one.run): one for one in worth.results_of(records)}
    of = found[worth.name_of(worth.cell("gossip", 4, 400))]
    assert of.speed_ups == [pytest.approx(2)] * 3
    assert of.of_best == [pytest.approx(0.5)] * 3
    assert (of.run.lr, of.loss, of.bytes_each) == (worth.rate(0), 1.8, 40)
    rows = list(worth.rows_of(records))
    assert {len(row) for row in rows} == {len(worth.HEADS)}


def test_each_plot_is_drawn_from_the_kept_runs_alone(tmp_path: Path) -> None:
    records = [one for steps in (200, 400, 800) for one in kept(worth.cell("single", 1, steps), 2.4 - steps / 1000)]
    records += [one for name in ("gossip", "ddp") for one in kept(worth.cell(name, 4, 400), 1.8)]
    made = worth_plots.plots(records, tmp_path)
    assert [file.name for file in made] == [
        f"worth-{name}.svg" for name in ("peers", "length", "every", "batch", "rate")
    ]
    assert all(ElementTree.parse(file).getroot().tag.endswith("svg") for file in made)


def test_the_worth_that_is_shown_is_the_one_that_was_measured() -> None:
    found = {worth.name_of(one.run): one for one in worth.results_of(worth.kept())}
    at_scale = pairs_at_scale.worths_of(pairs_at_scale.results_of(pairs_at_scale.kept()))
    for (topology, peers), shown in MEASURED.items():
        if shown.page == SCALE:
            method = {"pair": "gossip", "group": pairs_at_scale.MEAN}[topology]
            assert (shown.machines, shown.half_width) == pytest.approx(at_scale[method, peers], abs=0.006)
            assert (shown.steps, shown.parameters) == (pairs_at_scale.STEPS, layout_of(large_swarms.MODEL).elements)
            continue
        name = {"pair": "gossip", "group": "diloco"}[topology]
        of = worth.cell(name, peers, shown.steps, batch=TrainSection().batch)
        mean, half = worth.interval(found[worth.name_of(of)].of_best)
        assert (shown.machines, shown.half_width) == (pytest.approx(mean, abs=0.005), pytest.approx(half, abs=0.005))
