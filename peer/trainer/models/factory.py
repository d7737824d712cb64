"""The model of a run, whatever its kind."""

from __future__ import annotations

from peer.protocol.model.layout import Layout
from peer.run.sections import LlamaSection, ModelSection
from peer.trainer.models import llama
from peer.trainer.models.language_model import LanguageModel


def empty_model(model: ModelSection) -> LanguageModel:
    """Make the model on the meta device: names and shapes without memory."""
    assert isinstance(model, LlamaSection), model.kind
    return llama.empty_model(model)


def layout_of(model: ModelSection) -> Layout:
    """Return all tensors in the order of `named_parameters`, in one fragment."""
    assert isinstance(model, LlamaSection), model.kind
    return llama.layout_of(model)
