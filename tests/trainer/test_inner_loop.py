from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray

from peer.errors import ManifestError, UsageError
from peer.protocol.model.layout import Layout
from peer.run.sections import LlamaSection, OptimizerSection, TrainSection
from peer.trainer.batches import Batch
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import Device, choose_device
from peer.trainer.inner_loop import GROW_AFTER, InnerLoop, LossScale
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import Llama, empty_model, first_params, layout_of

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
)
LAYOUT = layout_of(MODEL)


def corpus() -> Corpus:
    data = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 200, np.uint8)
    return Corpus(data[:8000], data[8000:], "")


def config(**changes: object) -> TrainerConfig:
    given = {
        "model": MODEL,
        "train": TrainSection(context=16, batch=4, total_rounds=10, eval_windows=8),
        "sync_every": 10,
        "seed": 1,
        "peer_id": "a",
        "device": "cpu",
    }
    return TrainerConfig.model_validate(given | changes)


def inner_loop(given: TrainerConfig | None = None, layout: Layout = LAYOUT) -> InnerLoop:
    return InnerLoop(given or config(), layout, choose_device("cpu", "fp32"), corpus(), first_params(MODEL, 1))


def test_it_learns_and_does_so_the_same_each_time() -> None:
    loop, twin = inner_loop(), inner_loop()
    losses = [loop.step() for _ in range(60)]
    assert losses == [twin.step() for _ in range(60)]
    assert losses[-1] is not None
    assert losses[-1] < 4.5 < 5.4 < (losses[0] or 0.0)


def test_the_params_given_are_copied_and_the_ones_trained_are_the_flat_vector() -> None:
    given = first_params(MODEL, 1)
    loop = InnerLoop(config(), LAYOUT, choose_device("cpu", "fp32"), corpus(), given)
    loop.step()
    loop.step()
    assert torch.equal(given, first_params(MODEL, 1))
    changed = [
        not torch.equal(a, b)
        for (_, a), (_, b) in zip(views_of(loop.params, LAYOUT), views_of(given, LAYOUT), strict=True)
    ]
    assert all(changed), "every tensor takes part"


def test_a_step_follows_the_clipped_gradient() -> None:
    """Compare the first moment, which is the clipped gradient times 1 - beta1.

    The first update itself would not show clipping: it has the size of the learning rate in every coordinate."""
    clip = 0.01
    loop = inner_loop(config(optimizer=OptimizerSection(clip=clip)))
    loop.step()
    assert float(loop.optimizer.exp_avg.norm()) == pytest.approx((1 - 0.9) * clip, rel=1e-3)
    loose = inner_loop(config(optimizer=OptimizerSection(clip=1e9)))
    loose.step()
    assert float(loose.optimizer.exp_avg.norm()) > 0.02


def test_learning_rate_follows_the_place_and_the_optimizer_s_age() -> None:
    loop = inner_loop()
    peak = config().optimizer.lr
    loop.move_to(5, 5)
    middle = peak * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * (0.55 - 0.05) / 0.95)))
    assert loop.learning_rate == pytest.approx(middle / 10), "fresh"
    loop.optimizer.age = 100
    assert loop.learning_rate == pytest.approx(middle)
    loop.move_to(0, 0)
    assert loop.learning_rate == 0.0
    seconds = inner_loop(config(clock="seconds", sync_every=300))
    seconds.optimizer.age = 100
    seconds.move_to(5, 7)
    assert seconds.learning_rate == pytest.approx(middle)


def test_batches_follow_the_cursor_and_not_the_round() -> None:
    loop, twin = inner_loop(), inner_loop()
    for _ in range(3):
        loop.step()
    assert (loop.round, loop.step_in_round) == (0, 3)
    twin.move_to(0, 3)
    twin.batches.move_to(loop.batches.cursor)
    twin.params.copy_(loop.params)
    assert loop.step() == twin.step()
    loop.move_to(7, 0)
    assert loop.batches.cursor == twin.batches.cursor, "a round that was skipped skips no data"


def test_an_epoch_through_the_loop_has_every_window_once() -> None:
    seen: list[Batch] = []
    loop = InnerLoop(
        config(train=TrainSection(context=16, batch=3, total_rounds=10, eval_windows=8)),
        LAYOUT,
        choose_device("cpu", "fp32"),
        Corpus(numbered(16 * 50 + 1), numbered(17), ""),
        first_params(MODEL, 1, LAYOUT),
        lambda round_, step, batch: seen.append(batch),
    )
    while loop.batches.cursor.epoch == 0:
        loop.step()
    firsts = [int(window[0]) * 256 + int(window[1]) for batch in seen for window in batch.windows]
    assert len(firsts) == 51, "the first window of the next epoch fills the last batch"
    assert len(set(firsts[:50])) == 50
    assert firsts[50] in firsts[:50]


