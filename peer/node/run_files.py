"""A daemon's handling of the files of its run: fetching, caching, and serving them to others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from peer.aio.threads import LowPriorityThread
from peer.joining.artifacts import RunFiles, RunFileStore
from peer.node.open import OpenNode
from peer.node.shard_supply import ShardSupply
from peer.observe import events
from peer.observe.progress import WaitProgress
from peer.run.manifest import Manifest
from peer.run.options import PeerOptions
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher
from peer.state.artifacts.holders import Peers
from peer.state.artifacts.server import ArtifactServer


class DaemonFiles:
    """The files of one daemon's run. `close` must be awaited at the end."""

    def __init__(
        self,
        node: OpenNode,
        options: PeerOptions,
        peers: Peers,
        work: LowPriorityThread,
        emit: Callable[[events.Event], None],
    ) -> None:
        """`peers`: returns the known records. `work`: thread that hashes, reads and writes."""
        self._options = options
        self._emit = emit
        self._cache = ArtifactCache(node.local.home.artifacts, options.cache_disk)
        self._fetcher = ArtifactFetcher(node.transport, peers, self._cache, offload=work, report=node.local.say)
        self._store = RunFileStore(self._cache, self._fetcher, work)
        self._supply: ShardSupply | None = None
        self._rest: asyncio.Task[None] | None = None
        self.artifact_server = ArtifactServer(self._cache, {}, work.start)
        """Serves the fetched files to other peers."""

    async def obtain(self, manifest: Manifest, progress: WaitProgress) -> RunFiles:
        """Fetch the files that are needed before the state, and begin to fetch the rest. Raises as
        `RunFileStore.obtain`."""
        wait_s = self._options.wait_s
        files = await self._store.obtain(manifest, wait_s, progress)
        self._rest = asyncio.create_task(self._store.obtain_rest(manifest, wait_s), name="files to use the model")
        return files

    def supply(self, files: RunFiles) -> ShardSupply | None:
        """Return the source of token shards. None: the run has none."""
        if files.index is not None:
            folder = self._options.data_dir
            self._supply = ShardSupply(files.index, self._fetcher, self._cache, self._emit, folder)
        return self._supply

    async def close(self) -> None:
        """Stop fetching. Afterwards the cache may evict the files."""
        if self._rest is not None:
            self._rest.cancel()
            await asyncio.wait({self._rest})
        if self._supply is not None:
            await self._supply.close()
        self._store.close()
