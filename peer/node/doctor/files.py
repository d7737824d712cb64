"""The files of a run that training here needs, fetched by a guest into a folder for this once."""

from __future__ import annotations

from pathlib import Path

from peer.aio.threads import LowPriorityThread
from peer.errors import PeerError
from peer.joining.artifacts import RunFiles, RunFileStore, files_to_train
from peer.node.doctor.finding import DoctorFinding, failure, fine
from peer.node.open import OpenNode
from peer.observe.formatting import amount
from peer.observe.progress import untold
from peer.run.manifest import Manifest
from peer.run.options import CACHE_DISK
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher


async def run_files(
    node: OpenNode, manifest: Manifest, folder: Path, wait_s: float
) -> tuple[RunFiles | None, DoctorFinding]:
    """Fetch the run's files and look at them. None: they cannot be had, or cannot be used here."""
    wanted = files_to_train(manifest)
    if not wanted:
        return RunFiles(), fine("files", "the run has none")
    work = LowPriorityThread()
    cache = ArtifactCache(folder, CACHE_DISK)
    fetcher = ArtifactFetcher(node.transport, node.directory.peers, cache, offload=work, say=lambda line: None)
    store = RunFileStore(cache, fetcher, work)
    try:
        files = await store.obtain(manifest, wait_s, untold)
    except PeerError as error:
        return None, failure("files", error)
    finally:
        store.close()
        work.close()
    size = amount(sum(ref.size for ref in wanted.values()), "bytes")
    return files, fine("files", f"{', '.join(wanted)}: {size}, fetched and checked")
