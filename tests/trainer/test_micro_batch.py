"""A step does not depend on how its batch is split, and the batch is split to fit into memory."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
import torch

from peer.errors import MachineTooSmall
from peer.observe.formatting import amount
from peer.run.activations import largest_micro_batch, window_bytes
from peer.run.sections import LlamaSection, TrainSection
from peer.trainer import micro_batch as fitting
from peer.trainer.batches import Windows
from peer.trainer.config import TrainerConfig
from peer.trainer.data import Corpus
from peer.trainer.device import choose_device
from peer.trainer.inner_loop import InnerLoop
from peer.trainer.micro_batch import choose_micro_batch, peak_growth
from peer.trainer.models.llama import Llama, first_params, layout_of

MODEL = LlamaSection(
    hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1
)
WINDOW = window_bytes(MODEL, 16)


def config(batch: int = 8, **changes: object) -> TrainerConfig:
    train = TrainSection(context=16, batch=batch, total_rounds=10, eval_windows=8)
    given = {"model": MODEL, "train": train, "sync_every": 10, "seed": 1, "peer_id": "a", "device": "cpu"}
    return TrainerConfig.model_validate(given | changes)


def inner_loop(given: TrainerConfig) -> InnerLoop:
    data = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 200, np.uint8)
    corpus = Corpus(data[:8000], data[8000:], "")
    return InnerLoop(given, layout_of(given.model), choose_device("cpu", "fp32"), corpus, first_params(given.model, 1))


def trained(batch: int, micro_batch: int, steps: int = 4) -> tuple[list[float], torch.Tensor]:
    loop = inner_loop(config(batch, micro_batch=micro_batch))
    loop.move_to(3, 0)
    losses = [loop.step() or 0.0 for _ in range(steps)]
    return losses, loop.params


@pytest.mark.parametrize(("batch", "micro"), [(8, 1), (8, 2), (8, 4), (6, 4), (5, 2)])
def test_a_split_batch_gives_the_same_step(batch: int, micro: int) -> None:
    losses, params = trained(batch, batch)
    split_losses, split_params = trained(batch, micro)
    assert split_losses == pytest.approx(losses, abs=1e-6)
    assert float((split_params - params).abs().max()) < 2e-6
    assert float((params - first_params(MODEL, 1)).abs().max()) > 1e-3, "there was a step to speak of"


def test_the_largest_power_of_two_that_fits_or_all() -> None:
    assert largest_micro_batch(12, 100, 1200) == 12
    assert largest_micro_batch(12, 100, 1199) == 8
    assert largest_micro_batch(12, 100, 799) == 4
    assert largest_micro_batch(12, 100, 0) == 1


def test_a_batch_is_fitted_to_the_memory_that_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "peak_growth", lambda work: work() or 0)
    given = config(activation_bytes=5 * WINDOW)
    loop = inner_loop(given)
    before = loop.params.clone()
    chosen = choose_micro_batch(loop, given)
    assert (chosen.micro_batch, loop.micro_batch) == (4, 4)
    assert "4 of 8 windows at once" in chosen.reason
    assert torch.equal(loop.params, before)
    assert all(param.grad is None for param in loop._tensors), "what was tried leaves no gradient"


def test_what_was_measured_counts_when_it_is_more_than_estimated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "peak_growth", lambda work: work() or 4 * WINDOW)
    given = config(activation_bytes=8 * WINDOW)
    assert choose_micro_batch(inner_loop(given), given).micro_batch == 2


def shaped(**shape: int) -> TrainerConfig:
    """Return a configuration whose model has this shape."""
    return config(model=LlamaSection.model_validate(MODEL.model_dump() | shape))


def lean(given: TrainerConfig) -> InnerLoop:
    loop = inner_loop(given)
    loop._loss.chunk = 4
    return loop


def fitted(given: TrainerConfig, free: int) -> tuple[bool, bool, str]:
    loop = lean(given)
    reason = choose_micro_batch(loop, given.model_copy(update={"activation_bytes": free})).reason
    assert loop.step() == pytest.approx(inner_loop(given).step(), abs=1e-5), "whatever saves memory"
    return loop.chunked, loop.recomputed, reason


def test_a_wide_vocabulary_is_chunked_before_layers_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "peak_growth", lambda work: work() or 0)
    given = shaped(vocab_size=3000)
    window = window_bytes(given.model, 16)
    room = amount(window, "bytes")
    plain = f"1 of 8 windows at once: a window takes {room}, estimated; {room} are free for them"
    assert fitted(given, window) == (False, False, plain)
    chunked, recomputed, reason = fitted(given, window - 1)
    assert (chunked, recomputed) == (True, False)
    assert "the loss in chunks, as memory is short" in reason
    chunked, recomputed, reason = fitted(given, window // 4)
    assert (chunked, recomputed) == (True, True)
    assert "the loss in chunks and layers computed again for the gradient, as memory is short" in reason


def test_a_deep_model_computes_its_layers_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "peak_growth", lambda work: work() or 0)
    given = shaped(num_hidden_layers=8)
    window = window_bytes(given.model, 16)
    assert fitted(given, window)[:2] == (False, False)
    chunked, recomputed, reason = fitted(given, window - 1)
    assert (chunked, recomputed) == (True, True), "chunks alone would save little"
    assert reason.startswith("2 of 8 windows"), "what is saved is used"


def test_what_is_measured_too_large_leads_to_the_next_way(monkeypatch: pytest.MonkeyPatch) -> None:
    given = shaped(num_hidden_layers=8)
    window = window_bytes(given.model, 16)
    measured = iter([2 * window, window // 2])
    monkeypatch.setattr(fitting, "peak_growth", lambda work: work() or next(measured))
    assert fitted(given, window)[:2] == (True, True)
    assert not list(measured)


def test_an_accelerator_tries_the_ways_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    given = shaped(vocab_size=3000)
    loop = lean(given)
    tried: list[tuple[int, bool, bool]] = []

    def probe(windows: int) -> None:
        tried.append((windows, loop.chunked, loop.recomputed))
        if not loop.recomputed:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "probe", probe)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**40, 2**40))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 2**20)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    reason = fitting._fit_device(loop, given).reason
    assert [windows for windows, _, _ in tried] == [8, 4, 2, 1, 8, 4, 2, 1, 8]
    assert tried[-1] == (8, True, True)
    assert "computed again" in reason
    monkeypatch.setattr(Llama, "recomputes", False)
    with pytest.raises(MachineTooSmall, match="one window of 16 tokens"):
        fitting._fit_device(loop, given)


def test_what_is_asked_for_is_taken() -> None:
    given = config(activation_bytes=0, micro_batch=64)
    chosen = choose_micro_batch(inner_loop(given), given)
    assert (chosen.micro_batch, chosen.reason) == (8, "8 of 8 windows at once: asked for")
    unknown = config()
    assert choose_micro_batch(inner_loop(unknown), unknown).micro_batch == 8


def test_a_device_that_is_full_gets_less_at_once_and_the_step_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    given = config()
    loop, twin = inner_loop(given), inner_loop(given)
    real = loop._accumulate

    def small(windows: Windows, batch: int) -> float:
        if len(windows) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(windows, batch)

    monkeypatch.setattr(loop, "_accumulate", small)
    assert loop.step() == pytest.approx(twin.step(), abs=1e-6)
    assert loop.micro_batch == 2
    assert float((loop.params - twin.params).abs().max()) < 2e-6


def test_a_device_too_small_for_one_window_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = inner_loop(config(micro_batch=1))

    def never(windows: Windows, batch: int) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(loop, "_accumulate", never)
    with pytest.raises(torch.OutOfMemoryError):
        loop.step()


def test_growth_is_what_is_held_at_most() -> None:
    def held() -> None:
        with mmap.mmap(-1, 32 * 2**20) as fresh:  # fresh pages, not memory that the allocator kept from former tests
            for _ in range(32):
                fresh.write(b"x" * 2**20)

    grew = peak_growth(held)
    assert 30 * 2**20 < grew < 48 * 2**20
