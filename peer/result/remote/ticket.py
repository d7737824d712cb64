"""Loads the model of a run from its ticket, as a guest: nothing is announced in the directory.

The guest uses a new temporary key. In a run by invitation it also proves the invited key, which a daemon may be using
at the same time."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from peer.aio.threads import LowPriorityThread
from peer.errors import ArtifactMissing
from peer.identity import Identity, load
from peer.joining.artifacts import check_foreign, opened
from peer.joining.fetch_terms import FetchTerms
from peer.joining.manifest import obtain_manifest
from peer.joining.sequence import JoinSequence, JoinTerms, Stage, local_terms
from peer.joining.statements import catch_up
from peer.joining.weighing import StateWeighing
from peer.membership.statement_sync import StatementSync
from peer.node.open import LocalNode, OpenNode, open_node
from peer.ports.console import Say
from peer.protocol.messages import RunId
from peer.protocol.policy.donors import MEAN_DONORS
from peer.result.files import files_to_check, holdout_ref, wanted_files
from peer.result.model import GuestRequest, OpenedRun, ResultFiles, RunModel, SourceRequest
from peer.result.remote.fetch import FetchedModel, GuestFetch
from peer.result.remote.judge import HoldOutJudge
from peer.run.files.artifact import ArtifactRef
from peer.run.manifest import SignedManifest
from peer.run.options import CACHE_DISK, NodeOptions
from peer.run.resolve import resolve
from peer.run.sections import CustomSection
from peer.run.statements.log import StatementLog
from peer.run.ticket import Ticket
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.fetcher import ArtifactFetcher
from peer.transport.config import RunTerms
from peer.user_folders import expand_user

SHARED_DISK = 2**50
"""Limit in bytes for a cache that belongs to a home: effectively none, because the home's daemon enforces the
volunteer's limit."""
NO_KEY = (
    "Name the key file of the invited peer, or of the operator, with --identity-path. An invitation is of no use "
    "without the key that it was made for."
)


def ticket_model(ticket: Ticket, request: SourceRequest, say: Say) -> RunModel:
    """Fetch manifest, files and state from the peers of the run. Raises PeerError for every problem that the user can
    solve."""
    return asyncio.run(_ticket_model(ticket, request, say))


async def _ticket_model(ticket: Ticket, request: SourceRequest, say: Say) -> RunModel:
    home = Path(tempfile.mkdtemp(prefix="guest-", dir=request.scratch))
    async with _guest(ticket, home, request.guest, say) as node:
        return await _Guest(node, request, say).model()


@contextlib.asynccontextmanager
async def _guest(ticket: Ticket, home: Path, asked: GuestRequest, say: Say) -> AsyncIterator[OpenNode]:
    """Open a node that announces nothing. It uses a new key on the network, because a daemon may be using the invited
    one."""

    options = NodeOptions(home=home, initial_peers=ticket.addresses, invitation=asked.invitation)
    invited = None if asked.key is None else load(expand_user(asked.key), NO_KEY)
    local = LocalNode.of(options, RunId(ticket.run_id), say, invited or Identity.generate())
    async with open_node(local) as node:
        yield node


GuestJoin = JoinSequence[OpenedRun, FetchedModel, None]


