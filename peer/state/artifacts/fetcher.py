"""Fetches artifacts from the peers that hold them into the cache.

Pieces of an artifact are fetched from several donors at once (`peer.state.transfer.download`). The digest of the whole
artifact is checked before it is returned.

On failure: a lost donor is not used for `REST_S`. Stored pieces are retained, even when the process is killed. If the
bytes turn out wrong, the artifact is fetched again from one donor at a time. Comparing the attempts then shows which
donor lied, and that peer is never asked again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from peer.aio.events import Signal
from peer.aio.tasks import background_task
from peer.aio.threads import Offload, inline
from peer.errors import ArtifactMissing
from peer.observe.progress import WaitProgress, ignore_progress
from peer.protocol.messages import PIECE_BYTES, PeerId, PeerRecord
from peer.protocol.policy.donors import DonorRates
from peer.protocol.wire.payload import Arrived
from peer.run.files.artifact import ArtifactRef
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.draft import ArtifactDraft, ArtifactOffer, Origin
from peer.state.artifacts.holders import ArtifactTransport, HolderSearch, Peers
from peer.state.transfer.download import Download, Outcome, TransferFlow

MOST_DONORS = 6
"""Most donors of one artifact at the same time. Each has one piece in flight."""
REST_S = 10.0
"""Seconds after which a lost donor is used again."""
SEARCH_S = 1.0
"""Seconds between the first two searches for donors. The pause doubles up to `LONGEST_SEARCH_S`."""
LONGEST_SEARCH_S = 8.0
POLL_S = 0.25
"""Seconds between two checks whether another process or task has completed the artifact."""
RECHECK_S = 1.0
"""Seconds between two such checks while no peer holds the artifact."""
MOST_STARTS = 8
"""Number of attempts that may extend the deadline, so that liars with ever new identities cannot extend it for ever."""
PROGRESS_BYTES = 2**20
"""Bytes of incomplete pieces that extend the deadline, because a slow home needs long for a whole piece."""
MOST_REASONS = 3
"""Most peers that an error names with their reasons."""


class ArtifactFetcher:
    """Fetches artifacts for one daemon. `report`: is called with messages for a person."""

    def __init__(
        self,
        transport: ArtifactTransport,
        peers: Peers,
        cache: ArtifactCache,
        *,
        offload: Offload = inline,
        report: Callable[[str], None] = lambda text: None,
        rng: random.Random | None = None,
    ) -> None:
        self._transport = transport
        self._cache = cache
        self._offload = offload
        self._report = report
        self._search = HolderSearch(transport, peers, rng or random.Random())
        self._rates = DonorRates()
        self._resting: dict[PeerId, float] = {}
        self.liars: dict[PeerId, str] = {}
        """Peer that sent wrong bytes -> the artifact that they belonged to, for a person."""

    async def query(self, refs: Sequence[ArtifactRef]) -> None:
        """Ask some peers which of these artifacts they hold, so that a `fetch` soon after needs no search."""
        await self._search.query([bytes.fromhex(ref.digest) for ref in refs])

    def holders(self, ref: ArtifactRef) -> list[PeerId]:
        """Return the peers that hold an artifact by their own answers, without the liars."""
        return [r.peer_id for r in self._search.holders(bytes.fromhex(ref.digest)) if r.peer_id not in self.liars]

    async def fetch(
        self,
        ref: ArtifactRef,
        timeout_s: float,
        progress: WaitProgress = ignore_progress,
        what: str = "a file of the run",
    ) -> Path:
        """Return the file of an artifact, from the cache or else from other peers.

        `what`: name of the artifact, for a person. The cache may delete the file later unless the caller protects it
        with `ArtifactCache.holding`. Raises ArtifactMissing after `timeout_s` seconds without a piece or
        `PROGRESS_BYTES` of one, CacheTooSmall, and HomeUnusable."""
        with self._cache.holding(ref.digest):
            was_here = self._cache.has(ref.digest)
            if (path := await self._check(ref)) is not None:
                return path
            if was_here and not self._cache.has(ref.digest):
                self._report(f"{what} was damaged on this disk, and is fetched again")
            limit = asyncio.timeout(timeout_s)
            fetch = _Fetch(ref, what, timeout_s, progress, limit)
            try:
                async with limit:
                    return await self._fetch(fetch)
            except TimeoutError:
                if not limit.expired():
                    raise
                raise ArtifactMissing(
                    f"no piece of {what} ({ref.digest[:16]}, {ref.size} bytes) came within {timeout_s:.0f} s: "
                    f"{self._failure_reasons(fetch)}"
                ) from None

    async def _check(self, ref: ArtifactRef) -> Path | None:
        return await self._offload(partial(self._cache.check, ref.digest, ref.size))

    async def _fetch(self, fetch: _Fetch) -> Path:
        self._cache.require_fit(fetch.ref)
        while True:
            # Making room for the draft deletes other files, so a peer that holds the artifact has to be found first.
            if (path := await self._await_holder(fetch)) is not None:
                return path
            draft = await self._draft(fetch.ref)
            if draft is not None:
                try:
                    return await self._complete(fetch, draft)
                finally:
                    draft.close()
            fetch.note_other_process()
            await asyncio.sleep(POLL_S)
            if (path := await self._check(fetch.ref)) is not None:
                return path

    async def _await_holder(self, fetch: _Fetch) -> Path | None:
        """Wait until a peer that holds the artifact is found. Then return None.

        Returns the file if another process completes it first."""
        found = Signal()

        def note(holder: PeerRecord) -> None:
            if holder.peer_id not in self.liars:
                found.set()

        async with background_task(self._recruit(fetch, note)):
            while not await found.wait_for(RECHECK_S):
                if (path := await self._check(fetch.ref)) is not None:
                    return path
        return None

    async def _draft(self, ref: ArtifactRef) -> ArtifactDraft | None:
        """Open the draft in a thread. If this task is cancelled meanwhile, the draft is closed again."""
        opening = asyncio.ensure_future(self._offload(partial(self._cache.draft, ref)))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            await asyncio.wait({opening})
            if not opening.cancelled() and opening.exception() is None and (draft := opening.result()) is not None:
                draft.close()
            raise

    # -- from donors -------------------------------------------------------------------------------------------------

    async def _complete(self, fetch: _Fetch, draft: ArtifactDraft) -> Path:
        """Fetch until the draft is complete and its digest is right. Return the artifact's file."""
        suspects: list[dict[int, Origin]] = []
        while True:
            while not draft.complete:
                await self._attempt(fetch, draft, alone=bool(suspects))
            fetch.report_progress(draft, TransferFlow())
            origins = draft.origins
            if (path := await self._offload(partial(self._cache.finish, draft))) is not None:
                for wrong in suspects:
                    self._exclude_liars(fetch, wrong, origins)
                return path
            self._report(f"{fetch.what} came with wrong bytes, and is fetched again")
            donors = {origin.donor for origin in origins.values()}
            if len(donors) == 1 and (only := donors.pop()) is not None:
                self._exclude(fetch, only)
            suspects.append(origins)
            fetch.restart()
            await self._offload(draft.clear)

    async def _attempt(self, fetch: _Fetch, draft: ArtifactDraft, *, alone: bool) -> None:
        """Fetch until the draft is complete or no donor is left. `alone`: fetch all pieces from a single donor."""
        if alone and draft.held:
            await self._offload(draft.clear)
        outcome, first = Outcome(), Signal()
        changed = partial(fetch.report_progress, draft)
        transfer = Download(_ArtifactPieces(self._transport), draft, self._rates, outcome, changed, self._offload)

        def add(donor: PeerRecord) -> None:
            peer, places = donor.peer_id, 1 if alone else MOST_DONORS
            resting = self._resting.get(peer, 0.0) > asyncio.get_running_loop().time()
            full = len(transfer.donors) >= places or (alone and first.is_set())
            if not full and not resting and peer not in self.liars and peer not in outcome.left:
                transfer.add(donor, ArtifactOffer(peer, fetch.ref))
                first.set()

        async with background_task(self._recruit(fetch, add)):
            await first.wait()
            await transfer.run()
        now = asyncio.get_running_loop().time()
        self._resting = {peer: until for peer, until in self._resting.items() if until > now}
        for peer, why in outcome.left.items():
            self._resting[peer] = now + REST_S
            self._search.record_failure(fetch.digest, peer, why)
        for peer in outcome.wrong:
            self._exclude(fetch, peer)

    async def _recruit(self, fetch: _Fetch, add: Callable[[PeerRecord], None]) -> None:
        """Search for donors until cancelled, and call `add` with each one found."""
        pause = SEARCH_S
        while True:
            for donor in self._search.holders(fetch.digest):
                add(donor)
            await self._search.query([fetch.digest], add)
            fetch.report_waiting()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_SEARCH_S)

    # -- liars -------------------------------------------------------------------------------------------------------

    def _exclude_liars(self, fetch: _Fetch, wrong: dict[int, Origin], right: dict[int, Origin]) -> None:
        """Exclude the donors whose pieces of a wrong attempt differ from the right ones."""
        for number, origin in wrong.items():
            if origin.donor is not None and origin.digest != right[number].digest:
                self._exclude(fetch, origin.donor)

    def _exclude(self, fetch: _Fetch, peer: PeerId) -> None:
        if peer not in self.liars:
            self.liars[peer] = f"it gave wrong bytes of {fetch.what}"
            self._report(f"{peer} gave wrong bytes of {fetch.what}: it is not asked again")

    def _failure_reasons(self, fetch: _Fetch) -> str:
        """Return why no peer served the artifact, for a person."""
        reasons = self._search.refusal_reasons(fetch.digest) | self.liars
        shown = [f"{peer}: {why}" for peer, why in list(reasons.items())[:MOST_REASONS]]
        if (more := len(reasons) - MOST_REASONS) > 0:
            shown.append(f"{more} more peers do not give it")
        return "; ".join(shown) or fetch.other or "nobody of this run answers yet"


