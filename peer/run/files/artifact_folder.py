"""The artifacts of a run on its operator's disk: a folder beside the manifest (`run.artifacts/` for `run.toml`), in
which each file is named by its digest."""

from __future__ import annotations

import re
from pathlib import Path

from peer.errors import ManifestError
from peer.protocol.model.layout import TensorSpec
from peer.run.files.artifact import ArtifactRef
from peer.run.files.layout_file import MOST_LAYOUT_BYTES, parse_layout
from peer.run.schema import Manifest, check_layout
from peer.run.sections import CustomSection, LlamaSection, TransformersSection

_DIGEST = re.compile(r"[0-9a-f]{64}")


def folder_of(manifest: Path) -> Path:
    """Return the folder of this manifest's artifacts."""
    return manifest.with_suffix(".artifacts")


def artifact_files(manifest: Path) -> dict[str, Path]:
    """Return the files in the artifact folder of a manifest, by digest. Their content is not checked."""
    folder = folder_of(manifest)
    try:
        return {path.name: path for path in sorted(folder.iterdir()) if _DIGEST.fullmatch(path.name)}
    except OSError:
        return {}


def needed_artifacts(manifest: Manifest) -> dict[str, ArtifactRef]:
    """Return the artifacts that a manifest names, by role (`tokenizer`, `index`, `config`, `layout`, `buffers`). The
    first state of a run that names one is not included, because peers fetch it as any state."""
    found: dict[str, ArtifactRef | None] = {"tokenizer": manifest.tokenizer.file, "index": manifest.data.index}
    if isinstance(manifest.model, TransformersSection):
        model = manifest.model
        found |= {"config": model.config, "layout": model.layout, "buffers": model.buffers}
    if isinstance(manifest.model, CustomSection):
        found["layout"] = manifest.model.layout
    return {name: artifact for name, artifact in found.items() if artifact is not None}


def tensors_beside(path: Path, manifest: Manifest) -> list[TensorSpec] | None:
    """Read the tensors of the model of the manifest at `path`. None: the model is the built-in one, or its layout file
    is missing. Raises ManifestError."""
    if isinstance(manifest.model, LlamaSection):
        return None
    layout = artifact_files(path).get(manifest.model.layout.digest)
    return None if layout is None else read_tensors(manifest, layout)


def read_tensors(manifest: Manifest, layout: Path) -> list[TensorSpec]:
    """Read the tensors of a foreign model from its layout artifact, and check the manifest against them. Raises
    ManifestError."""
    try:
        with layout.open("rb") as file:
            raw = file.read(MOST_LAYOUT_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"cannot read the layout {layout}: {error.strerror}", "Fetch or make it again.") from error
    tensors = parse_layout(raw, manifest.model.parameters)
    check_layout(manifest, tensors)
    return tensors
