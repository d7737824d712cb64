"""The loss of a language model: the summed cross-entropy over tokens, from all logits at once or in chunks.

In chunks, only the logits of one chunk of tokens exist at a time. Their gradient is computed together with the loss, so
that nothing is computed twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from peer.errors import DataError
from peer.run.activations import CHUNK_ENTRIES, DEVICE_CHUNK_ENTRIES, chunk_tokens
from peer.trainer.models.documents import documents_of
from peer.trainer.models.language_model import LanguageModel

IGNORED = -100
"""Target of a position that is left out of the loss."""
EVAL_TOKENS = 8192
"""Most tokens that go through the model at once in an evaluation."""
EVAL_WORK = 10**11
"""Most tokens times parameters that go through the model at once. An evaluation can be cancelled between two parts, so
this bounds the delay."""
EVAL_LOGITS = 2**26
"""Most logits that exist at once in the evaluation of a model whose loss cannot be computed in chunks."""
Windows = NDArray[np.unsignedinteger[Any]]
"""Tokens of some windows, [windows, context + 1], of any unsigned type."""


class TokenLoss(nn.Module):
    """Model and loss in one module, so that `functional_call` can compute the loss with other weights."""

    def __init__(self, network: LanguageModel, device: torch.device, end_token: int | None = None) -> None:
        """`device`: where the network's tensors are. `end_token`: the token that ends a document, if attention is
        masked between documents. None: no such mask."""
        super().__init__()
        self.network = network
        self._device = device
        self._end_token = end_token
        entries = CHUNK_ENTRIES if device.type == "cpu" else DEVICE_CHUNK_ENTRIES
        self.chunk = chunk_tokens(network.vocab_size, entries)
        """Tokens of a chunk."""

    def counted(self, windows: Windows) -> int:
        """Return how many tokens of these windows count in the loss. With a mask, the token after an end token, which
        begins a document, does not."""
        inputs = windows[:, :-1]
        if self._end_token is None:
            return inputs.size
        return int(np.count_nonzero(inputs != self._end_token))

    def forward(
        self,
        windows: Windows,
        factor: float,
        dtype: torch.dtype | None = None,
        chunked: bool = False,
        each: bool = False,
    ) -> Tensor:
        """Return `factor` times the summed loss in nats: over all tokens, or with `each` over the tokens of each
        window, [windows].

        `dtype`: autocast precision of the model; None: fp32. `chunked`: compute the logits in chunks of tokens. Raises
        DataError when a token is not in the vocabulary."""
        inputs, targets = self._tokens(windows)
        documents = None
        if self._end_token is not None:
            targets = targets.masked_fill(inputs == self._end_token, IGNORED)
            documents = documents_of(inputs, self._end_token)
        network = self.network
        with torch.autocast(self._device.type, dtype, enabled=dtype is not None):
            out = (network.hidden if chunked else network.logits)(inputs, documents)

        def summed(out: Tensor, wanted: Tensor) -> Tensor:
            if chunked:
                return chunked_loss(out, network.head_weight, wanted, factor, self.chunk, dtype)
            return F.cross_entropy(out.float(), wanted, ignore_index=IGNORED, reduction="sum") * factor

        if each:
            return torch.stack([summed(*window) for window in zip(out, targets, strict=True)])
        return summed(out.flatten(0, 1), targets.flatten())

    def _tokens(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), each [windows, context] int64 on the device."""
        largest = int(windows.max())
        if largest >= self.network.vocab_size:
            raise DataError(
                f"token {largest} is not in the model's vocabulary of {self.network.vocab_size}",
                "The operator has to give the run a model and data of one tokenizer.",
            )
        tokens = torch.from_numpy(windows.astype(np.int64)).to(self._device)
        return tokens[:, :-1], tokens[:, 1:]


@torch.inference_mode()
def mean_loss(
    loss: TokenLoss, windows: Windows, weights: Mapping[str, Tensor], given_up: Callable[[], bool] = lambda: False
) -> tuple[float, int] | None:
    """Return the mean loss of windows in nats per token, and the number of tokens. None: `given_up()` returned True.

    `weights` replace the module's own during the calls, by their names in it. Computes in fp32."""
    total = 0.0
    for part in _parts(loss, windows):
        if given_up():
            return None
        total += functional_call(loss, dict(weights), (part, 1.0), {"chunked": loss.network.splits}).item()
    tokens = max(1, loss.counted(windows))
    return total / tokens, tokens


