"""A run's model made here, with the parameters of a state."""

from __future__ import annotations

import torch

from peer.errors import ModelError
from peer.result.model import OpenedRun, RunModel
from peer.trainer.config import TrainerConfig
from peer.trainer.models.factory import bind, check_tensors, empty_model, layout_of
from peer.trainer.models.language_model import LanguageModel


def network_of(model: RunModel, device: torch.device) -> LanguageModel:
    """Make the model of a state on a device, in fp32. It knows what it can do.

    A foreign config has been opened in a process of its own before. Raises ModelError."""
    network, values = empty_network(model.run, device)
    values.copy_(model.params)
    return network


def empty_network(run: OpenedRun, device: torch.device) -> tuple[LanguageModel, torch.Tensor]:
    """Make the model of a run on a device, with the flat tensor that its parameters are views of, in fp32. Their values
    are anything. Raises ModelError."""
    files = {"config_file": run.files.run.config, "buffers_file": run.files.run.buffers}
    named = {key: None if path is None else str(path) for key, path in files.items()}
    config = TrainerConfig.of(run.manifest, "", **named)
    check_tensors(layout_of(config), run.layout.tensors)
    network, values = empty_model(config), torch.empty(run.layout.elements, device=device)
    bind(network, run.layout, values)
    network.examine()  # a trial, which changes the values
    if run.end_mask is not None and not network.masks:
        raise ModelError(
            f"{network.title} cannot keep documents apart here, as the run's manifest asks",
            "Install the version of transformers that the operator used, or ask the operator.",
        )
    return network, values
