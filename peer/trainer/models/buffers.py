"""Persistent buffers of a foreign model: tensors that belong to the model and are not trained.

Most of them follow from the config. Those of a pretrained folder that do not, such as the expert biases of DeepSeek-V3,
are distributed as a safetensors file of the run, each in its type in the folder. All peers have the same ones."""

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
    """Return the buffers that are saved with the model, by name."""
    return {
        f"{path}.{name}" if path else name: buffer
        for path, module in model.named_modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set
    }


def check_buffer_bytes(model: nn.Module) -> None:
    """Raise ModelError if the model's buffers have more than `MOST_BUFFER_BYTES` in total. It names the largest.

    A config can make large buffers, such as a mask of max_position_embeddings squared in each layer, which no count of
    parameters shows. `model` may be on the meta device. Memory that buffers share counts once."""
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
    """Read a run's buffers. Raises ModelError when they do not fit the model, with the buffer's name."""
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
    """Return why a buffer cannot replace the model's `own`. Empty: it can."""
    if buffer.shape != own.shape:
        return f"is {list(buffer.shape)}, the model's own {list(own.shape)}"
    if buffer.is_floating_point() != own.is_floating_point():
        return f"is of type {buffer.dtype}, the model's own of {own.dtype}"
    if not bool(buffer.isfinite().all()):
        return "holds NaN or infinity"
    return ""


def put_buffers(model: nn.Module, given: Mapping[str, Tensor], *, keep_type: bool = False) -> None:
    """Replace buffers of the model. `keep_type`: keep the type of the given ones, else convert to the model's."""
    for name, buffer in given.items():
        path, _, last = name.rpartition(".")
        module = model.get_submodule(path)
        own = module.get_buffer(last)
        module.register_buffer(last, buffer if keep_type else buffer.to(own.dtype), persistent=True)
