"""Builds foreign models from a config with transformers.

Loading transformers takes seconds, so this module is imported only where such a model is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn

# Its registration hook is public, though torch does not list it.
from torch.nn.modules.module import register_module_parameter_registration_hook as on_each_parameter
from transformers import AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from peer.errors import ModelError
from peer.observe.formatting import amount
from peer.run.files.model_config import read_config
from peer.trainer.memory_limit import MemoryLimit, limited_memory
from peer.trainer.models.buffers import check_buffer_bytes
from peer.trainer.models.flat import replace_parameters

Seen = Callable[[nn.Parameter], nn.Parameter | None]

SHELL_BYTES = 512 * 2**20
"""Bytes that making a shell may allocate beside its largest parameter: for buffers and the tensors they are computed
from."""
MOST_PARAMETERS = 2**40
SPECIAL_FLOATS = ("NaN", "Infinity", "-Infinity")


def config_of(path: Path) -> Any:
    """Read a config.json as a config of transformers. Raises ModelError."""
    table = read_config(path.read_bytes())
    kind = table["model_type"]
    if kind not in CONFIG_MAPPING:
        raise ModelError(
            f"the installed transformers knows no model_type {kind!r}",
            "Update the extra hf (peer help install update). A model that needs code of others cannot be trained.",
        )
    config = CONFIG_MAPPING[kind].from_dict(_with_special_floats(table))
    _keep_padding_inside(config)
    return config


def _keep_padding_inside(config: Any) -> None:
    """Remove a padding token that is outside the vocabulary, because making the embedding would fail.

    A config without the key gets the library's default, which is the padding token of some published model. Other
    special tokens may stay: training does not use them, and an export takes them from the tokenizer."""
    for part in (config, config.get_text_config(decoder=True)):  # in some kinds the second is a copy of the first
        vocabulary, padding = (getattr(part, name, None) for name in ("vocab_size", "pad_token_id"))
        if not isinstance(vocabulary, int) or not isinstance(padding, int) or 0 <= padding < vocabulary:
            continue
        try:
            part.update({"pad_token_id": None})
        except StrictDataclassError:  # a few kinds of models require a number
            part.update({"pad_token_id": 0})


def _with_special_floats(value: Any) -> Any:
    """Decode NaN and infinities, which JSON lacks and transformers writes as {"__float__": "Infinity"}."""
    if isinstance(value, dict):
        if value.keys() == {"__float__"} and value["__float__"] in SPECIAL_FLOATS:
            return float(value["__float__"])
        return {key: _with_special_floats(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_special_floats(inner) for inner in value]
    return value


def load_module(model_type: str) -> None:
    """Import the module of transformers that implements a type of model, if there is one."""
    if model_type in CONFIG_MAPPING and (kind := CONFIG_MAPPING[model_type]) in AutoModelForCausalLM._model_mapping:
        AutoModelForCausalLM._model_mapping[kind]


def build(config: Any) -> nn.Module:
    """Make the model with random first weights in fp32, drawn from torch's global generator.

    Dropout is off, because a long pretraining hardly ever sees a token twice. Raises ModelError for a type of model
    that does not predict the next token."""
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ModelError(
            f"a model of type {config.model_type!r} predicts no next token (no AutoModelForCausalLM has it)",
            _remedy(config.model_type),
        )
    library: Any = AutoModelForCausalLM
    made: Any = library.from_config(config, trust_remote_code=False, dtype=torch.float32)
    embedding = made.get_input_embeddings()
    if isinstance(embedding, nn.Embedding):
        # Windows are full, so no token is padding. torch would compute no gradient for the padding token's row, and
        # with the run's own tokenizer that token may be any word.
        embedding.padding_idx = None
    module: nn.Module = made.eval()
    return module


def _remedy(model_type: str) -> str:
    """Return the advice for a type of model that does not predict the next token."""
    whole = re.sub("_text(_model)?$", "", model_type)
    if whole != model_type and whole in CONFIG_MAPPING:
        return (
            f'transformers loads {model_type} only as a part of {whole}: give a config with "model_type": '
            f'"{whole}" and this one as its "text_config".'
        )
    return "Name a language model: peer trains what transformers loads with AutoModelForCausalLM."


def build_shell(config: Any) -> nn.Module:
    """Make the model with its parameters on the meta device and with real buffers, which are not part of the state.

    The trainer, `peer eval`, `export` and `generate` make every foreign model with this function. The model is first
    made entirely on the meta device, to count what it would allocate. Raises ModelError for buffers larger than a run
    may have, whatever the config computes them from."""
    shape = build_counted(config, MOST_PARAMETERS)
    longest = max((parameter.numel() for parameter in shape.parameters()), default=0)

    def to_meta(parameter: nn.Parameter) -> nn.Parameter | None:
        if parameter.is_meta:  # a tied parameter, which has to remain the same object
            return None
        return nn.Parameter(parameter.detach().to("meta"), requires_grad=parameter.requires_grad)

    # Each parameter is allocated for a moment. Its memory is not touched, but counts for the limit.
    limit = MemoryLimit(SHELL_BYTES + 8 * longest, f"{amount(SHELL_BYTES, 'bytes')} and twice its largest parameter")
    memory = limited_memory(limit, f"making {type(shape).__name__} of the run's config")
    with memory, _each_parameter(to_meta), no_init_weights():
        return _tied(build(config))


STAND_IN_STD = 0.02
"""Standard deviation of a stand-in's matrices, the usual one of the library's first weights."""
SHIFTS = 2**16
"""Most elements by which a stand-in's weights are shifted against each other within the shared memory."""