@torch.inference_mode()
def window_losses(
    loss: TokenLoss, windows: Windows, weights: Mapping[str, Tensor], given_up: Callable[[], bool] = lambda: False
) -> list[float] | None:
    """Return the mean loss of each window in nats per token. None: `given_up()` returned True. See `mean_loss`.

    Several windows go through the model together, because for a small model that takes hardly longer than one."""
    found = list[float]()
    for part in _parts(loss, windows):
        if given_up():
            return None
        kinds = {"chunked": loss.network.splits, "each": True}
        sums: list[float] = functional_call(loss, dict(weights), (part, 1.0), kinds).tolist()
        found += [total / max(1, loss.counted(part[at : at + 1])) for at, total in enumerate(sums)]
    return found


def _parts(loss: TokenLoss, windows: Windows) -> Iterator[Windows]:
    """Split windows into parts that go through the model together."""
    network, context = loss.network, windows.shape[1] - 1
    parameters = sum(parameter.numel() for parameter in network.parameters())
    most = min(EVAL_TOKENS, EVAL_WORK // max(1, parameters))
    most = most if network.splits else min(most, EVAL_LOGITS // network.vocab_size)
    together = max(1, most // context)
    for at in range(0, len(windows), together):
        yield windows[at : at + together]


def chunked_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, factor: float, chunk: int, dtype: torch.dtype | None = None
) -> Tensor:
    """Return `factor` times the summed cross-entropy of the logits `hidden @ weight.T`, computed in chunks of tokens.

    hidden [tokens, width], weight [vocabulary, width], targets [tokens]. `dtype`: of the products; None: that of
    `hidden`. Gradients are multiplied by `factor` before they are rounded to `dtype`, as loss scaling requires."""
    if torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad):
        loss: Tensor = _ChunkedLoss.apply(hidden, weight, targets, factor, chunk, dtype)  # type: ignore[no-untyped-call]
        return loss
    total = hidden.new_zeros((), dtype=torch.float32)
    head = weight.to(dtype or hidden.dtype)
    for part, wanted in zip(torch.split(hidden, chunk), torch.split(targets, chunk), strict=True):
        logits = F.linear(part.to(head.dtype), head).float()
        total += F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum")
    return total * factor


class _ChunkedLoss(torch.autograd.Function):
    """`chunked_loss` with its gradients, which the forward pass computes while a chunk's logits exist."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, factor: float, chunk: int, dtype: torch.dtype | None
    ) -> Tensor:
        head = weight.to(dtype or hidden.dtype)
        to_hidden, to_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = torch.zeros((), device=hidden.device)
        parts = zip(*(torch.split(one, chunk) for one in (hidden, targets, to_hidden)), strict=True)
        for part, wanted, to_part in parts:
            states = part.to(head.dtype)
            grad, loss = _softmax_gradient(F.linear(states, head).float(), wanted, factor)
            total += loss
            grad = grad.to(head.dtype)
            to_part.copy_(grad @ head)
            if head.dtype == to_weight.dtype:
                to_weight.addmm_(grad.t(), states)
            else:
                to_weight += grad.t() @ states
        ctx.save_for_backward(to_hidden, to_weight)
        return total * factor

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        to_hidden, to_weight = ctx.saved_tensors
        return to_hidden * grads[0], to_weight.mul_(grads[0]), None, None, None, None


def _softmax_gradient(logits: Tensor, targets: Tensor, factor: float) -> tuple[Tensor, Tensor]:
    """Return the gradient of `factor` times the summed loss with respect to the logits, and the summed loss.

    The gradient overwrites `logits`, [tokens, vocabulary]."""
    counts = (targets != IGNORED).unsqueeze(1)
    places = targets.clamp_min(0).unsqueeze(1)
    logits.sub_(logits.amax(1, keepdim=True))
    right = logits.gather(1, places)
    mass = logits.exp_().sum(1, keepdim=True)
    loss = ((mass.log() - right) * counts).sum()
    logits.div_(mass).scatter_add_(1, places, torch.full_like(right, -1.0))
    return logits.mul_(counts * factor), loss
