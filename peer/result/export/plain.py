"""A folder with the tensors of a model by their own names, and the run's signed manifest."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from peer.result.model import RunModel
from peer.run.manifest import keep
from peer.trainer.models.flat import views_of

TENSORS, MANIFEST = "model.safetensors", "run.toml"


def write_plain(model: RunModel, folder: Path) -> None:
    """Fill an empty folder. Raises OSError, and HomeUnusable for the manifest."""
    # Views of one vector: each is written from its own memory, and no two overlap.
    tensors = dict(views_of(model.params, model.run.layout))
    save_file(tensors, folder / TENSORS, metadata={"run_id": model.run.run_id.hex(), "round": str(model.round)})
    keep(folder / MANIFEST, model.run.signed)
