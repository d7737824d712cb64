"""Finds a run's files on this machine. They are read in place, without writing or locking, because a daemon may be
using them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from peer.errors import ModelError, SourceError
from peer.joining.artifacts import RunFiles, check_foreign, opened
from peer.result.model import ResultFiles, SourceRequest
from peer.run.description import NO_CODE, NOT_EVALUATED
from peer.run.files.artifact import ArtifactRef
from peer.run.files.artifact_folder import needed_artifacts
from peer.run.files.token_index import TokenIndex, shard_bytes
from peer.run.manifest import Manifest
from peer.run.sections import CustomSection
from peer.state.files import digest_of

ELSEWHERE = (
    "Name the operator's file with --manifest, which has the run's files beside it, another home with --home, "
    "or give the run's ticket as source."
)


def wanted_files(manifest: Manifest, request: SourceRequest) -> dict[str, ArtifactRef]:
    """Return the artifacts that a request needs, by name. The hold-out is named by the index. Raises ModelError when
    the request needs the code of a custom model."""
    if request.computes and isinstance(manifest.model, CustomSection):
        found = f"{request.computes} cannot take the model of run {manifest.name!r}: {NOT_EVALUATED}"
        fix = "Export its tensors, and load them in your own program: peer export SOURCE OUT --format safetensors"
        raise ModelError(found, fix, NO_CODE)
    left_out = {"tokenizer": request.tokenizer == "none", "index": not request.holdout}
    return {name: ref for name, ref in needed_artifacts(manifest).items() if not left_out.get(name)}


def holdout_ref(index: TokenIndex) -> ArtifactRef:
    """Return the hold-out shard on which all peers of a run evaluate."""
    entry = index.holdout[0]
    return ArtifactRef(digest=entry.digest, size=shard_bytes(index, entry))


def files_to_check(files: RunFiles, request: SourceRequest) -> RunFiles:
    """Return the files that a library will open. They do not include a tokenizer that is only copied."""
    return files if request.tokenizer == "open" else replace(files, tokenizer=None)


class LocalFiles:
    """Artifacts in some folders, where the name of a file is its digest."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder for folder in folders if folder.is_dir()]

    def find(self, name: str, ref: ArtifactRef) -> Path:
        """Return the file of an artifact, after checking its digest. `name`: for the error. Raises SourceError."""
        wrong = ""
        for folder in self._folders:
            path = folder / ref.digest
            try:
                digest, size = digest_of(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                wrong = f"{path} cannot be read: {error.strerror or error}"
                continue
            if (digest, size) == (ref.digest, ref.size):
                return path
            wrong = f"{path} is damaged: its digest is {digest[:16]}…"
        searched = ", ".join(map(str, self._folders)) or "no folder"
        why = wrong or f"it is not in {searched}"
        raise SourceError(f"the run's {name} ({ref.digest[:16]}…) cannot be used: {why}", ELSEWHERE)


def local_files(manifest: Manifest, request: SourceRequest, folders: Sequence[Path]) -> ResultFiles:
    """Find and open the files; files that are not ours are checked in a separate process first. Raises SourceError,
    DataError, ManifestError and ModelError."""
    here = LocalFiles(folders)
    wanted = wanted_files(manifest, request)
    index = wanted.pop("index", None)
    found = {name: here.find(name, ref) for name, ref in wanted.items()}
    why = ""
    if index is not None:
        try:
            found["index"] = here.find("data index", index)
        except SourceError as error:
            why = error.found
    files = opened(manifest, found)
    check_foreign(manifest, files_to_check(files, request), trained=False)
    return with_holdout(files, here, why)


def with_holdout(files: RunFiles, here: LocalFiles, why: str) -> ResultFiles:
    """Add the hold-out shard, or the reason why it is missing."""
    if files.index is None:
        return ResultFiles(files, missing_holdout_reason=why)
    try:
        return ResultFiles(files, here.find("hold-out", holdout_ref(files.index)))
    except SourceError as error:
        return ResultFiles(files, missing_holdout_reason=error.found)
