"""Export of a model into a new folder, with a card that tells what it is."""

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
"""Per format: the function that fills the folder, and the program that it is for."""
NOT_MEASURED = "not measured"


def export(
    model: RunModel, out: Path, kind: str, device: torch.device | None, say: Say, dtype: str | None = None
) -> LossReport | None:
    """Write the model to a new folder. It appears under its name when it is complete; return its loss.

    `dtype`: of the parameters; None: of each as in the folder that the run began from.

    `device`: where the loss is measured; None: it is not. Raises UsageError, and as evaluation does."""
    found, no_loss_reason = (None, NOT_MEASURED) if device is None else _measured(model, device)
    if found is None and device is not None:
        say(f"the card shows no loss: {no_loss_reason}")
    fill, library = FORMATS[kind]
    with new_folder(out) as draft:
        fill(model, draft, dtype)
        (draft / CARD).write_text(model_card(model, found, no_loss_reason, library=library))
    return found


def _measured(model: RunModel, device: torch.device) -> tuple[LossReport | None, str]:
    """Return the loss on the run's hold-out, or why there is none."""
    if isinstance(model.run.manifest.model, CustomSection):
        return None, f"{NOT_MEASURED}: {NOT_EVALUATED}"
    try:
        return measure(model, None, device), ""
    except DataError as error:
        return None, f"{NOT_MEASURED}: {error.found}"