def build_stand_in(config: Any) -> nn.Module:
    """Make the model with real buffers and with random weights that share memory, to try out what it computes.

    All matrices are views of one vector that is slightly longer than the largest matrix, and the matrices of a stack
    (three or more dimensions) are the same one. A model of any size thus needs the memory of its largest matrix."""
    model, noise = build_shell(config), torch.Generator().manual_seed(0)
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def longest(matrix: bool) -> int:
        return max((shape[-2:].numel() for shape in shapes.values() if (len(shape) > 1) is matrix), default=1)

    matrices = torch.empty(longest(matrix=True) + SHIFTS).normal_(0.0, STAND_IN_STD, generator=noise)
    vectors = torch.empty(longest(matrix=False) + SHIFTS).uniform_(0.5, 1.5, generator=noise)

    def view_of(shape: torch.Size) -> nn.Parameter:
        one = shape[-2:]
        start = int(torch.randint(SHIFTS, (), generator=noise))
        values = (matrices if len(shape) > 1 else vectors)[start : start + one.numel()]
        return nn.Parameter(values.view(one).expand(shape), requires_grad=False)

    replace_parameters(model, {name: view_of(shape) for name, shape in shapes.items()})
    return model


MADE_AGAIN = 8
"""Factor on the permitted number of parameters while a model is built, because tied or replaced parameters are counted
more than once."""


def build_counted(config: Any, most: int) -> nn.Module:
    """Make the model on the meta device.

    Raises ModelError as soon as many more than `most` parameters have been made, and for too large buffers."""
    seen = 0

    def count(parameter: nn.Parameter) -> None:
        nonlocal seen
        seen += parameter.numel()
        if seen > MADE_AGAIN * most:
            raise ModelError(f"the model has more than the {most:,} parameters that its run allows")

    with torch.device("meta"), _each_parameter(count), no_init_weights():
        model = _tied(build(config))
    check_buffer_bytes(model)
    return model


def _tied(model: Any) -> nn.Module:
    """Tie the weights, which the library does not do under `no_init_weights`."""
    model.tie_weights()
    tied: nn.Module = model
    return tied


@contextmanager
def _each_parameter(seen: Seen) -> Iterator[None]:
    """Call `seen` with each parameter that is registered during the context. It may return a replacement."""

    def hook(module: nn.Module, name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        return None if parameter is None else seen(parameter)

    register: Any = on_each_parameter  # its annotation lacks the parameter that a hook may return
    handle = register(hook)
    try:
        yield
    finally:
        handle.remove()