class _Guest:
    def __init__(self, node: OpenNode, request: SourceRequest, say: Say) -> None:
        self._node = node
        self._request = request
        self._say = say
        shared = request.home
        folder = node.local.home.artifacts if shared is None else expand_user(shared).absolute() / "artifacts"
        self._cache = ArtifactCache(folder, CACHE_DISK if shared is None else SHARED_DISK)
        self._thread = LowPriorityThread()
        self._joining = GuestJoin(manifest=self._manifest, terms=self._terms, files=self._files, state=self._state)
        self._fetcher = ArtifactFetcher(
            node.transport, node.directory.peers, self._cache, offload=self._thread, report=say
        )

    async def model(self) -> RunModel:
        try:
            joining = await self._joining.run(until=Stage.STATE)
        finally:
            self._thread.close()
        found = joining.state
        round_ = min(found.rounds)
        mean = f"the mean of {len(found.rounds)} states, from " if len(found.rounds) > 1 else ""
        origin = f"{mean}{', '.join(found.donors)}, round {round_}"
        self._say(f"state: {origin}")
        return RunModel(
            run=joining.files,
            params=found.params,
            round=round_,
            origin=origin,
            donors=found.donors,
            left_out={str(donor): why for donor, why in found.left_out.items()},
        )

    # -- the stages of a join that a guest needs ---------------------------------------------------------

    async def _manifest(self, joining: GuestJoin) -> SignedManifest:
        signed = await obtain_manifest(self._node.join_context(), self._request.guest.wait_s)
        self._say(f"run {signed.manifest.name!r}, signed by {signed.manifest.operator}")
        if resolve(signed.manifest.sync).one_state:
            self._node.directory.read_everybody()
            if self._request.guest.donors is not None and self._request.guest.donors > 1:
                self._say("the peers of a group have one state: --donors changes nothing")
        return signed

    async def _terms(self, joining: GuestJoin) -> JoinTerms:
        """Fetch the statements that say which nodes may invite, if the run is by invitation. The model of a finished
        run can still be fetched."""
        local, context, manifest = self._node.local, self._node.join_context(), joining.manifest
        log = StatementLog.of(local.run_id, manifest, local.clock.now)
        terms = local_terms(context, manifest, StatementSync(log, lambda event: None), local.options.initial_peers)
        if terms.admission.invited_peers.required:
            await catch_up(context, terms.statements, terms.nodes)
        return terms

    async def _state(self, joining: GuestJoin) -> FetchedModel:
        """Fetch a state from peers of the run. A guest does not know which invitations the operator has revoked."""
        node, request, run = self._node, self._request, joining.files
        limit, rule = joining.manifest.limits.max_fragment_bytes, joining.terms.admission.invited_peers
        node.transport.begin_run(RunTerms(run.layout.digest(), limit, uninvited_reason=rule.refusal))
        judge = HoldOutJudge(run, request.device, request.scratch, self._thread)
        weighing = StateWeighing(FetchTerms(weigh=judge.weigh), self._say, self._thread)
        fetch = GuestFetch(
            node.join_context(),
            run.layout,
            self._thread,
            group=joining.method.one_state,
            weighing=weighing,
            scratch=node.local.home.path,
        )
        return await fetch.model(request.guest.donors or MEAN_DONORS, request.guest.wait_s)

    async def _files(self, joining: GuestJoin) -> OpenedRun:
        """Fetch the run's files and open them; files that are not ours are checked in a separate process first."""
        signed, manifest, found = joining.signed, joining.manifest, dict[str, Path]()
        custom = isinstance(manifest.model, CustomSection)
        judged = not joining.method.one_state and not custom  # states of donors are judged on the hold-out
        wanted = replace(self._request, holdout=self._request.holdout or judged)
        for name, ref in wanted_files(manifest, wanted).items():
            found[name] = await self._file(ref, f"the run's {name}")
        files = await self._thread(lambda: opened(manifest, found))
        checks = files_to_check(files, self._request)
        await asyncio.to_thread(lambda: check_foreign(manifest, checks, trained=False))
        if files.index is None:
            return OpenedRun.of(signed, ResultFiles(files))
        try:
            holdout = await self._file(holdout_ref(files.index), "the run's hold-out")
        except ArtifactMissing as error:
            return OpenedRun.of(signed, ResultFiles(files, missing_holdout_reason=error.found))
        return OpenedRun.of(signed, ResultFiles(files, holdout))

    async def _file(self, ref: ArtifactRef, what: str) -> Path:
        """Fetch an artifact and return the path of a copy, because a daemon that shares the cache may delete the
        original."""
        path, own = self._node.local.home.path / f"file-{ref.digest}", self._cache
        with own.holding(ref.digest):
            fetched = await self._fetcher.fetch(ref, self._request.guest.wait_s, what=what)
            await self._thread(lambda: shutil.copyfile(fetched, path))
        return path
