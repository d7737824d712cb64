"""Examines the run through a temporary node: reaches it, fetches manifest and statements, has peers dial this machine,
and measures the line.

Every step returns findings, and stores facts for later steps and for the prediction."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from peer.aio.tasks import cancel_and_wait
from peer.aio.threads import LowPriorityThread
from peer.clock.clock_filter import OPERATOR
from peer.errors import ClockWrong, ExchangeError, JoinRefused, PeerError, RunEnded, SwarmUnreachable
from peer.joining.artifacts import RunFiles, RunFileStore, files_to_train
from peer.joining.clock import clock_from
from peer.joining.donors import fetch_state_index
from peer.joining.manifest import obtain_manifest
from peer.joining.messages import CLOCK_LIMIT_S, unreachable
from peer.joining.sequence import JoinSequence, JoinTerms, Stage, learn_terms
from peer.membership.statement_sync import StatementSync
from peer.node.doctor.finding import DoctorFinding, Severity, failure, fine, unchecked, warning
from peer.node.doctor.network import MeasuredLine, OutsideLook, clock, line, outside
from peer.node.open import OpenNode
from peer.node.port_mapping import source_address
from peer.observe.formatting import amount
from peer.observe.progress import ignore_progress
from peer.protocol.messages import PeerId, PeerRecord, Reach, Status
from peer.protocol.policy.donors import DonorPolicy
from peer.protocol.policy.fitness import Load
from peer.protocol.schedule import RoundClock
from peer.run.load import line_load
from peer.run.manifest import Manifest, SignedManifest
from peer.run.options import CACHE_DISK, PeerOptions
from peer.run.resolve import resolve
from peer.run.statements.files import known_start
from peer.run.statements.log import StatementLog
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher

LOOK_S = 0.25
OUTSIDE_S, WAYS_S = 16.0, 8.0
"""Seconds for other peers to dial this machine, and then for a router or relay to help a machine that is closed."""
CALL_S = 10.0
DOWNLOAD_S, DOWNLOAD_BYTES = 5.0, 4 * 2**20
"""Limits of a download measurement: seconds, and bytes."""
UPLOAD_S = 20.0
ASKED = 2
"""Number of peers with which the line is measured. The better result counts."""
SHIFT_S = 2.0
"""Clock error in seconds above which this process corrects its clock, so that the other checks can be made."""

Measure = Callable[[PeerRecord], Awaitable[MeasuredLine]]


Looking = JoinSequence[RunFiles, None, None]


@dataclass(slots=True)
class RunVisit:
    """One examination of a run. `node`: a temporary node. `folder`: receives the run's files."""

    node: OpenNode
    options: PeerOptions
    folder: Path
    joining: Looking = field(init=False)
    records: dict[PeerId, PeerRecord] = field(default_factory=dict)
    down: float | None = None
    """Measured download rate in bytes per second. None: not measured."""
    _log: StatementLog | None = None

    def __post_init__(self) -> None:
        self.joining = Looking(manifest=self._manifest, terms=self._terms, files=self._files)

    @property
    def manifest(self) -> Manifest | None:
        return self.joining.manifest if self.joining.has(Stage.MANIFEST) else None

    def rounds(self) -> RoundClock | None:
        """Return the clock of the run. None: there is no manifest."""
        start = 0.0 if self._log is None else known_start(self._log, None)
        return None if self.manifest is None else clock_from(self.manifest, start)

    # -- the steps of the join up to the files -------------------------------------------------------------------------

    async def _manifest(self, joining: Looking) -> SignedManifest:
        return await obtain_manifest(self.node.join_context(), self.options.wait_s)

    async def _terms(self, joining: Looking) -> JoinTerms:
        local, manifest = self.node.local, joining.manifest
        log = self._log = StatementLog.of(local.run_id, manifest, local.clock.now)
        statements = StatementSync(log, lambda event: None)
        return await learn_terms(self.node.join_context(), manifest, statements, self.options.initial_peers)

    async def _files(self, joining: Looking) -> RunFiles:
        node, work, cache = self.node, LowPriorityThread(), ArtifactCache(self.folder, CACHE_DISK)
        fetcher = ArtifactFetcher(node.transport, node.directory.peers, cache, offload=work, report=lambda line: None)
        store = RunFileStore(cache, fetcher, work)
        try:
            return await store.obtain(joining.manifest, self.options.wait_s, ignore_progress)
        finally:
            store.close()
            work.close()

    # -- findings ------------------------------------------------------------------------------------------------------

    async def reach(self) -> list[DoctorFinding]:
        """Reach the run, and fetch its manifest and statements."""
        node, wait_s = self.node, self.options.wait_s
        await self._first_answer(wait_s)
        contact = node.directory.contact()
        if contact.tried and all(contact.tried.values()):
            return [failure("run", unreachable(contact, node.local.run_id, "", wait_s))]
        self._go_by_their_clock()
        try:
            await self.joining.run(until=Stage.MANIFEST)
        except (SwarmUnreachable, JoinRefused, ClockWrong) as error:
            of_clock = self._clock()
            wrong = any(one.severity is Severity.ERROR for one in of_clock)
            return [*of_clock, unchecked("run", "this machine's clock is wrong") if wrong else failure("run", error)]
        return [*self._clock(), await self._goes_on()]

    async def _first_answer(self, wait_s: float) -> None:
        until = time.monotonic() + wait_s
        while time.monotonic() < until:
            contact = self.node.directory.contact()
            if not contact.tried or not all(contact.tried.values()):
                return
            await asyncio.sleep(LOOK_S)

    def _go_by_their_clock(self) -> None:
        """Correct this process's clock by that of the run's nodes."""
        offset = self.node.directory.contact().clock_offset_s
        if offset is not None and abs(offset) > SHIFT_S:
            self.node.local.clock.observe(offset, OPERATOR)

    def _clock(self) -> list[DoctorFinding]:
        limit = CLOCK_LIMIT_S if self.manifest is None else self.manifest.limits.max_clock_offset_s
        return [clock(self.node.directory.contact(), min(limit, CLOCK_LIMIT_S))]

    async def _goes_on(self) -> DoctorFinding:
        """Check whether the run has ended, and count the peers that train."""
        try:
            joining = await self.joining.run(until=Stage.TERMS)
        except (RunEnded, JoinRefused) as error:
            return failure("run", error)
        manifest = joining.manifest
        self.records = await self.node.directory.peers()
        train = sum(record.status is Status.TRAINING for record in self.records.values())
        begun = "" if joining.terms.start or manifest.sync.clock == "steps" else ", and it has not begun"
        told = f"{manifest.name}: {manifest.model.parameters:,} parameters, {train} peers train{begun}"
        if manifest.admission.kind == "invited" and self.options.invitation is None:
            fix = (
                "Ask the operator for an invitation of the key that `peer id show` tells, and give --invitation @FILE."
            )
            return warning("run", f"{told}; only invited peers take part", fix)
        return fine("run", told)

    async def fetch_files(self) -> tuple[RunFiles | None, DoctorFinding]:
        """Fetch the run's files and check them. None: they cannot be fetched or used here."""
        wanted = files_to_train(self.joining.manifest)
        if not wanted:
            return RunFiles(), fine("files", "the run has none")
        try:
            joining = await self.joining.run(until=Stage.FILES)
        except PeerError as error:
            return None, failure("files", error)
        size = amount(sum(ref.size for ref in wanted.values()), "bytes")
        return joining.files, fine("files", f"{', '.join(wanted)}: {size}, fetched and checked")

    async def look_from_outside(self) -> DoctorFinding:
        """Have peers of the run dial this machine, with the run's own reachability probe."""
        node = self.node
        state, until = node.reach.reachability, time.monotonic() + OUTSIDE_S
        while state.reachable() is None and time.monotonic() < until:
            await node.reach.ask_if_due(self.records.values())
            await asyncio.sleep(LOOK_S)
        if state.reachable() is False:
            await self._help_from_outside()
        return outside(
            OutsideLook(
                reachable=state.reachable(),
                why=state.why(),
                port=node.port,
                fixed_port=self.options.port != 0,
                mapped=node.mapping.carries(),
                mapping=node.mapping.report().why,
                relays=len(node.reservations.relays()),
                host=source_address(),
            )
        )

    async def _help_from_outside(self) -> None:
        """Wait a moment for the router or a relay to make this machine reachable."""
        until = time.monotonic() + WAYS_S
        while time.monotonic() < until and not self.node.mapping.carries():
            if self.node.reservations.relays() and not self.node.mapping.endpoints():
                return
            await self.node.reach.ask_if_due(self.records.values())
            await asyncio.sleep(LOOK_S)

    async def measure_line(self) -> list[DoctorFinding]:
        """Measure download, then upload, with peers of the run."""
        manifest = self.manifest
        load = None if manifest is None else line_load(manifest, resolve(manifest.sync))
        peers = DonorPolicy(momentum=False).candidates(self.records.values(), random.Random())
        able = [peer for peer in peers if peer.reach is Reach.DIRECT]
        down = await self._best("download", self._download, able, load)
        self.down = down.rate
        return [line(down, load), line(await self._best("upload", self._upload, able, load), load)]

    async def _best(
        self, direction: str, measure: Measure, peers: Sequence[PeerRecord], load: Load | None
    ) -> MeasuredLine:
        """Return the best measurement with up to `ASKED` peers. Stops at the first result that is fast enough: a slow
        result may be due to the peer's own line."""
        why, found = "no peer of the run can be dialled", list[MeasuredLine]()
        for peer in peers[: 2 * ASKED]:
            try:
                found.append(await measure(peer))
            except ExchangeError as error:
                why = str(error) if peer.peer_id in str(error) else f"{peer.peer_id}: {error}"
                continue
            if len(found) == ASKED or line(found[-1], load).severity is Severity.OK:
                break
        return max(found, key=lambda one: one.rate or 0.0, default=MeasuredLine(direction, None, 0, "", why))

    async def _upload(self, peer: PeerRecord) -> MeasuredLine:
        found = await self.node.transport.upload_test.measure(peer, UPLOAD_S)
        return MeasuredLine("upload", found.bytes_per_s, found.nbytes, peer.peer_id, cap=self.options.max_upload)

    async def _download(self, peer: PeerRecord) -> MeasuredLine:
        """Measure a download by reading a piece of the peer's state, which is discarded."""
        transport = self.node.transport
        index = await fetch_state_index(transport, peer)
        piece = max(range(len(index.pieces)), key=lambda number: index.pieces[number].nbytes)
        had, began = transport.bytes_received, time.monotonic()
        fetching = asyncio.create_task(transport.fetch_piece(peer, index, piece, DOWNLOAD_S + CALL_S))
        try:
            while (got := transport.bytes_received - had) < DOWNLOAD_BYTES and time.monotonic() - began < DOWNLOAD_S:
                if (await asyncio.wait({fetching}, timeout=0.02))[0]:
                    fetching.result()
                    break
            got, took = transport.bytes_received - had, time.monotonic() - began
        finally:
            await cancel_and_wait(fetching)
        if not got:
            return MeasuredLine("download", None, 0, peer.peer_id, f"{peer.peer_id} gave nothing for {took:.0f} s")
        return MeasuredLine("download", got / took, got, peer.peer_id, cap=self.options.max_download)