def numbered(tokens: int) -> NDArray[np.uint8]:
    """Return bytes in which each window of 16 begins with its own number."""
    data = np.zeros(tokens, np.uint8)
    starts = np.arange(0, tokens - 1, 16)
    data[starts], data[starts + 1] = (starts // 16) // 256, (starts // 16) % 256
    return data


def test_a_loss_that_is_not_finite_changes_nothing_but_the_place() -> None:
    loop = inner_loop()
    loop.step()
    with torch.no_grad():
        loop.params[0] = math.inf
    before, moments, age = loop.params.clone(), loop.optimizer.exp_avg.clone(), loop.optimizer.age
    losses = [loop.step() for _ in range(5)]
    assert None in losses, "a window holds the byte, or the tied output does"
    assert all(loss is None for loss in losses)
    assert torch.equal(loop.params, before)
    assert torch.equal(loop.optimizer.exp_avg, moments)
    assert (loop.optimizer.age, loop.step_in_round) == (age, 6)


def test_evaluation_is_the_mean_over_the_holdout_and_leaves_the_rest_alone() -> None:
    loop = inner_loop()
    loop.step()
    live, other = loop.params.clone(), first_params(MODEL, 9)
    result = loop.evaluate(other)
    model = empty_model(MODEL)
    model.load_state_dict(dict(views_of(other, LAYOUT)), assign=True)
    holdout = corpus().holdout
    starts = np.linspace(0, len(holdout) - 17, 8).astype(int)
    windows = torch.tensor(np.stack([holdout[at : at + 17] for at in starts])).long()
    expected = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten()).detach()
    assert result.loss == pytest.approx(float(expected), rel=1e-5)
    assert result.bits_per_byte == pytest.approx(result.loss / math.log(2))
    assert result.tokens == 8 * 16
    assert torch.equal(loop.params, live)
    assert loop.evaluate(live).loss < result.loss
    assert loop.step() is not None, "training goes on after an evaluation"


def test_replace_touches_one_fragment() -> None:
    cut = Layout(LAYOUT.tensors, ((0, 2), (2, len(LAYOUT.tensors))))
    loop = inner_loop(layout=cut)
    start, end = cut.fragment_span(1)
    before = loop.params.clone()
    loop.merge(1, torch.full((end - start,), 0.5), 0.0)
    assert torch.equal(loop.params[:start], before[:start])
    assert bool((loop.params[start:] == 0.5).all())


def test_loss_scale_falls_at_an_overflow_and_rises_after_long_quiet() -> None:
    scale = LossScale(1024.0)
    scale.update(finite=False)
    assert scale.value == 512.0
    for _ in range(GROW_AFTER):
        assert scale.value == 512.0
        scale.update(finite=True)
    assert scale.value == 1024.0
    low = LossScale(1.0)
    low.update(finite=False)
    assert low.value == 1.0


def test_device_choice_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in choose_device("auto").reason
    assert choose_device("cpu").autocast is None
    with pytest.raises(UsageError, match="no CUDA device"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    for bf16, precision in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, answer=bf16: answer)
        assert choose_device("auto").autocast is precision
        assert choose_device("auto", "fp32") == Device(torch.device("cuda"), None, "cuda: Some GPU; fp32: asked for")
        asked = choose_device("auto", "bf16")
        assert asked.autocast is torch.bfloat16
        assert ("emulates" in asked.reason) is not bf16


@pytest.mark.parametrize("matrix_units", [True, False])
def test_a_processor_gets_bf16_when_asked_or_when_it_has_matrix_units(
    matrix_units: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": matrix_units})
    auto = choose_device("cpu")
    assert (auto.autocast is torch.bfloat16) is matrix_units
    assert ("AMX" in auto.reason) is matrix_units
    assert choose_device("cpu", "bf16").autocast is torch.bfloat16
    assert choose_device("cpu", "fp32").autocast is None


def test_reduced_precision_trains_fp32_params() -> None:
    rounded = InnerLoop(config(), LAYOUT, choose_device("cpu", "bf16"), corpus(), first_params(MODEL, 1))
    exact = inner_loop()
    losses = [(rounded.step() or 0.0, exact.step() or 0.0) for _ in range(20)]
    assert rounded.params.dtype is torch.float32
    assert all(one == pytest.approx(other, rel=0.02) for one, other in losses)
    assert any(one != other for one, other in losses)
    assert rounded.evaluate(exact.params) == exact.evaluate(exact.params), "an evaluation is always exact"


def test_the_schedule_of_the_manifest_is_followed() -> None:
    section = OptimizerSection(schedule="wsd", decay_fraction=0.5, warmup_fraction=0.0)
    loop = inner_loop(config(optimizer=section))
    loop.optimizer.age = 100
    loop.move_to(4, 5)
    assert loop.learning_rate == pytest.approx(section.lr)
    loop.move_to(7, 5)
    assert loop.learning_rate == pytest.approx(section.lr * (0.05 + 0.95 * (1 - 0.5**0.5)))


def test_documents_kept_apart_in_a_batch_of_any_split() -> None:
    end = ord(".")
    losses = [documents_apart(micro_batch, end) for micro_batch in (4, 1)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    assert losses[0] != pytest.approx([inner_loop().step(), inner_loop().evaluate(first_params(MODEL, 9)).loss])


def documents_apart(micro_batch: int, end: int) -> list[float]:
    loop = inner_loop(config(mask_end_token=end, micro_batch=micro_batch))
    evaluation = loop.evaluate(first_params(MODEL, 9))
    assert 0 < evaluation.tokens < 8 * 16, "what follows an end is not predicted"
    return [loop.step() or 0.0, evaluation.loss]


def test_a_model_that_cannot_keep_documents_apart_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Llama, "masks", False)
    assert inner_loop().step() is not None
    with pytest.raises(ManifestError, match="Llama cannot keep documents apart") as refused:
        inner_loop(config(mask_end_token=0))
    assert "document_mask" in refused.value.fix


def test_an_evaluation_that_nobody_waits_for_ends_between_two_parts() -> None:
    loop, asked = inner_loop(), list[int]()

    def given_up() -> bool:
        asked.append(1)
        return len(asked) > 1

    assert loop.evaluate(loop.params).tokens > 0
    assert math.isfinite(loop.evaluate(loop.params, given_up).loss)  # this model's loss is computed in one part
    assert math.isnan(loop.evaluate(loop.params, given_up).loss)
