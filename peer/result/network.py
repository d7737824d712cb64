"""Builds a run's model as a network, with the parameters of a state and a limit on memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from peer.errors import ModelError
from peer.result.model import OpenedRun, RunModel
from peer.run.activations import ACTIVATION_SHARE, window_bytes
from peer.run.memory import free_bytes
from peer.run.sections import MOST_BUFFER_BYTES, LlamaSection
from peer.trainer.config import TrainerConfig
from peer.trainer.memory_limit import MemoryLimit, limited_gpu_memory, limited_memory
from peer.trainer.models.factory import bind, check_tensors, empty_model, layout_of
from peer.trainer.models.language_model import LanguageModel

USE_BYTES = 8
"""Bytes per parameter that using a model needs besides the state: the fp32 parameters, and the same again for
`network.examine`."""


@contextlib.contextmanager
def limit_memory(run: OpenedRun, device: torch.device, what: str) -> Iterator[None]:
    """Limit the memory for computing with a run's model until the block ends. Build the model inside the block, too.

    `what`: the activity, for the error. Raises ModelError or MachineTooSmall instead of the error of a failed
    allocation."""
    section, free = run.manifest.model, free_bytes()
    held = USE_BYTES * run.layout.elements + (0 if isinstance(section, LlamaSection) else MOST_BUFFER_BYTES)
    need = held + window_bytes(section, run.manifest.train.context, run.layout.tensors)
    limit = None if free is None else MemoryLimit.of(need, int(ACTIVATION_SHARE * max(0, free - held)), free)
    what += " the run's model"
    with limited_gpu_memory(need, device, what), limited_memory(limit, what):
        yield


def network_of(model: RunModel, device: torch.device) -> LanguageModel:
    """Return a network with the parameters of a state, in fp32 on a device.

    A config that is not ours must have been checked in a separate process before. Raises ModelError."""
    network, values = empty_network(model.run, device)
    values.copy_(model.params)
    return network


def empty_network(run: OpenedRun, device: torch.device) -> tuple[LanguageModel, torch.Tensor]:
    """Return a network of a run's model, and the flat fp32 tensor of which its parameters are views. The values are
    undefined. Raises ModelError."""
    files = {"config_file": run.files.run.config, "buffers_file": run.files.run.buffers}
    named = {key: None if path is None else str(path) for key, path in files.items()}
    config = TrainerConfig.of(run.manifest, "", **named)
    check_tensors(layout_of(config), run.layout.tensors)
    network, values = empty_model(config), torch.empty(run.layout.elements, device=device)
    bind(network, run.layout, values)
    network.examine()  # runs the model once, which changes the values
    if run.end_mask is not None and not network.masks:
        raise ModelError(
            f"{network.title} cannot keep documents apart here, as the run's manifest asks",
            "Install the version of transformers that the operator used, or ask the operator.",
        )
    return network, values
