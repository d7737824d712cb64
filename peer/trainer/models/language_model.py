"""What the loss and the inner loop need of a model."""

from __future__ import annotations

from torch import Tensor, nn

from peer.trainer.models.documents import Documents


class LanguageModel(nn.Module):
    """Base of all models.

    A model need only have `logits`. An ability that it does not declare is not used."""

    vocab_size: int
    """Tokens are below it."""
    prefix = ""
    """Begin of the parameters' names here, before the names of the layout."""
    splits = False
    """Whether the logits are `hidden` times `head_weight`, so that they need not all exist at once."""
    masks = False
    """Whether the model can keep documents apart."""
    recomputes = False
    """Whether the model can keep the inputs of its layers only, and compute the rest again."""

    layers = 1
    """Number of the layers that `recompute` keeps the inputs of."""

    @property
    def title(self) -> str:
        """Name of the model, for a person."""
        return type(self).__name__

    def examine(self) -> None:
        """Find out what the model can do, where that is not known. Its parameters may be random afterwards."""

    def logits(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """Return [windows, tokens, vocabulary] for tokens [windows, tokens] int64."""
        raise NotImplementedError

    def hidden(self, tokens: Tensor, documents: Documents | None = None) -> Tensor:
        """Return the input of the head, [windows, tokens, width]."""
        raise NotImplementedError

    @property
    def head_weight(self) -> Tensor:
        """The head, [vocabulary, width]."""
        raise NotImplementedError

    def recompute(self, on: bool) -> None:
        """Keep the inputs of the layers only from here on, and compute the rest again for the gradient."""
        raise NotImplementedError
