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
from peer.observe.formatting import amount
from peer.run.sections import MOST_BUFFER_BYTES


def persistent_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that a folder of the model holds, by their names."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def check_buffer_bytes(model: nn.Module) -> None:
    """Raise ModelError, which names the largest, for buffers of more than `MOST_BUFFER_BYTES` together.

    A config makes them by formula, such as a mask of max_position_embeddings squared in each layer, and none of them
    is a parameter. `model` may lie on the meta device. What several buffers share counts once."""
    named = dict(model.named_buffers())
    sizes = {buffer.untyped_storage()._cdata: buffer.untyped_storage().nbytes() for buffer in named.values()}
    total = sum(sizes.values())
    if total <= MOST_BUFFER_BYTES:
        return
    largest = max(named, key=lambda name: named[name].untyped_storage().nbytes())
    size = named[largest].untyped_storage().nbytes()
    raise ModelError(
        f"the model's config makes {amount(total, 'bytes')} of buffers beside its parameters, at most "
        f"{amount(MOST_BUFFER_BYTES, 'bytes')} are taken. The largest is {largest}: {list(named[largest].shape)}, "
        f"{amount(size, 'bytes')}",
        "The operator has to name a config with shorter tables (max_position_embeddings is the usual cause). Join "
        "another run until then.",
        "Every volunteer's trainer would allocate them, though no count of parameters shows them.",
    )


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
        if why := buffer_mismatch(buffer, own[name]):
            raise ModelError(f"the run's buffer {name} {why}")
    return found


def buffer_mismatch(buffer: Tensor, own: Tensor) -> str:
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
