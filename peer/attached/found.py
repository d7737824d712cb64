"""`peer.found`: founds a run of a custom model, whose code only its users have."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from peer.attached.params import Named, trained_tensors
from peer.errors import HomeUnusable, ManifestError, ModelError, UsageError, file_advice, for_shell
from peer.identity import load, load_or_create
from peer.node.new_run import make_custom_run
from peer.protocol.model.layout import TensorSpec
from peer.protocol.policy.donors import too_large_reason
from peer.run.files.layout_file import format_layout, parse_layout
from peer.run.home import KEY_FILE
from peer.user_folders import expand_user, make_private

MANIFEST_FILE = "run.toml"
FP32 = "Found the run with the model in fp32: model.float(). Compute in bf16 under torch.autocast."
PINNED = "A run of a custom model pins the names, shapes and first values of the parameters that are trained."
WHOLE = "Found the run with the plain model, before it is sharded."


@dataclass(frozen=True, slots=True)
class FoundedRun:
    """A run that was founded on the operator's disk. Peers can join it once `serve_command` runs."""

    run_id: str
    """Id of the run, in hex."""
    manifest: Path
    """Path of the signed manifest."""
    operator: str
    """Peer id of the key that signed the manifest."""
    parameters: int
    """Number of parameters that are trained and exchanged."""
    serve_command: str
    """Shell command that serves the run and prints its ticket."""
    invite_command: str
    """Shell command that invites a peer; replace PEER_ID by its id. Empty: the run is open."""


def found(
    model: Named,
    path: Path | str,
    *,
    preset: str = "noloco",
    rounds: int = 1000,
    sync_every: float = 300.0,
    clock: Literal["steps", "seconds"] = "seconds",
    name: str = "custom",
    title: str = "",
    admission: Literal["invited", "open"] = "invited",
    settings: Iterable[str] = (),
    identity_path: Path | str | None = None,
) -> FoundedRun:
    """Found a run of a model of your own, in a new folder.

    The manifest contains the names and shapes of the trained parameters, and the digest of their present values, which
    are the first weights. The code of the model is not written anywhere. `peer bootstrap` stores and serves states
    without it, and can therefore not evaluate them. For this reason only peers that you invite can join, unless
    `admission` is `open`.

    Args:
        model: An `nn.Module`, whose parameters with `requires_grad` belong to the run (for a model with LoRA: the
            adapters), or a mapping of names to tensors, which all belong to it. Tied parameters count once. All must be
            fp32.
        path: A folder that is empty or does not exist. It becomes the home of the operator's node, with key, manifest,
            layout and first weights.
        preset: The synchronization method: see `peer help presets`.
        rounds: Number of rounds of the run.
        sync_every: Inner steps or seconds, as `clock` says, between two exchanges of the same parameters.
        clock: Whether the length of rounds is in `steps`, for equally fast machines, or in `seconds`.
        name: Name of the run, for people.
        title: Description of the model, for people.
        admission: `invited`: only peers with an invitation can join. `open`: any peer can.
        settings: Further values of the manifest, in the syntax of `--set` of `peer manifest new`.
        identity_path: File of the operator's key. None: make a new key in the folder.

    Raises:
        ModelError: The model has no trained parameter, or one that no run can have. The message names the first one.
        ManifestError: A value is not valid in a manifest, or the folder cannot be written.
        UsageError: The folder is not empty, a setting is unknown, or two parameters have the same name.
        IdentityError: The key cannot be read or made."""
    home = expand_user(Path(path)).absolute()
    tensors = _checked(model)
    specs = [TensorSpec(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    values = [f"sync.preset={preset}", f"sync.clock={clock}", f"sync.sync_every={sync_every}"]
    values += [f"train.total_rounds={rounds}", f"name={name}", f"admission.kind={admission}", *settings]
    given = None if identity_path is None else expand_user(Path(identity_path))
    with _new_home(home):
        operator = load_or_create(home / KEY_FILE) if given is None else load(given)
        signed = make_custom_run(
            manifest := home / MANIFEST_FILE,
            operator,
            values,
            lambda line: None,
            tensors=specs,
            weights=_values(tensors),
            title=title,
        )
    key = "" if given is None else f" --identity-path {for_shell(given.absolute())}"
    invited = signed.manifest.admission.kind == "invited"
    return FoundedRun(
        run_id=signed.run_id.hex(),
        manifest=manifest,
        operator=operator.peer_id,
        parameters=signed.manifest.model.parameters,
        serve_command=f"peer bootstrap {for_shell(manifest)} --home {for_shell(home)}{key}",
        invite_command=(
            f"peer ticket invite PEER_ID --run {for_shell(manifest)} --home {for_shell(home)}{key}" if invited else ""
        ),
    )


def _checked(model: Named) -> dict[str, Tensor]:
    """Return the tensors that the run will exchange. Raises ModelError, which names the first one that cannot be."""
    tensors = trained_tensors(model)
    if not tensors:
        what = "no parameter with requires_grad" if isinstance(model, nn.Module) else "no tensor"
        raise ModelError(f"the model has {what}", "Found the run with a model that is to be trained.", PINNED)
    places = dict[int, str]()
    for name, tensor in tensors.items():
        if hasattr(tensor, "full_tensor"):
            raise ModelError(f"{name} is a sharded tensor, of which this process has a part", WHOLE, PINNED)
        if tensor.is_meta:
            raise ModelError(f"{name} is on the meta device: it has no values", "Give the model values first.", PINNED)
        if tensor.dtype != torch.float32:
            why = "a merge that is below the precision of the parameters would be lost"
            raise ModelError(f"{name} is {tensor.dtype}, and a run has torch.float32", FP32, why)
        if not tensor.numel():
            raise ModelError(f"{name} {list(tensor.shape)} has no values", "Leave it out of the model.", PINNED)
        if (other := places.setdefault(tensor.data_ptr(), name)) != name:
            raise ModelError(
                f"{other} and {name} share their memory", "Give tied tensors once, under one name.", PINNED
            )
        size = math.sqrt(float(tensor.detach().double().square().mean()))
        if why_not := too_large_reason(size):
            raise ModelError(f"{name} cannot begin a run: {why_not}", "Give the model its first weights.", PINNED)
    specs = [TensorSpec(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
    try:
        parse_layout(format_layout(specs), sum(spec.elements for spec in specs))
    except ManifestError as error:
        raise ModelError(
            f"no run can have this model: {error.found}", "Rename or join these parameters.", PINNED
        ) from error
    return tensors


def _values(tensors: dict[str, Tensor]) -> Iterator[np.ndarray]:
    for tensor in tensors.values():
        yield tensor.detach().cpu().contiguous().numpy()


@contextlib.contextmanager
def _new_home(home: Path) -> Iterator[None]:
    """Create the folder, and remove its content if the context raises. Raises UsageError when it has content
    already."""
    try:
        had = home.is_symlink() or home.exists()
        if had and (not home.is_dir() or any(home.iterdir())):
            raise UsageError(f"{home} exists", "Name a new folder. Nothing was overwritten.")
        make_private(home)
    except OSError as error:
        advice = file_advice(error, home, "choose another place")
        raise HomeUnusable(f"cannot write {home}: {error.strerror}", advice) from error
    try:
        yield
    except BaseException:
        for left in home.iterdir():  # everything here was written during the context
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        if not had:
            home.rmdir()
        raise
