"""Writes a folder with the tensors of a model under their own names, and the run's signed manifest."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file, save_file

from peer.result.model import RunModel, stored_tensors
from peer.run.manifest import store_signed

TENSORS, MANIFEST = "model.safetensors", "run.toml"


def write_plain(model: RunModel, folder: Path, dtype: str | None = None) -> None:
    """Fill an empty folder. `dtype`: see `stored_tensors`. Raises OSError, and HomeUnusable when the manifest cannot be
    written."""
    # safetensors accepts these views of one vector, because they do not overlap.
    tensors = dict(stored_tensors(model, dtype))
    if (buffers := model.run.files.run.buffers) is not None:
        tensors |= load_file(buffers)
    save_file(tensors, folder / TENSORS, metadata={"run_id": model.run.run_id.hex(), "round": str(model.round)})
    store_signed(folder / MANIFEST, model.run.signed)
