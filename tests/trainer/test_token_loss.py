"""The loss is the same in chunks, with recomputed activations, and with a mask between documents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from peer.errors import DataError
from peer.run.sections import LlamaSection
from peer.trainer.loss import IGNORED, TokenLoss, Windows, chunked_loss, mean_loss, window_losses
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import Llama, empty_model, first_params, layout_of

MODEL = LlamaSection(vocab_size=500, num_hidden_layers=3, num_key_value_heads=2)
CPU = torch.device("cpu")
END = 0
DTYPES = (np.uint16, np.uint32)


def windows(dtype: type = np.uint16, context: int = 64) -> Windows:
    drawn: Windows = np.random.default_rng(0).integers(1, 500, (4, context + 1)).astype(dtype)
    return drawn


class Bound:
    """A model whose gradients are collected in one vector."""

    def __init__(self) -> None:
        layout = layout_of(MODEL)
        flat = first_params(MODEL, 1)
        self.grad = torch.zeros_like(flat)
        self.model: Llama = empty_model(MODEL)
        self.model.load_state_dict(dict(views_of(flat, layout)), assign=True)
        grads = dict(views_of(self.grad, layout))
        for name, param in self.model.named_parameters():
            param.requires_grad_()
            param.grad = grads[name]

    def gradient(
        self, given: Windows, *, chunk: int | None = None, end: int | None = None, dtype: torch.dtype | None = None
    ) -> tuple[float, Tensor]:
        """Return the mean loss and its gradient."""
        loss = TokenLoss(self.model, CPU, end)
        loss.chunk = chunk or loss.chunk
        self.grad.zero_()
        mean: Tensor = loss(given, 1 / loss.counted(given), dtype, chunk is not None)
        mean.backward()  # type: ignore[no-untyped-call]
        return mean.item(), self.grad.clone()


def apart(one: Tensor, other: Tensor) -> float:
    """Return the largest difference, relative to the largest entry."""
    return float((one - other).abs().max() / other.abs().max())


@pytest.mark.parametrize("chunk", [7, 64, 10_000])
def test_chunks_change_nothing(chunk: int) -> None:
    bound = Bound()
    loss, gradient = bound.gradient(windows())
    in_chunks, chunked = bound.gradient(windows(), chunk=chunk)
    assert in_chunks == pytest.approx(loss, abs=1e-5)
    assert apart(chunked, gradient) < 1e-5


def test_layers_computed_again_change_nothing_and_keep_less() -> None:
    bound = Bound()
    loss, gradient = bound.gradient(windows())
    kept = saved_bytes(bound)
    bound.model.recompute(True)
    again, recomputed = bound.gradient(windows())
    assert again == pytest.approx(loss, abs=1e-6)
    assert apart(recomputed, gradient) < 1e-5
    assert saved_bytes(bound) < kept / 2


def saved_bytes(bound: Bound) -> int:
    """Return the bytes that a forward pass saves for the backward pass."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        TokenLoss(bound.model, CPU)(windows(), 1.0)
    return sum(kept.values())


def test_reduced_precision_is_rounded_alike_in_chunks() -> None:
    bound = Bound()
    exact, _ = bound.gradient(windows())
    loss, gradient = bound.gradient(windows(), dtype=torch.bfloat16)
    in_chunks, chunked = bound.gradient(windows(), chunk=9, dtype=torch.bfloat16)
    assert exact != loss == pytest.approx(exact, abs=0.01)
    assert in_chunks == pytest.approx(loss, abs=1e-4)
    assert apart(chunked, gradient) < 0.01


def test_the_sum_without_a_gradient_is_the_same() -> None:
    noise = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(50, 8, generator=noise), torch.randn(30, 8, generator=noise)
    targets = torch.randint(0, 30, (50,), generator=noise)
    targets[::7] = IGNORED
    expected = torch.nn.functional.cross_entropy(hidden @ weight.t(), targets, reduction="sum")
    torch.testing.assert_close(chunked_loss(hidden, weight, targets, 0.5, 13), 0.5 * expected)
    torch.testing.assert_close(chunked_loss(hidden.requires_grad_(), weight, targets, 0.5, 13), 0.5 * expected)


@pytest.mark.parametrize("chunk", [None, 11])
@pytest.mark.parametrize("dtype", DTYPES)
def test_documents_apart_are_trained_as_one_by_one(dtype: type, chunk: int | None) -> None:
    given = windows(dtype)
    for row, place in ((0, 10), (0, 40), (1, 0), (2, 63), (2, 64), (3, 5), (3, 6)):
        given[row, place] = END
    bound = Bound()
    together, gradient = bound.gradient(given, end=END, chunk=chunk)
    losses, gradients, tokens = 0.0, torch.zeros_like(gradient), 0
    for document in documents(given):
        loss, own = bound.gradient(document)
        weight = document.shape[1] - 1
        losses, gradients, tokens = losses + weight * loss, gradients + weight * own, tokens + weight
    assert tokens == TokenLoss(bound.model, CPU, END).counted(given) < given[:, 1:].size
    assert together == pytest.approx(losses / tokens, abs=1e-5)
    assert apart(gradient, gradients / tokens) < 1e-5
    assert apart(bound.gradient(given)[1], gradients / tokens) > 1e-2, "it makes a difference"


def documents(given: Windows) -> list[Windows]:
    """Return the documents with at least one predicted token, each as a window of its own."""
    found = []
    for row in given:
        ends = [int(place) + 1 for place in np.flatnonzero(row == END)]
        found += [row[None, begin:end] for begin, end in zip([0, *ends], [*ends, len(row)], strict=True)]
    return [document for document in found if document.shape[1] > 1]


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("end", [None, END])
def test_windows_that_go_together_have_the_losses_that_they_have_alone(
    splits: bool, end: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = windows()
    given[1, 10], given[2] = END, END
    bound = Bound()
    monkeypatch.setattr(bound.model, "splits", splits)
    loss = TokenLoss(bound.model, CPU, end)
    passes: list[int] = []
    name = "hidden" if splits else "logits"
    network_pass = getattr(bound.model, name)

    def counted(inputs: Tensor, documents: Any) -> Tensor:
        passes.append(len(inputs))
        out: Tensor = network_pass(inputs, documents)
        return out

    alone = [mean_loss(loss, given[at : at + 1], {}) for at in range(len(given))]
    monkeypatch.setattr(bound.model, name, counted)
    together = window_losses(loss, given, {})
    assert passes == [len(given)]
    assert together == pytest.approx([found[0] for found in alone if found is not None], abs=1e-5)
    assert window_losses(loss, given, {}, lambda: True) is None


def test_windows_without_an_end_are_one_document() -> None:
    bound = Bound()
    loss, gradient = bound.gradient(windows())
    same, masked = bound.gradient(windows(), end=END)
    assert same == loss
    assert torch.equal(masked, gradient)


def test_a_token_beyond_the_vocabulary_is_refused() -> None:
    given = windows()
    given[1, 3] = 500
    with pytest.raises(DataError, match="token 500 is not in the model's vocabulary of 500"):
        TokenLoss(Bound().model, CPU)(given, 1.0)
