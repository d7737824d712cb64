"""Loads the model from a home or a checkpoint folder. Nothing is written or locked there, because a daemon may be
running."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer.errors import SourceError, UsageError
from peer.ports.console import Say
from peer.result.files import local_files
from peer.result.model import OpenedRun, RunModel, SourceRequest, check_finite
from peer.run.files.artifact_folder import folder_of
from peer.run.home import RunFolder
from peer.run.manifest import SignedManifest, load_signed
from peer.state.checkpoint import STATE, Checkpoint, CheckpointError, CheckpointStore, verified_checkpoint
from peer.user_folders import expand_user

LOOKUP_ATTEMPTS = 3
"""How often the newest checkpoint is looked up: the daemon may replace it while it is read."""


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is a checkpoint, complete or not."""
    return (folder / STATE).exists() or folder.parent.name == "checkpoints"


def local_model(source: Path, request: SourceRequest, say: Say) -> RunModel:
    """Return the model of a home or checkpoint folder. Raises SourceError, UsageError and, for the run's files,
    DataError, ManifestError and ModelError."""
    folder = expand_user(source).absolute()
    try:
        if is_checkpoint(folder):
            return _of_checkpoint(folder, request)
        return _of_home(folder, request, say)
    except OSError as error:
        raise SourceError(f"cannot read {source}: {error.strerror or error}") from error


def _of_home(home: Path, request: SourceRequest, say: Say) -> RunModel:
    run = _run_in(home, request.run)
    signed = load_signed(request.manifest or run.manifest)
    opened = _opened(signed, request, [home], run)
    store, skipped = CheckpointStore(run.checkpoints), list[str]()
    for _ in range(LOOKUP_ATTEMPTS):
        checkpoint, skipped = store.latest(signed.run_id, opened.layout.digest())
        if checkpoint is None:
            break
        try:
            model = _with_state(opened, checkpoint)
        except CheckpointError as error:
            skipped = [str(error)]
            continue
        for reason in skipped:
            say(f"checkpoint skipped: {reason}")
        return model
    why = "; ".join(skipped) or "there is none yet"
    raise SourceError(f"{run.checkpoints} holds no checkpoint that can be used: {why}")


def _of_checkpoint(folder: Path, request: SourceRequest) -> RunModel:
    run, homes = RunFolder(folder.parent.parent), []
    own = run.manifest.exists() and run.path.parent.name == "runs"
    if own:
        homes.append(run.path.parent.parent)
    elif request.manifest is None:
        raise SourceError(
            f"the checkpoint {folder} does not lie in a home, so its run's manifest is not known",
            "Name the home it came from as source, or the run's manifest with --manifest FILE.",
        )
    signed = load_signed(request.manifest or run.manifest)
    opened = _opened(signed, request, homes, run)
    try:
        return _with_state(opened, verified_checkpoint(folder, signed.run_id, opened.layout.digest()))
    except CheckpointError as error:
        raise SourceError(str(error)) from error


def _run_in(home: Path, prefix: str) -> RunFolder:
    """Return a run of a home. `prefix`: beginning of the run's id. Raises SourceError if no run matches, and UsageError
    if several do."""
    if not (home / "runs").is_dir():
        raise SourceError(
            f"{home} is neither a home nor a checkpoint folder: it has no runs",
            "Name the folder that was given as --home, or one of its runs/…/checkpoints/checkpoint-N.",
        )
    runs = [RunFolder(path) for path in sorted((home / "runs").iterdir())]
    found = [run for run in runs if run.manifest.exists() and run.path.name.startswith(prefix[:16].lower())]
    with_state = [run for run in found if run.checkpoints.is_dir()] or found
    if len(with_state) == 1:
        return with_state[0]
    if not with_state:
        meant = f"no run that begins with {prefix}" if prefix else "no run"
        raise SourceError(f"{home} holds {meant}", "Name a home that took part in the run, or give its ticket.")
    names = ", ".join(run.path.name for run in with_state)
    raise UsageError(f"{home} holds several runs: {names}", "Say which one: --run followed by the start of its name.")


def _opened(signed: SignedManifest, request: SourceRequest, homes: Sequence[Path], run: RunFolder) -> OpenedRun:
    """Open the run with its files, which are searched in the given homes, in the home of the request and beside the
    manifest."""
    more = [expand_user(request.home)] if request.home is not None else []
    folders = [home / "artifacts" for home in (*homes, *more)]
    folders += [folder_of(path) for path in (request.manifest, run.manifest) if path is not None]
    return OpenedRun.of(signed, local_files(signed.manifest, request, folders))


def _with_state(run: OpenedRun, checkpoint: Checkpoint) -> RunModel:
    """Return the run with the state of a checkpoint. Raises CheckpointError and SourceError."""
    params, facts = checkpoint.params(), checkpoint.facts
    if params.numel() != run.layout.elements:
        raise CheckpointError(f"{checkpoint.folder} holds {params.numel():,} parameters, not {run.layout.elements:,}")
    check_finite(params, str(checkpoint.folder))
    round_, tokens = facts.get("round"), facts.get("tokens")
    return RunModel(
        run=run,
        params=params,
        round=round_ if isinstance(round_, int) else 0,
        origin=str(checkpoint.folder),
        tokens=tokens if isinstance(tokens, int) else None,
        donors=_donors(facts),
    )


def _donors(facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the peers whose state a checkpoint contains: the donors that it names, else the peer that wrote it."""
    named = facts.get("donors")
    if isinstance(named, list):
        return tuple(str(donor) for donor in named)
    return (str(facts["peer_id"]),) if facts.get("peer_id") else ()
