"""`ForeignModel`: adapts a causal language model with the conventions of transformers to `LanguageModel`.

It does not import transformers. The abilities of a model are determined by trying it out, because its attributes are
not reliable: some models change their logits after the head, and some accept a mask and ignore it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the customary name
from torch import Tensor, nn

from peer.trainer.memory_limit import is_memory_error
from peer.trainer.models.documents import Documents, documents_of
from peer.trainer.models.language_model import LanguageModel

PROBE_TOKENS = 6
"""Tokens of each of the two documents of a trial."""
CLOSE = 1e-3
"""Largest relative difference of values that count as equal."""
LARGE_LOGIT = 30.0
"""Factor on the head's weights in a trial, so that a non-linear change of large logits shows."""


class ForeignModel(LanguageModel):
    """Wraps a model whose `forward(input_ids, ...)` returns the logits, or an object with the field `logits`.

    Before `examine` it only offers logits. Dropout is always off, so that a step is a function of its batch."""

    prefix = "model."

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model.eval()
        embedding: Any = model
        self.vocab_size = embedding.get_input_embeddings().num_embeddings
        layers = getattr(embedding.config, "num_hidden_layers", 1)
        self.layers = layers if isinstance(layers, int) and layers > 0 else 1  # a config may say 0, or give a list

    @property
    def title(self) -> str:
        return type(self.model).__name__

    @torch.no_grad()
    def examine(self) -> None:
        device = next(self.model.parameters()).device
        noise = torch.Generator(device).manual_seed(0)
        for parameter in self.model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, (parameter.shape[0] / parameter.numel()) ** 0.5, generator=noise)
            else:
                parameter.uniform_(0.5, 1.5, generator=noise)
        tokens = torch.arange(1, 2 * PROBE_TOKENS + 1, device=device).remainder(self.vocab_size).unsqueeze(0)
        self.masks = _holds(lambda: self._keeps_apart(tokens))
        self.recomputes = _holds(lambda: self._recomputes(tokens))
        self.splits = _holds(lambda: self._is_product(tokens))

    def logits(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        answer = self.model(tokens, **_arguments(self.model, documents))
        logits: Tensor = getattr(answer, "logits", answer)
        return logits

    def hidden(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        body: Any = self.model.base_model
        hidden: Tensor = body(tokens, **_arguments(body, documents)).last_hidden_state
        return hidden

    @property
    def head_weight(self) -> Tensor:
        weight: Tensor = self._head().weight
        return weight

    def recompute(self, on: bool) -> None:
        model: Any = self.model
        name = "activation_checkpointing"
        if not hasattr(model, f"{name}_enable"):
            name = "gradient_checkpointing"  # the name in older versions of transformers
        if on:
            getattr(model, f"{name}_enable")({"use_reentrant": False})
        else:
            getattr(model, f"{name}_disable")()
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.train(on)  # transformers recomputes only in training mode
                for part in module.children():
                    part.eval()

    def _head(self) -> Any:
        model: Any = self.model
        return model.get_output_embeddings()

    def _is_product(self, tokens: Tensor) -> bool:
        """Return whether the logits are exactly the product of `hidden` and the head's weights."""
        head = self._head()
        if head is None or getattr(head, "bias", None) is not None:
            return False
        self.head_weight.mul_(LARGE_LOGIT)
        return _equal(F.linear(self.hidden(tokens), self.head_weight), self.logits(tokens))

    def _recomputes(self, tokens: Tensor) -> bool:
        """Return whether the logits stay the same with recomputation on. They differ in models in which recomputation
        turns on dropout."""
        if not getattr(self.model, "supports_gradient_checkpointing", False):
            return False
        before = self.logits(tokens)
        try:
            self.recompute(True)
            with torch.enable_grad():
                return _equal(self.logits(tokens).detach(), before)
        finally:
            self.recompute(False)

    def _keeps_apart(self, tokens: Tensor) -> bool:
        """Return whether the mask separates documents: with it, a document that follows another one has the same logits
        as alone, and without it different logits."""
        documents = documents_of(tokens, int(tokens[0, PROBE_TOKENS - 1]))
        second = tokens[:, PROBE_TOKENS:]
        alone = self.logits(second)
        behind, unmasked = (self.logits(tokens, given)[:, PROBE_TOKENS:] for given in (documents, None))
        return _equal(behind, alone) and not _equal(unmasked, alone)


def _holds(trial: Callable[[], bool]) -> bool:
    """Return the result of a trial, or False when the model rejects its arguments.

    The error of a failed allocation is not caught."""
    try:
        return trial()
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if is_memory_error(error):
            raise
        return False


def _equal(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= CLOSE * float(other.abs().max())


def _arguments(module: nn.Module, documents: Documents | None) -> dict[str, Any]:
    """Return the keyword arguments of a forward pass, without the tokens.

    Raises TypeError when there are documents and the model takes no mask or no positions."""
    takes = inspect.signature(module.forward).parameters
    given: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if documents is not None:
        if not {"position_ids", "attention_mask"} <= takes.keys():
            raise TypeError(f"{type(module).__name__} takes no positions or no mask")
        mask = torch.zeros(documents.visible.shape, device=documents.visible.device)
        mask.masked_fill_(~documents.visible, torch.finfo(mask.dtype).min)
        given |= {"position_ids": documents.positions, "attention_mask": mask}
    return given
