"""Exports a model to a new folder with a model card."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from peer.errors import DataError
from peer.ports.console import Say
from peer.result.evaluate import LossReport, measure
from peer.result.export.card import model_card
from peer.result.export.draft import new_folder
from peer.result.export.hf import write_hf
from peer.result.export.plain import write_plain
from peer.result.model import RunModel
from peer.run.description import NOT_EVALUATED
from peer.run.sections import CustomSection

CARD = "README.md"
FORMATS: dict[str, tuple[Callable[[RunModel, Path, str | None], None], str]] = {
    "hf": (write_hf, "transformers"),
    "safetensors": (write_plain, ""),
}
"""For each format: the function that fills the folder, and the library that reads it."""
NOT_MEASURED = "not measured"


def export(
    model: RunModel, out: Path, kind: str, device: torch.device | None, say: Say, dtype: str | None = None
) -> LossReport | None:
    """Write the model to a new folder, which appears only when complete, and return its measured loss.

    `dtype`: data type of the parameters; None: each parameter's type in the folder that the run began from. `device`:
    where the loss is measured; None: it is not measured. Raises UsageError, and the errors of `measure`."""
    found, no_loss_reason = (None, NOT_MEASURED) if device is None else _measured(model, device)
    if found is None and device is not None:
        say(f"the card shows no loss: {no_loss_reason}")
    fill, library = FORMATS[kind]
    with new_folder(out) as draft:
        fill(model, draft, dtype)
        (draft / CARD).write_text(model_card(model, found, no_loss_reason, library=library))
    return found


def _measured(model: RunModel, device: torch.device) -> tuple[LossReport | None, str]:
    """Return the loss on the run's hold-out, or None with the reason why it could not be measured."""
    if isinstance(model.run.manifest.model, CustomSection):
        return None, f"{NOT_MEASURED}: {NOT_EVALUATED}"
    try:
        return measure(model, None, device), ""
    except DataError as error:
        return None, f"{NOT_MEASURED}: {error.found}"
