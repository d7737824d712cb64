"""Fetches and opens the files of a run (config, layout, tokenizer, index), from which a joiner knows model and data.
See `peer.state.artifacts` for the transfer."""

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
    """The part of an `ArtifactFetcher` that a joiner uses."""

    async def fetch(self, ref: ArtifactRef, timeout_s: float, progress: WaitProgress, what: str) -> Path:
        """Return the file of an artifact. Fetches it if it is not in the cache. `timeout_s`: seconds without a piece
        after which the fetch fails. `what`: name of the file for the user."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """The opened files of a run on this disk. A field is None when the run has no such file."""

    tensors: tuple[TensorSpec, ...] | None = None
    """Tensors of a foreign model, in its own order. None: the model is the built-in one."""
    config: Path | None = None
    buffers: Path | None = None
    """Buffers of a foreign model that its config does not determine."""
    tokenizer: Path | None = None
    index: TokenIndex | None = None
    index_file: Path | None = None


def files_to_train(manifest: Manifest) -> dict[str, ArtifactRef]:
    """Return the artifacts that training on this machine needs, by name. Token shards are encoded already, so the
    tokenizer is needed only for own texts."""
    return {
        name: ref
        for name, ref in needed_artifacts(manifest).items()
        if name != "tokenizer" or manifest.data.kind == "text"
    }


class RunFileStore:
    """Fetches the files of a run, and protects them from eviction until it is closed."""

    def __init__(self, cache: ArtifactCache, fetcher: FileFetcher, offload: Offload) -> None:
        self._cache = cache
        self._fetcher = fetcher
        self._offload = offload
        self._held = contextlib.ExitStack()

    async def obtain(self, manifest: Manifest, patience_s: float, progress: WaitProgress) -> RunFiles:
        """Fetch the files that training needs, and inspect foreign ones in a child process. `patience_s`: seconds
        without a piece after which a fetch fails.

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
        """Fetch the files that only using the trained model needs. A file that no peer gives is skipped."""
        train = files_to_train(manifest)
        for name, ref in needed_artifacts(manifest).items():
            if name not in train:
                with contextlib.suppress(PeerError):
                    self._held.enter_context(self._cache.holding(ref.digest))
                    await self._fetcher.fetch(ref, patience_s, ignore_progress, f"the run's {name}")

    def close(self) -> None:
        """Allow the cache to evict the files."""
        self._held.close()


def opened(manifest: Manifest, found: dict[str, Path]) -> RunFiles:
    """Read the files whose content the daemon itself needs: layout and index. Raises DataError and ManifestError."""
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
    """Have a child process open the foreign files before this process or the trainer does, because a hostile file may
    crash the library that reads it.

    `trained`: the model will be trained here, and is refused if it attends to later tokens or fails on the run's
    windows. Raises ModelError."""
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
    """Raise ManifestError for a file beside the manifest whose bytes differ from the manifest's digest and size."""
    try:
        digest, size = digest_of(file)
    except OSError as error:
        raise ManifestError(f"cannot read the run's {name} {file}: {error.strerror}", COPY_AGAIN) from error
    if (digest, size) != (ref.digest, ref.size):
        raise ManifestError(f"the run's {name} {file} is damaged: its bytes are not those of its name", COPY_AGAIN)


def operator_files(
    manifest_path: Path, manifest: Manifest, data: Path | None, say: Say
) -> tuple[RunFiles, dict[str, Path]]:
    """Return the opened files of a run on its operator's disk, and the path of every file that joiners may fetch, by
    digest.

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
