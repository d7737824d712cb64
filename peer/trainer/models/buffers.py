"""Persistent buffers of a foreign model: tensors that are part of it, and that nobody trains.

Most follow from the config. Those of a pretrained folder that do not, such as the expert biases of DeepSeek-V3, travel
as a file of the run in safetensors, each in the type that it had in the folder. Every peer has the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from peer.errors import ModelError


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a folder of the model holds, by their names."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def read_buffers(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """Read the buffers of a run. Raises ModelError, which names the buffer, when they do not fit the model."""
    try:
        found = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the run's buffers cannot be read: {error}") from error
    own = persistent_buffers(model)
    for name, buffer in found.items():
        if name not in own:
            raise ModelError(f"the model made here has no buffer {name}, which the run has")
        if why := why_unfit(buffer, own[name]):
            raise ModelError(f"the run's buffer {name} {why}")
    return found


def why_unfit(buffer: Tensor, own: Tensor) -> str:
    """Return why a buffer cannot take the place of the model's own. Empty: it can."""
    if buffer.shape != own.shape:
        return f"is {list(buffer.shape)}, the model's own {list(own.shape)}"
    if buffer.is_floating_point() != own.is_floating_point():
        return f"is of type {buffer.dtype}, the model's own of {own.dtype}"
    if not bool(buffer.isfinite().all()):
        return "holds NaN or infinity"
    return ""


def put_buffers(model: nn.Module, given: Mapping[str, Tensor], *, keep_type: bool = False) -> None:
    """Put these in the place of the model's own buffers, in their own type or in the model's."""
    for name, buffer in given.items():
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        own = module.get_buffer(last)
        module.register_buffer(last, buffer if keep_type else buffer.to(own.dtype), persistent=True)
