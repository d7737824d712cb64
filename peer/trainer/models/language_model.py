"""The interface of a model for the loss and the inner loop."""

from __future__ import annotations

from torch import Tensor, nn

from peer.trainer.models.documents import Documents


class LanguageModel(nn.Module):
    """Base class of all models.

    A subclass has to implement `logits`. The other methods are used only if the flag of their ability is set."""

    vocab_size: int
    """Number of tokens of the vocabulary."""
    prefix = ""
    """Prefix of the parameters' names in this module, which the names of the layout lack."""
    splits = False
    """Whether the logits equal `hidden` times `head_weight`, so that the loss can be computed in chunks."""
    masks = False
    """Whether the model can mask attention between documents."""
    recomputes = False
    """Whether the model implements `recompute`."""

    layers = 1
    """Number of layers whose inputs are stored when activations are recomputed."""

    @property
    def title(self) -> str:
        """Name of the model, for a person."""
        return type(self).__name__

    def examine(self) -> None:
        """Set the flags of the abilities, where they are not known beforehand. May overwrite the parameters."""

    def logits(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """Return the logits [windows, tokens, vocabulary] of tokens [windows, tokens] int64.

        `documents`: the mask and positions; None: each window is one document."""
        raise NotImplementedError

    def hidden(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """Return the input of the head, [windows, tokens, width]. Needs `splits`."""
        raise NotImplementedError

    @property
    def head_weight(self) -> Tensor:
        """The weights of the head, [vocabulary, width]. Needs `splits`."""
        raise NotImplementedError

    def recompute(self, on: bool) -> None:
        """Turn activation checkpointing on or off: only the inputs of the layers are stored, and the backward pass
        recomputes the other activations. Needs `recomputes`."""
        raise NotImplementedError
