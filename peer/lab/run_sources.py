"""Finds the files of a user's own manifest, as `peer bootstrap` does, for tools that run it on this machine.

A tool derives its own manifest, with another seed, length or operator. The files named in it stay the same: they are
taken from beside the user's manifest, and token shards from a folder made by `peer data build`. Everything is checked
before any process starts, because a bootstrap node or peer that lacks a file reports it only in its log."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from peer.errors import DataError, ManifestError
from peer.identity import Identity
from peer.joining.artifacts import RunFiles, operator_files
from peer.joining.preflight import check_training_loop
from peer.protocol.policy.amendments import Amendment, Change
from peer.run.files.artifact_folder import folder_of, needed_artifacts
from peer.run.files.token_folder import shard_files
from peer.run.files.token_index import TokenIndex, shard_file
from peer.run.manifest import Manifest, SignedManifest, load_signed, parse_manifest, signature_path
from peer.run.packages import check_packages
from peer.run.statements.files import beside, load, write_statements
from peer.run.statements.kinds import AMENDMENT
from peer.run.statements.log import StatementLog


@dataclass(frozen=True, slots=True)
class BaseManifest:
    """A manifest that a tool runs with some values changed. `path` None: the built-in manifest."""

    text: str
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSources:
    """The files of a run on the operator's disk. Empty for the built-in model and data, which need none."""

    files: RunFiles = field(default_factory=RunFiles)
    artifacts: Mapping[str, Path] = field(default_factory=dict)
    """Digest -> file: the artifacts named in the manifest, and its first state."""
    shards: Path | None = None
    """The folder of token shards. None: the run uses none."""
    amendments: tuple[Amendment, ...] = ()
    """The amendments beside the manifest that can apply to another run."""
    left_out: tuple[str, ...] = ()
    """Sentences for people about the files beside the manifest that are not applied."""


def find_sources(base: BaseManifest, manifest: Manifest, shards: Path | None, *, state: bool = False) -> RunSources:
    """Find all files that a manifest derived from `base` names.

    shards: the given folder of token shards. state: True if the first state comes from elsewhere.

    Raises ManifestError, DataError, StateError or ModelError, each with a fix, if a file is missing or damaged."""
    check_packages(manifest)
    check_training_loop(manifest, attached=False)
    wanted = {ref.digest for ref in needed_artifacts(manifest).values()}
    wanted |= {manifest.init} if manifest.init and not state else set()
    if base.path is None:
        assert not wanted, "the built-in manifest names no files"
        return RunSources()
    if manifest.data.kind == "tokens" and shards is None:
        raise DataError(
            f"{base.path} trains on token shards, and no folder with them was given",
            "Add --data with the folder of `peer data build` that the manifest was made of.",
        )
    files, found = operator_files(base.path, manifest, shards, lambda line: None)
    if manifest.init in wanted and manifest.init not in found:
        raise ManifestError(
            f"{folder_of(base.path)} does not hold the state {manifest.init[:16]}… that the run begins from",
            "Put its file there again, or give the checkpoint folder that holds it with --state.",
        )
    if files.index is not None and shards is not None:
        _check_shards(files.index, shards)
    amendments, left_out = _amendments_of(base.path)
    return RunSources(
        files=files,
        artifacts={digest: found[digest] for digest in sorted(wanted)},
        shards=shards if manifest.data.kind == "tokens" else None,
        amendments=amendments,
        left_out=left_out,
    )


def _check_shards(index: TokenIndex, folder: Path) -> None:
    """Raise DataError unless the folder holds all shards of the index. No other process on this machine could serve
    them."""
    here = shard_files(index, folder)
    missing = [shard_file("train", number) for number, one in enumerate(index.train) if one.digest not in here]
    missing += [shard_file("holdout", number) for number, one in enumerate(index.holdout) if one.digest not in here]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise DataError(
            f"{folder} lacks shards of this run, or they have another length: {', '.join(missing[:3])}{more}",
            "Name the whole folder that the manifest was made of, or build it again: peer data build",
        )


def _amendments_of(path: Path) -> tuple[tuple[Amendment, ...], tuple[str, ...]]:
    """Return the operator's amendments that can apply to another run of the same manifest, and why the others cannot.

    Raises ManifestError for a damaged file."""
    file = beside(path, AMENDMENT)
    if not file.exists():
        return (), ()
    if not signature_path(path).exists():
        return (), (f"{file.name}: {path.name} is not signed, so nobody can have amended it",)
    signed = load_signed(path)
    log = StatementLog(signed.run_id, signed.manifest.operator)
    load(file, log)
    found = log.amendments
    kept = tuple(one for one in found if one.change is not Change.REFOUND)
    numbers = [str(one.number) for one in found if one.change is Change.REFOUND]
    return kept, (f"amendment {', '.join(numbers)} of {file.name}: its state is of the real run",) if numbers else ()


def write_beside(sources: RunSources, signed: SignedManifest, manifest: Path, operator: Identity) -> None:
    """Write the files beside the derived and signed manifest, where `peer bootstrap` looks for them.

    Artifacts are hard-linked where possible, because first weights may be large. Raises ManifestError."""
    if sources.artifacts:
        folder = folder_of(manifest)
        try:
            folder.mkdir()
            for digest, source in sources.artifacts.items():
                try:
                    os.link(source, folder / digest)
                except OSError:  # the folder is on another file system, or hard links are not supported
                    shutil.copyfile(source, folder / digest)
        except OSError as error:
            raise ManifestError(f"cannot write {folder}: {error.strerror}", "Free some space there.") from error
    if sources.amendments:
        log = StatementLog(signed.run_id, operator.peer_id)
        for one in sources.amendments:
            fields = {"value": one.value, "low": one.low, "high": one.high, "peer": one.peer}
            log.amend(operator, one.round, one.change, one.reason, **fields)
        write_statements(beside(manifest, AMENDMENT), log.chain)


def overridden_values(base: BaseManifest, text: str) -> list[str]:
    """Return `key = value (was value)` for each value in which the derived manifest differs from the user's own.

    Empty for the built-in manifest. `operator` is ignored, because the tool signs the derived manifest with its own
    key."""
    if base.path is None:
        return []
    before, after = (_flat(parse_manifest(one.encode())) for one in (base.text, text))
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key) and key != "operator"]
    return [f"{key} = {_told(after.get(key))} (was {_told(before.get(key))})" for key in changed]


def _flat(manifest: Manifest) -> dict[str, object]:
    found = dict[str, object]()
    for name, value in manifest.model_dump().items():
        found |= {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
    return found


def _told(value: object) -> str:
    match value:
        case None:
            return "the preset's"
        case float() if value.is_integer():
            return str(int(value))
        case "":
            return '""'
    return str(value)


def override_lines(base: BaseManifest, text: str, sources: RunSources) -> list[str]:
    """Return sentences for people about what differs from the user's own manifest. Empty for the built-in manifest."""
    if base.path is None:
        return []
    changed = overridden_values(base, text)
    said = f"other than in the file: {', '.join(changed)}" if changed else "with all of its values"
    named = [f"{base.path} is played {said}"]
    if sources.amendments:
        named.append(f"amendments of the file's run are played, too: {len(sources.amendments)}")
    return named + [f"not played: {one}" for one in sources.left_out]
