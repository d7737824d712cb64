"""The files of a run that a joiner fetches before it can know model and data: see `peer.state.artifacts`."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from peer.aio.threads import Offload
from peer.errors import DataError, ManifestError, ModelError, PeerError
from peer.observe.progress import WaitProgress, ignore_progress
from peer.ports.console import Say
from peer.protocol.model.layout import TensorSpec
from peer.run.files.artifact import ArtifactRef
from peer.run.files.artifact_folder import artifact_files, folder_of, needed_artifacts, read_tensors
from peer.run.files.token_folder import shard_files
from peer.run.files.token_index import TokenIndex, read_index
from peer.run.manifest import Manifest
from peer.state.artifacts.cache import ArtifactCache
from peer.state.files import digest_of
from peer.trainer.sandbox import inspect_config, inspect_tokenizer

COPY_AGAIN = "Copy the folder from where the manifest was made, or make both again: peer manifest new."


class FileFetcher(Protocol):
    """The part of an `ArtifactFetcher` that a joiner needs."""

    async def fetch(self, ref: ArtifactRef, timeout_s: float, progress: WaitProgress, what: str) -> Path:
        """Return the file of an artifact, fetched if need be."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The files of a run on this disk, as far as the run has them."""

    tensors: tuple[TensorSpec, ...] | None = None
    """Of a foreign model, in its own order. None: the manifest tells the model."""
    config: Path | None = None
    buffers: Path | None = None
    """Buffers of a foreign model that its config does not give."""
    tokenizer: Path | None = None
    index: TokenIndex | None = None
    index_file: Path | None = None


def files_to_train(manifest: Manifest) -> dict[str, ArtifactRef]:
    """Return the artifacts that training here needs. Shards are tokens already, so only own texts need a tokenizer."""
    return {
        name: ref
        for name, ref in needed_artifacts(manifest).items()
        if name != "tokenizer" or manifest.data.kind == "text"
    }


class RunFileStore:
    """Fetches the files of a run, and keeps them from being evicted until it is closed."""

    def __init__(self, cache: ArtifactCache, fetcher: FileFetcher, offload: Offload) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._offload = offload
        self._held = contextlib.ExitStack()

    async def obtain(self, manifest: Manifest, patience_s: float, progress: WaitProgress) -> RunFiles:
        """Fetch what this machine needs to train, and look at it in a process of its own.

        Raises ArtifactMissing, CacheTooSmall, DataError, HomeUnusable, ManifestError and ModelError."""
        found: dict[str, Path] = {}
        for name, ref in files_to_train(manifest).items():
            self._held.enter_context(self._cache.holding(ref.digest))
            found[name] = await self._fetcher.fetch(ref, patience_s, progress, f"the run's {name}")
        files = await self._offload(lambda: opened(manifest, found))
        if files.config is not None or files.tokenizer is not None:
            progress("looking at the run's model and tokenizer", 0.0, None, "s")
            await asyncio.to_thread(lambda: check_foreign(manifest, files, trained=True))
        return files

    async def obtain_rest(self, manifest: Manifest, patience_s: float) -> None:
        """Fetch the files that using the run's model takes, and training here does not. What nobody gives is left."""
        train = files_to_train(manifest)
        for name, ref in needed_artifacts(manifest).items():
            if name not in train:
                with contextlib.suppress(PeerError):
                    self._held.enter_context(self._cache.holding(ref.digest))
                    await self._fetcher.fetch(ref, patience_s, ignore_progress, f"the run's {name}")

    def close(self) -> None:
        """Let the cache have its files back."""
        self._held.close()


def opened(manifest: Manifest, found: dict[str, Path]) -> RunFiles:
    """Read the files whose content the daemon itself needs. Raises DataError and ManifestError."""
    layout, index = found.get("layout"), found.get("index")
    return RunFiles(
        tensors=None if layout is None else tuple(read_tensors(manifest, layout)),
        config=found.get("config"),
        buffers=found.get("buffers"),
        tokenizer=found.get("tokenizer"),
        index=None if index is None else _read_index(index),
        index_file=index,
    )


def check_foreign(manifest: Manifest, files: RunFiles, *, trained: bool) -> None:
    """Have a child process open the foreign files before this process or the trainer does.

    `trained`: the model is to be trained, and refused if it sees later tokens or fails with the run's windows. Raises
    ModelError."""
    if files.config is not None:
        context = manifest.train.context if trained else 0
        found = inspect_config(files.config, manifest.model.parameters, context=context, buffers=files.buffers)
        if list(found.tensors) != list(files.tensors or ()):
            raise ModelError(
                "the model that transformers makes of the run's config here differs from the run's layout",
                "Install the version of transformers that the operator used, or ask the operator.",
            )
    if files.tokenizer is not None:
        size = inspect_tokenizer(files.tokenizer).vocab_size
        if size > manifest.tokenizer.vocab_size:
            raise ModelError(
                f"the run's tokenizer has {size:,} tokens, its manifest names {manifest.tokenizer.vocab_size:,}",
                "Ask the operator of the run.",
            )


def _read_index(file: Path) -> TokenIndex:
    try:
        return read_index(file)
    except OSError as error:
        raise DataError(f"cannot read the data index {file}: {error.strerror}", "Start again.") from error


def _check_own(name: str, file: Path, ref: ArtifactRef) -> None:
    """Raise ManifestError for a file beside the manifest that is not what the manifest names."""
    try:
        digest, size = digest_of(file)
    except OSError as error:
        raise ManifestError(f"cannot read the run's {name} {file}: {error.strerror}", COPY_AGAIN) from error
    if (digest, size) != (ref.digest, ref.size):
        raise ManifestError(f"the run's {name} {file} is damaged: its bytes are not those of its name", COPY_AGAIN)


def operator_files(
    manifest_path: Path, manifest: Manifest, data: Path | None, say: Say
) -> tuple[RunFiles, dict[str, Path]]:
    """Return the files of a run on its operator's disk, and all that joiners may fetch, by digest.

    `data`: a folder of token shards. Raises DataError, and ManifestError when a file of the run is missing."""
    found = artifact_files(manifest_path)
    wanted = needed_artifacts(manifest)
    if missing := [name for name, ref in wanted.items() if ref.digest not in found]:
        folder = folder_of(manifest_path)
        raise ManifestError(
            f"{folder} does not hold the run's {', '.join(missing)}",
            COPY_AGAIN,
        )
    own = {name: found[ref.digest] for name, ref in wanted.items()}
    for name, ref in wanted.items():
        _check_own(name, own[name], ref)
    files = opened(manifest, own)
    if files.index is not None:
        shards = {} if data is None else shard_files(files.index, data)
        total = len(files.index.train) + len(files.index.holdout)
        say(f"token shards: {len(shards)} of {total} are served here" + ("" if data else " (--data DIR serves them)"))
        if data is not None and not shards:
            raise DataError(
                f"{data} holds no shard of this run", "Give --data the folder that the manifest was made of."
            )
        found = {**found, **shards}
    return files, found
