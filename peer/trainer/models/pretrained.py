"""Loads a folder of pretrained weights with transformers, for the first state of a run.

A run contains the parameters in fp32, the type that each had in the folder, and the buffers that do not follow from the
config. A folder that holds anything else is refused with the names of the tensors. An export of round 0 therefore has
the folder's values and computes the same logits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig

from peer.run.sections import MOST_BUFFER_BYTES
from peer.trainer.models.buffers import buffer_mismatch, persistent_buffers
from peer.trainer.models.builder import build_shell
from peer.trainer.weight_files import WEIGHTS, check_folder, folder_error, named

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Types of parameters that fp32 represents exactly: name in safetensors -> torch dtype."""
SAVE_AGAIN = "Load it with AutoModelForCausalLM.from_pretrained in float32, and save it with save_pretrained."


@dataclass(frozen=True, slots=True)
class Pretrained:
    """A pretrained model, with the facts about it that its config does not contain."""

    model: nn.Module
    """The model with the folder's weights, in fp32."""
    types: dict[str, str]
    """Parameter -> its type in the folder, by the name in torch."""
    buffers: dict[str, Tensor]
    """The buffers that do not follow from the config, in the type that they have in the folder."""


def load_pretrained(folder: Path, config: Any) -> Pretrained:
    """Load a folder of weights. Raises ModelError, which names the tensors that a run cannot contain."""
    stored = check_folder(folder)
    loader, made, shell = AutoModelForCausalLM, GenerationConfig, build_shell(config)
    model, info = loader.from_pretrained(
        folder,
        config=config,
        dtype=torch.float32,
        trust_remote_code=False,
        local_files_only=True,
        use_safetensors=True,
        generation_config=made(),  # without a generation config, the library would look for its file
        ignore_mismatched_sizes=True,  # `_check_complete` refuses them with a better message
        output_loading_info=True,
    )
    parameters, own = dict(model.named_parameters()), persistent_buffers(shell)
    _check_complete(folder, parameters, shell, info)
    weights, buffers = ({alias for name in some for alias in _aliases(name, model)} for some in (parameters, own))
    for name in sorted(stored.keys() - buffers):
        kind = stored[name]
        if kind not in TYPES and (name in weights or kind.startswith("F")):
            raise folder_error(f"{name} in {folder} is of type {kind}; {', '.join(TYPES)} are taken", SAVE_AGAIN)
    usual = Counter(kind for kind in stored.values() if kind in TYPES).most_common(1)[0][0]
    types = {}
    for name, parameter in parameters.items():
        if not bool(parameter.isfinite().all()):
            raise folder_error(f"{name} in {folder} holds NaN or infinity", "Take an earlier checkpoint of the model.")
        # The library may combine several stored tensors into one. Such a tensor gets the folder's most frequent type.
        dtype = TYPES[next((stored[alias] for alias in _aliases(name, model) if alias in stored), usual)]
        exact = bool((parameter == parameter.to(dtype)).all())
        types[name] = str(dtype if exact else torch.float32).removeprefix("torch.")
    return Pretrained(model, types, _buffers(folder, model, shell))


def _aliases(name: str, model: Any) -> tuple[str, ...]:
    """Return the names under which a folder may store a tensor: with or without the prefix of the model's body."""
    prefix = f"{model.base_model_prefix}."
    return (name, name.removeprefix(prefix), prefix + name)


def _check_complete(folder: Path, parameters: Mapping[str, Tensor], shell: nn.Module, info: Mapping[str, Any]) -> None:
    """Raise ModelError for a folder with missing, additional or other tensors than the model of its config.

    `info`: what transformers reported while loading."""
    if wrong := sorted(info["mismatched_keys"]):
        name, there, here = wrong[0]
        raise folder_error(
            f"tensor {name} is {list(there)} in {folder}, {list(here)} by its config.json",
            "Take config.json and weights of one model.",
        )
    own = {name for name, _ in shell.named_parameters()}
    if missing := sorted(own.intersection(info["missing_keys"])):
        raise folder_error(f"the folder {folder} lacks weights of its model: {named(missing)}")
    if apart := sorted(parameters.keys() - own):
        raise folder_error(
            f"{named(apart)} in {folder} has values of its own, but config.json ties it to another tensor",
            'Set "tie_word_embeddings" to false in config.json if the model was trained so.',
        )
    if unexpected := sorted(info["unexpected_keys"]):
        raise folder_error(
            f"the folder {folder} holds tensors that the model of its config has no place for: {named(unexpected)}",
            "Take config.json and weights of one model, or save the model again without these tensors.",
        )


def _buffers(folder: Path, model: nn.Module, shell: nn.Module) -> dict[str, Tensor]:
    """Return the buffers whose values or types in the folder differ from those that follow from the config."""
    own, loaded, found = persistent_buffers(shell), persistent_buffers(model), dict[str, Tensor]()
    files = [folder / WEIGHTS] if (folder / WEIGHTS).exists() else sorted(folder.glob("*.safetensors"))
    known = {alias for name in (*own, *dict(model.named_parameters())) for alias in _aliases(name, model)}
    for path in files if own else []:
        with safe_open(path, "pt") as file:
            names = set(file.keys())
            renamed = {name: tuple(file.get_slice(name).get_shape()) for name in sorted(names - known)}
            for name in own:
                if (alias := next((alias for alias in _aliases(name, model) if alias in names), None)) is not None:
                    loaded[name] = file.get_tensor(alias)
                    continue
                # The library stores some buffers under another name. They are found by shape and values.
                same_shape = [other for other, shape in renamed.items() if shape == loaded[name].shape]
                for tensor in map(file.get_tensor, same_shape):
                    if torch.equal(tensor.to(loaded[name].dtype), loaded[name]):
                        loaded[name] = tensor
                        break
    for name, buffer in own.items():
        given = loaded[name]
        if given.dtype == buffer.dtype and torch.equal(given, buffer):
            continue
        if why := buffer_mismatch(given, buffer):
            raise folder_error(f"buffer {name} in {folder} {why}", "Take an earlier checkpoint of the model.")
        found[name] = given.contiguous()
    if (size := sum(buffer.nbytes for buffer in found.values())) > MOST_BUFFER_BYTES:
        largest = sorted(found, key=lambda name: -found[name].nbytes)
        raise folder_error(
            f"the buffers in {folder} have {size:,} bytes, at most {MOST_BUFFER_BYTES:,} are taken: {named(largest)}",
            "Save the model again without them, if its config gives them.",
        )
    return found
