"""Makes the model of a run, whatever its kind, and binds it to the flat vector of params."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor, nn

from peer.errors import ModelError
from peer.installation import install_extras
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.sections import CustomSection, LlamaSection
from peer.trainer.config import TrainerConfig
from peer.trainer.models import llama
from peer.trainer.models.buffers import put_buffers, read_buffers
from peer.trainer.models.flat import replace_parameters, views_of
from peer.trainer.models.foreign import ForeignModel
from peer.trainer.models.language_model import LanguageModel

RATES = ("A_log",)
"""Suffixes of the names of matrices that are not decayed because they hold the rates of a state space model. Decay
would change how long the model remembers."""
MOST_NAMED = 5
"""Most tensors that one message names."""


def empty_model(config: TrainerConfig) -> LanguageModel:
    """Make the model with its parameters on the meta device, which have names and shapes but no memory.

    Raises ModelError for a custom model, whose code only its users have, and for a config that transformers refuses."""
    if isinstance(config.model, LlamaSection):
        return llama.empty_model(config.model)
    if isinstance(config.model, CustomSection):
        found = "the run's model cannot be made here: only its users' own training loops have its code"
        why = "A run of a custom model names its tensors and first weights, and no code."
        raise ModelError(found, "Train it with your own loop: peer help own-model", why)
    try:
        from peer.trainer.models import builder  # transformers takes seconds to load, and need not be installed
    except ImportError as error:
        raise ModelError(
            f"the run's model needs transformers, which cannot be loaded: {error}",
            install_extras("hf"),
        ) from error
    assert config.config_file is not None, "a foreign model has a config"
    model = builder.build_shell(builder.config_of(Path(config.config_file)))
    if config.buffers_file is not None:
        put_buffers(model, read_buffers(Path(config.buffers_file), model))
    return ForeignModel(model)


def layout_of(config: TrainerConfig) -> Layout:
    """Return a layout of one fragment with all tensors in the order of `named_parameters`, tied ones once.

    Raises ModelError as `empty_model` does."""
    model = empty_model(config)
    named = model.named_parameters()
    return Layout.whole([TensorSpec(name.removeprefix(model.prefix), tuple(param.shape)) for name, param in named])


def check_tensors(own: Layout, tensors: Sequence[TensorSpec]) -> None:
    """Raise ModelError, which names the differences, unless the run's tensors are those of the model made here.

    `own`: layout of the model made here. `tensors`: the run's, in any order."""
    here = {tensor.name: tensor.shape for tensor in own.tensors}
    run = {tensor.name: tensor.shape for tensor in tensors}
    wrong = [f"{name} is not in the model here" for name in run if name not in here]
    wrong += [f"{name} is not in the run's layout" for name in here if name not in run]
    both = [name for name in run if name in here and run[name] != here[name]]
    wrong += [f"{name} is {list(here[name])} here, {list(run[name])} in the run" for name in both]
    if wrong:
        more = f" and {len(wrong) - MOST_NAMED} more" if len(wrong) > MOST_NAMED else ""
        raise ModelError(
            f"the model made here differs from the run's layout: {'; '.join(wrong[:MOST_NAMED])}{more}",
            "Install the version of transformers that the operator used, or ask the operator.",
        )


def bind(model: LanguageModel, layout: Layout, params: Tensor) -> None:
    """Make the model's parameters views of the flat vector `params`, and move its buffers to the vector's device."""
    replace_parameters(model, {model.prefix + name: nn.Parameter(view) for name, view in views_of(params, layout)})
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            saved = name not in module._non_persistent_buffers_set
            module.register_buffer(name, buffer.to(params.device), persistent=saved)


def decays(model: nn.Module) -> list[bool]:
    """Return for each parameter, in the order of `named_parameters`, whether weight decay applies.

    It applies to matrices, except those that an embedding uses and `RATES`."""
    tables = {id(param) for part in model.modules() if isinstance(part, nn.Embedding) for param in part.parameters()}
    return [
        param.dim() >= 2 and id(param) not in tables and not name.endswith(RATES)
        for name, param in model.named_parameters()
    ]