class _Fetch:
    """The state of one call of `fetch`: its artifact, its progress and its deadline."""

    def __init__(
        self, ref: ArtifactRef, what: str, timeout_s: float, progress: WaitProgress, limit: asyncio.Timeout
    ) -> None:
        """`limit`: the deadline, which progress extends by `timeout_s`."""
        self.ref = ref
        self.digest = bytes.fromhex(ref.digest)
        self.what = what
        self.other = ""
        """A sentence for the error while another process is fetching the artifact. Empty: no other process is."""
        self._timeout_s = timeout_s
        self._progress = progress
        self._limit = limit
        self._done = 0
        self._here = 0
        """The most bytes that had arrived so far, including those of incomplete pieces."""
        self._starts = 0
        self._since = asyncio.get_running_loop().time()

    def restart(self) -> None:
        """Reset the progress, because the bytes were wrong."""
        self._done = self._here = 0
        self._starts += 1

    def note_other_process(self) -> None:
        """Note that another process is fetching the artifact."""
        self.other = "another process of this home is fetching it"

    def report_progress(self, draft: ArtifactDraft, flow: TransferFlow) -> None:
        """Report the progress. A new piece, or `PROGRESS_BYTES` of one, extends the deadline."""
        now, done, here = asyncio.get_running_loop().time(), draft.done, draft.done + flow.arriving
        if done > self._done or here >= self._here + PROGRESS_BYTES:
            self._done, self._here, self._since = max(self._done, done), max(self._here, here), now
            if self._starts < MOST_STARTS:
                self._limit.reschedule(now + self._timeout_s)
        self._progress(f"fetching {self.what} ({flow})", here, self.ref.size, "bytes")

    def report_waiting(self) -> None:
        """Report how long the fetch has waited for a first byte."""
        if not self._here:
            waited = asyncio.get_running_loop().time() - self._since
            self._progress(f"waiting for a peer with {self.what}", waited, self._timeout_s, "s")


class _ArtifactPieces:
    """Adapts the transport of artifacts to the `PieceTransport` of a download."""

    def __init__(self, transport: ArtifactTransport) -> None:
        self._transport = transport

    async def fetch_piece(
        self, donor: PeerRecord, index: ArtifactOffer, piece: int, timeout_s: float, arrived: Arrived
    ) -> bytes:
        ref = index.ref
        nbytes = min(PIECE_BYTES, ref.size - PIECE_BYTES * piece)
        return await self._transport.fetch_artifact(donor, bytes.fromhex(ref.digest), piece, nbytes, timeout_s, arrived)
