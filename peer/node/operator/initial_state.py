"""Makes the state with which a run begins: from the manifest's seed, from the file that the manifest names by digest
(`init`), or from a checkpoint that the operator gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from peer.errors import StateError, file_advice, for_shell
from peer.joining.reset import digest_of
from peer.outer.state import OuterState
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.manifest import Manifest
from peer.run.model_layout import own_layout
from peer.run.sections import LlamaSection
from peer.state.checkpoint import Checkpoint, CheckpointError
from peer.state.unnamed import unnamed_values
from peer.trainer.models.flat import views_of
from peer.trainer.models.llama import first_params
from peer.trainer.sandbox import write_weights


@dataclass(frozen=True, slots=True)
class FirstFiles:
    """The operator's files from which a first state is made."""

    tensors: Sequence[TensorSpec] | None = None
    """Tensors of a foreign model, in its own order."""
    config: Path | None = None
    """The config.json of a foreign model."""
    init: Path | None = None
    """The state that the manifest names: flat fp32, little endian, in the model's own order."""
    scratch: Path | None = None
    """Folder in which the first state lies, in an unnamed file. None: in memory."""
    manifest: Path = Path("run.toml")
    """The manifest file, for the command that amends the run."""


NO_FILES = FirstFiles()


def first_state(
    manifest: Manifest, layout: Layout, folder: Path | None, say: Callable[[str], None], files: FirstFiles = NO_FILES
) -> OuterState:
    """Return the state that joiners are given. `folder`: a checkpoint of a peer, if the operator gave one. Raises
    StateError when that does not fit the run, ModelError when a foreign model cannot be built here."""
    made = _first_params(manifest, layout, folder, say, files)
    if not bool(torch.isfinite(made).all()):
        raise StateError(f"the first state of run {manifest.name!r} holds NaN or infinity", "Give an earlier state.")
    try:
        params = unnamed_values(files.scratch, layout.elements)
    except OSError as error:
        found = f"cannot make room for the first state in {files.scratch or 'memory'}: {error.strerror}"
        raise StateError(found, file_advice(error, (files.scratch or Path()) / "state")) from error
    return OuterState.fresh(layout, params.copy_(made))


def _first_params(
    manifest: Manifest, layout: Layout, folder: Path | None, say: Callable[[str], None], files: FirstFiles
) -> torch.Tensor:
    own = own_layout(manifest.model, files.tensors)
    if folder is not None:
        params = load_params(folder, layout.elements)
        if manifest.init:
            return _named_by(manifest, params, own, layout, folder)
        digest = digest_of(params).hex()
        order = f"peer manifest amend {for_shell(files.manifest)} refound {digest}"
        say(f"serving the state in {folder}; to make everybody go on from it:  {order}")
        return params
    if not manifest.init:
        return _random(manifest, own, layout, files, say)
    if files.init is None:
        raise StateError(
            f"run {manifest.name!r} begins from the state {manifest.init[:16]}…, which this node does not have",
            "Give the checkpoint folder that holds it with --state, or put its file beside the manifest again.",
        )
    params = load_flat(files.init, own.elements)
    return _named_by(manifest, params, own, layout, files.init)


def _random(
    manifest: Manifest, own: Layout, layout: Layout, files: FirstFiles, say: Callable[[str], None]
) -> torch.Tensor:
    """Make the first parameters from the seed, in the order of the run's layout."""
    if isinstance(manifest.model, LlamaSection):
        return first_params(manifest.model, manifest.seed, layout)
    assert files.config is not None, "a foreign model has a config, and a custom one has init"
    assert files.scratch is not None, "its weights lie in a file for a moment"
    say("making the first weights of the model")
    draft = files.scratch / f"first_weights.{os.getpid()}"
    try:
        write_weights(files.config, manifest.seed, own.tensors, draft)
        return rearranged(load_flat(draft, own.elements), own, layout)
    finally:
        draft.unlink(missing_ok=True)


def load_flat(file: Path, elements: int) -> torch.Tensor:
    """Read flat fp32 parameters from a file. Raises StateError."""
    try:
        size = file.stat().st_size
        if size != 4 * elements:
            raise StateError(
                f"the state {file} has {size:,} bytes, {elements:,} parameters take {4 * elements:,}",
                "Make the run again, or copy the file anew from where it was made.",
            )
        return torch.from_numpy(np.fromfile(file, "<f4").astype(np.float32, copy=False))
    except OSError as error:
        raise StateError(f"cannot read the state {file}: {error.strerror}") from error


def load_params(folder: Path, elements: int | None) -> torch.Tensor:
    """Read `outer_params` of a checkpoint, flat fp32 in the order of its own run. `elements`: expected number, None if
    not known. Raises StateError."""
    advice = "Give --state a checkpoint folder of a peer of this run."
    try:
        params = Checkpoint(folder, {}, 0).params()
    except CheckpointError as error:
        raise StateError(str(error), advice) from error
    if elements is not None and params.numel() != elements:
        found = f"the state in {folder} has {params.numel():,} parameters, the run's model {elements:,}"
        raise StateError(found, advice)
    return params.to(torch.float32)


def _named_by(manifest: Manifest, params: torch.Tensor, own: Layout, layout: Layout, where: Path) -> torch.Tensor:
    """Return the state in the order of the run's layout, after checking its digest against the manifest's `init`.
    Raises StateError."""
    if (found := digest_of(params).hex()) != manifest.init:
        raise StateError(
            f"the state in {where} is {found[:16]}…, the run begins from {manifest.init[:16]}…",
            "Give --state the checkpoint whose digest the manifest names (of a run with a full schedule).",
        )
    return rearranged(params, own, layout)


def rearranged(params: torch.Tensor, now: Layout, wanted: Layout) -> torch.Tensor:
    """Return a copy of flat fp32 parameters, with the tensors in the order of another layout."""
    flat = torch.empty_like(params)
    given = dict(views_of(params, now))
    for name, view in views_of(flat, wanted):
        view.copy_(given[name])
    return flat
