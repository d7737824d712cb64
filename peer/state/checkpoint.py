"""Local checkpoints, each in a folder of its own.

A checkpoint is written to a draft folder, synced, and then renamed. A folder with a checkpoint's name is therefore
complete, or was damaged later, which shows in the digests of its files. Nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from peer.outer.arithmetic import blocks
from peer.state.files import digest_of, is_plain_name, read_small, write_synced
from peer.state.sealed_state import FORMAT, MAX_FILES, OUTER, SkippedCheckpoint, seal, unseal
from peer.state.tensor_file import write_tensors
from peer.user_folders import make_private
from peer.whole_files import sync

STATE = "state.json"
MAX_STATE_BYTES = 2**20
TRAINER_SHARE = 3 / 5
"""Fraction of a checkpoint's bytes that the trainer writes."""

_NAME = re.compile(r"checkpoint-(0|[1-9][0-9]{0,11})")
_DRAFT = re.compile(r"\.draft-[0-9a-f]{16}")

P = ParamSpec("P")
R = TypeVar("R")


def checkpoint_bytes(elements: int) -> int:
    """Return the approximate bytes of a checkpoint: per parameter, two fp32 values of the outer state and three of the
    trainer (params and two moments)."""
    return 5 * 4 * elements


class CheckpointError(Exception):
    """A checkpoint cannot be written or read: the disk is full, permission is missing, or a file is damaged."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint on disk."""

    folder: Path
    """Folder with `outer.safetensors`, `state.json` and the trainer's files."""
    facts: dict[str, Any]
    """The facts that were passed to `CheckpointStore.complete`, among them `round` and `tokens`."""
    nbytes: int
    """Bytes of all files but `state.json`."""

    def load(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Read (`outer_params`, `outer_momentum`), both flat fp32 of equal length. Raises CheckpointError."""
        try:
            with safe_open(self.folder / OUTER, framework="pt") as file:
                # clone: the tensors are mapped from the file, and if it were truncated, reading them would be a SIGBUS.
                return file.get_tensor("outer_params").clone(), file.get_tensor("outer_momentum").clone()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {self.folder / OUTER}: {error}") from error

    def load_into(self, params: torch.Tensor, momentum: torch.Tensor) -> None:
        """Read the state into existing flat fp32 tensors. Raises CheckpointError.

        `momentum` has to be zero: blocks of zeros are not written to it, so that they take no memory."""
        try:
            with safe_open(self.folder / OUTER, framework="pt") as file:
                params.copy_(file.get_tensor("outer_params"))
                stored = file.get_tensor("outer_momentum")
                for part in blocks(stored.numel()):
                    if stored[part].any():
                        momentum[part].copy_(stored[part])
        except (OSError, SafetensorError, RuntimeError) as error:
            raise CheckpointError(f"cannot read {self.folder / OUTER}: {error}") from error

    def params(self) -> torch.Tensor:
        """Read `outer_params` alone, flat fp32. Raises CheckpointError."""
        try:
            with safe_open(self.folder / OUTER, framework="pt") as file:
                params: torch.Tensor = file.get_tensor("outer_params")
                return params.clone()
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read {self.folder / OUTER}: {error}") from error


def _typed_errors(
    method: Callable[Concatenate[CheckpointStore, P], R],
) -> Callable[Concatenate[CheckpointStore, P], R]:
    """Decorator: raise CheckpointError in place of errors of the disk and of safetensors."""

    def call(self: CheckpointStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise CheckpointError(f"no checkpoint was written below {self.folder}: {reason}") from error

    return call


class CheckpointStore:
    """The checkpoints of one run and identity, in one folder, of which the newest `keep` are retained.

    Only one process may write at a time, which the lock of the home ensures. The store touches nothing outside `folder`
    and follows no links. To write a checkpoint, call `begin`, `write_outer` and `complete`, or `begin` and `commit`."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        assert keep >= 1, keep
        self.folder = folder
        self.keep = keep
        self._synced: dict[Path, tuple[str, int]] = {}
        """File of the draft -> (digest, bytes), for files that this store wrote and synced itself."""

    @_typed_errors
    def begin(self) -> Path:
        """Make an empty draft folder, and remove drafts that were left behind by a crash. Raises CheckpointError."""
        make_private(self.folder)
        for leftover in self.folder.iterdir():
            if _DRAFT.fullmatch(leftover.name):
                _remove(leftover)
        draft = self.folder / f".draft-{secrets.token_hex(8)}"
        draft.mkdir(mode=0o700)
        return draft

    @_typed_errors
    def commit(
        self,
        draft: Path,
        outer_params: torch.Tensor,
        outer_momentum: torch.Tensor,
        run_id: bytes,
        layout_digest: bytes,
        facts: Mapping[str, Any],
    ) -> Checkpoint:
        """Make the draft the newest checkpoint, and remove checkpoints in excess of `keep`.

        `outer_params` and `outer_momentum` are flat fp32 on the CPU and must not change meanwhile. `facts` must be
        serializable as JSON. Raises CheckpointError; the former checkpoints then stay unchanged."""
        self.write_outer(draft, outer_params, outer_momentum)
        return self.complete(draft, run_id, layout_digest, facts)

    @_typed_errors
    def write_outer(self, draft: Path, outer_params: torch.Tensor, outer_momentum: torch.Tensor) -> None:
        """Write the outer state into the draft: the first half of `commit`. Afterwards the tensors may change.

        Raises CheckpointError, and removes the draft."""
        self._check(draft)
        assert outer_params.dtype == outer_momentum.dtype == torch.float32
        assert outer_params.shape == outer_momentum.shape == (outer_params.numel(),), outer_params.shape
        try:
            (draft / OUTER).unlink(missing_ok=True)
            tensors = {"outer_params": outer_params, "outer_momentum": outer_momentum}
            self._synced = {draft / OUTER: write_tensors(draft / OUTER, tensors)}
        except OSError:
            _remove(draft)
            raise

    @_typed_errors
    def complete(self, draft: Path, run_id: bytes, layout_digest: bytes, facts: Mapping[str, Any]) -> Checkpoint:
        """Hash, sync and rename the draft, and remove old checkpoints: the second half of `commit`.

        Raises CheckpointError, and removes the draft."""
        self._check(draft)
        try:
            (draft / STATE).unlink(missing_ok=True)
            state = _state_of(draft, run_id, layout_digest, facts, self._synced)
            write_synced(draft / STATE, seal(state))
            sync(draft)
            folder = self.folder / f"checkpoint-{max(self._numbers(), default=0) + 1}"
            draft.rename(folder)
        except (OSError, SafetensorError):
            _remove(draft)
            raise
        sync(self.folder)
        self._prune()
        return Checkpoint(folder, state["facts"], _nbytes(state))

    def _check(self, draft: Path) -> None:
        assert draft.parent == self.folder, draft
        assert _DRAFT.fullmatch(draft.name), draft

    def abandon(self, draft: Path) -> None:
        """Remove a draft that will not be completed, to free its space at once. Never raises."""
        assert draft.parent == self.folder, draft
        assert _DRAFT.fullmatch(draft.name), draft
        _remove(draft)

    def discard(self, checkpoint: Checkpoint) -> None:
        """Remove a complete checkpoint of this store. Errors are ignored."""
        assert checkpoint.folder.parent == self.folder, checkpoint.folder
        self._discard(checkpoint.folder)

    def latest(self, run_id: bytes, layout_digest: bytes) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest valid checkpoint of this run and layout, and for a person why newer ones were skipped.

        None: there is no valid one. Checks every digest. Never raises because of what is on the disk."""
        skipped: list[str] = []
        try:
            numbers = sorted(self._numbers(), reverse=True)
        except FileNotFoundError:
            return None, []
        except OSError as error:
            return None, [f"{self.folder} cannot be read: {error.strerror}"]
        for number in numbers:
            folder = self.folder / f"checkpoint-{number}"
            try:
                return _validated(folder, run_id, layout_digest), skipped
            except SkippedCheckpoint as reason:
                skipped.append(f"{folder.name}: {reason}")
            except (OSError, SafetensorError) as error:
                skipped.append(f"{folder.name}: cannot be read: {error}")
        return None, skipped

    def foreign_checkpoints(self, run_id: bytes, layout_digest: bytes, founded: bytes = b"") -> list[str]:
        """Return the name and the fault of each checkpoint that is not of this run, layout and restart, for a person.

        `founded`: digest of the state from which the operator restarted the run; empty: it was not restarted. A
        checkpoint stores the digest of the restart state that it descends from. Only the state.json files are read.
        Never raises because of what is on the disk."""
        found = []
        with contextlib.suppress(OSError):
            for number in sorted(self._numbers()):
                folder = self.folder / f"checkpoint-{number}"
                try:
                    facts = _own_state(folder, run_id, layout_digest)["facts"]
                except (SkippedCheckpoint, OSError) as reason:
                    found.append(f"{folder.name}: {reason}")
                    continue
                if facts.get("founded", "") != founded.hex():
                    found.append(f"{folder.name}: it is of before the operator refounded the run")
        return found

    def held_bytes(self) -> int:
        """Return the bytes that all checkpoints and drafts take. Raises OSError."""
        try:
            folders = [entry for entry in self.folder.iterdir() if _ours(entry)]
        except FileNotFoundError:
            return 0
        return sum(path.lstat().st_size for folder in folders for path in folder.iterdir())

    def _numbers(self) -> list[int]:
        names = (_NAME.fullmatch(entry.name) for entry in self.folder.iterdir())
        return [int(match[1]) for match in names if match]

    def _prune(self) -> None:
        """Remove the checkpoints in excess of `keep`. One that cannot be removed is tried again next time."""
        ours = [n for n in sorted(self._numbers(), reverse=True) if _is_folder(self.folder / f"checkpoint-{n}")]
        for number in ours[self.keep :]:
            self._discard(self.folder / f"checkpoint-{number}")

    def _discard(self, folder: Path) -> None:
        doomed = self.folder / f".draft-{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):
            # Renamed first, so that a checkpoint that is only partly removed does not count as a damaged one.
            folder.rename(doomed)
            _remove(doomed)


def _ours(entry: Path) -> bool:
    return bool(_NAME.fullmatch(entry.name) or _DRAFT.fullmatch(entry.name)) and _is_folder(entry)


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _remove(folder: Path) -> None:
    """Remove a folder of the store, but not a link. The next `begin` tries again if that fails."""
    assert shutil.rmtree.avoids_symlink_attacks
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def _state_of(
    draft: Path,
    run_id: bytes,
    layout_digest: bytes,
    facts: Mapping[str, Any],
    synced: Mapping[Path, tuple[str, int]],
) -> dict[str, Any]:
    """Sync and hash the files of a draft, and return the body of its state.json.

    `synced`: files that are synced and hashed already. Raises OSError, also for a file that is not plain."""
    files = {}
    for path in sorted(draft.iterdir()):
        if not is_plain_name(path.name):
            raise OSError(None, f"the trainer wrote a file of a strange name: {path.name!r}")
        if path in synced:
            digest, nbytes = synced[path]
        else:
            digest, nbytes = digest_of(path)
            sync(path)
        files[path.name] = {"bytes": nbytes, "blake3": digest}
    assert len(files) <= MAX_FILES, len(files)
    body = {
        "format": FORMAT,
        "run_id": run_id.hex(),
        "layout_digest": layout_digest.hex(),
        "facts": dict(facts),
        "files": files,
    }
    plain: dict[str, Any] = json.loads(json.dumps(body))
    return plain


def _nbytes(state: dict[str, Any]) -> int:
    return sum(entry["bytes"] for entry in state["files"].values())


def _own_state(folder: Path, run_id: bytes, layout_digest: bytes) -> dict[str, Any]:
    """Read the state.json of a folder. Raises OSError, and SkippedCheckpoint if it is not of this run and layout."""
    if not _is_folder(folder):
        raise SkippedCheckpoint("not a folder (a link is not followed)")
    try:
        raw = read_small(folder / STATE, MAX_STATE_BYTES)
    except FileNotFoundError as error:
        raise SkippedCheckpoint("state.json is missing") from error
    state = unseal(raw)
    if state["run_id"] != run_id.hex():
        raise SkippedCheckpoint(f"belongs to another run ({state['run_id'][:16]})")
    if state["layout_digest"] != layout_digest.hex():
        raise SkippedCheckpoint("has another layout of tensors")
    return state


def verified_checkpoint(folder: Path, run_id: bytes, layout_digest: bytes) -> Checkpoint:
    """Return the checkpoint in a folder after checking every digest. Raises CheckpointError, which names the file."""
    try:
        return _validated(folder, run_id, layout_digest)
    except (SkippedCheckpoint, OSError, SafetensorError) as error:
        raise CheckpointError(f"the checkpoint {folder} cannot be used: {error}") from error


def _validated(folder: Path, run_id: bytes, layout_digest: bytes) -> Checkpoint:
    """Return the checkpoint in a folder, with all files checked.

    Raises SkippedCheckpoint, OSError or SafetensorError."""
    state = _own_state(folder, run_id, layout_digest)
    for name, entry in state["files"].items():
        _check_file(folder, name, entry)
    _check_tensors(folder / OUTER)
    return Checkpoint(folder, state["facts"], _nbytes(state))


def _check_file(folder: Path, name: str, entry: dict[str, Any]) -> None:
    try:
        digest, nbytes = digest_of(folder / name)
    except FileNotFoundError as error:
        raise SkippedCheckpoint(f"{name} is missing") from error
    if nbytes != entry["bytes"]:
        raise SkippedCheckpoint(f"{name} is torn: {nbytes} of {entry['bytes']} bytes")
    if digest != entry["blake3"]:
        raise SkippedCheckpoint(f"{name} is damaged: its digest is {digest[:16]}…, not {entry['blake3'][:16]}…")


def _check_tensors(path: Path) -> None:
    with safe_open(path, framework="pt") as file:
        shapes = []
        for name in ("outer_params", "outer_momentum"):
            if name not in file.keys():  # noqa: SIM118 - not a mapping
                raise SkippedCheckpoint(f"{path.name} lacks {name}")
            part = file.get_slice(name)
            shapes.append(part.get_shape())
            if part.get_dtype() != "F32" or len(shapes[-1]) != 1:
                raise SkippedCheckpoint(f"{name} is not a flat fp32 tensor")
    if shapes[0] != shapes[1]:
        raise SkippedCheckpoint("outer_params and outer_momentum differ in length")
