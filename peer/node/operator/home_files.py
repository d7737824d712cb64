"""Copies the files of a run into the home of its operator's node, to the places where any peer has them. The node's
home is then a source of the model like any other."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path

from peer.errors import CacheTooSmall
from peer.joining.artifacts import RunFiles
from peer.ports.console import Say
from peer.protocol.messages import PIECE_BYTES, PeerId
from peer.run.files.artifact import ArtifactRef
from peer.run.files.artifact_folder import needed_artifacts
from peer.run.files.token_index import shard_bytes
from peer.run.home import RunFolder
from peer.run.manifest import SignedManifest, store_signed
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.draft import ArtifactOffer


def wanted(signed: SignedManifest, files: RunFiles) -> list[ArtifactRef]:
    """Return the artifacts that using the model needs: the small files, and the first hold-out shard."""
    refs = list(needed_artifacts(signed.manifest).values())
    if files.index is not None and files.index.holdout:
        first = files.index.holdout[0]
        refs.append(ArtifactRef(digest=first.digest, size=shard_bytes(files.index, first)))
    return refs


def fill_home(
    folder: RunFolder,
    cache: ArtifactCache,
    signed: SignedManifest,
    files: RunFiles,
    sources: Mapping[str, Path],
    say: Say,
) -> None:
    """Copy manifest and artifacts to their places in the home, as far as the operator has them. Copies that fail are
    reported.

    Runs in a thread. Raises HomeUnusable."""
    store_signed(folder.manifest, signed)
    for ref in wanted(signed, files):
        source = sources.get(ref.digest)
        if source is None or cache.check(ref.digest, ref.size) is not None:
            continue
        try:
            copied = _copied(cache, ref, source)
        except (CacheTooSmall, OSError) as error:
            say(f"{source} is not copied into the home: {error}")
            continue
        if not copied:
            say(f"{source} is not copied into the home: its bytes are not those of its name")


def hold(cache: ArtifactCache, signed: SignedManifest, files: RunFiles) -> contextlib.ExitStack:
    """Protect these artifacts from eviction until the returned stack is closed."""
    held = contextlib.ExitStack()
    for ref in wanted(signed, files):
        held.enter_context(cache.holding(ref.digest))
    return held


def _copied(cache: ArtifactCache, ref: ArtifactRef, source: Path) -> bool:
    """Copy a file into the cache. Return whether its bytes are those of the artifact. Raises OSError, CacheTooSmall."""
    draft = cache.draft(ref)
    if draft is None:
        return True
    with contextlib.closing(draft), source.open("rb") as file:
        draft.clear()
        offer = ArtifactOffer(PeerId(""), ref)  # no donor: the file is the operator's own
        for number, nbytes in enumerate(draft.sizes):
            data = file.read(min(nbytes, PIECE_BYTES))
            if len(data) != nbytes:
                return False
            draft.store(number, offer, data)
            draft.place(number, offer, data)
        return cache.finish(draft) is not None
