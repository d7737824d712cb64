"""Checks that a model is causal: that it predicts a token from the tokens before it alone.

A model that sees later tokens learns to copy its target. Its loss falls to zero, and it cannot generate text."""

from __future__ import annotations

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from peer.errors import ModelError
from peer.trainer.memory_limit import is_memory_error
from peer.trainer.models.foreign import ForeignModel

TOKENS = 8
"""Length of the window that the model is tried with: even, because some models process their tokens in groups."""


def check_causal(model: nn.Module) -> None:
    """Raise ModelError for a model whose logits depend on later tokens, or that needs more inputs than tokens.

    The gradient of the earlier positions' logits with respect to the last token's embedding has to be exactly zero. In
    a causal model it is, because masked attention has weights of exactly 0, and scans and convolutions do not reach
    later tokens. Logits of two windows are not compared, because in a mixture of experts they differ by rounding when
    other tokens are in the batch.

    The weights may have any random values. Only the activations of `TOKENS` tokens are allocated. Raises MemoryError
    when even those do not fit."""
    network, kind = ForeignModel(model), type(model).__name__
    embedded, handles = list[Tensor](), list[Any]()
    for module in model.modules():
        if isinstance(module, nn.Embedding) or module is network.model.get_input_embeddings():  # type: ignore[operator]
            handles.append(module.register_forward_hook(lambda module, given, out: _watched(given, out, embedded)))
    tokens = plain_tokens(network)
    try:
        with torch.enable_grad():
            early = network.logits(tokens)[:, :-1]
            weights = torch.randn(early.shape, generator=torch.Generator().manual_seed(0))
            found = torch.autograd.grad(early, embedded, weights, allow_unused=True)
    except Exception as error:  # the library may raise anything when a model needs more than tokens
        if is_memory_error(error):
            raise MemoryError from error
        raise ModelError(
            f"{kind} cannot be computed from tokens alone: {type(error).__name__}: {str(error)[:200]}",
            "The operator has to name a model that needs nothing but the tokens of a text.",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    gradients = [gradient.reshape(-1, gradient.shape[-1]) for gradient in found if gradient is not None]
    norm = sum(float(gradient.norm()) for gradient in gradients)
    if not 0.0 < norm < math.inf:
        raise ModelError(f"whether {kind} sees later tokens cannot be found out: its logits have no finite gradient")
    if any(bool(gradient[-1].any()) for gradient in gradients):
        raise ModelError(
            f"{kind} sees later tokens: its logits depend on the tokens behind them, so it would learn to copy the "
            "text that it is to predict",
            _remedy(network.model.config),
        )


def plain_tokens(network: ForeignModel) -> Tensor:
    """Return a window [1, TOKENS] of one repeated token whose number does not occur in the config.

    Special tokens would falsify a trial: many models mask their padding token, also at the end."""
    config: Any = network.model.config
    mentioned = set(map(int, re.findall(r"\d+", str(config.to_dict()))))
    plain = [token for token in range(min(network.vocab_size, len(mentioned) + TOKENS)) if token not in mentioned]
    return torch.tensor([(plain or [0]) * TOKENS])[:, :TOKENS]


def _watched(given: Any, out: Any, embedded: list[Tensor]) -> Tensor | None:
    """Forward hook of an embedding: add zeros to its output, and append them to `embedded` for the gradient."""
    if not isinstance(out, Tensor) or not given or not isinstance(given[0], Tensor) or given[0].numel() < TOKENS:
        return None
    zeros = torch.zeros_like(out, requires_grad=True)
    embedded.append(zeros)
    return out + zeros


def _remedy(config: Any) -> str:
    for key in ("is_decoder", "causal"):
        if getattr(config, key, None) is False:
            return f'The operator has to set "{key}" to true in the model\'s config, or name a causal model.'
    return "The operator has to name a causal model (a decoder)."
