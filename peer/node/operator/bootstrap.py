"""The operator's node from start to end: entry to the directory, source of manifest and ticket, and first donor."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from peer.aio.tasks import background_task
from peer.aio.threads import LowPriorityThread
from peer.codes import Code
from peer.errors import ManifestError, PeerError, UsageError, for_shell
from peer.joining.artifacts import RunFiles, check_foreign, operator_files
from peer.joining.clock import clock_from
from peer.joining.sequence import local_terms
from peer.membership.statement_sync import ASK_EVERY_S, StatementSync
from peer.node.compose import pace_of
from peer.node.control import ControlServer
from peer.node.metrics import DaemonMetrics
from peer.node.open import NODE_LIMITS, LocalNode, OpenNode, network_news, open_node
from peer.node.operator.collect import StateCollector
from peer.node.operator.given import ServedState
from peer.node.operator.home_files import fill_home, hold
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.node.operator.judge import StateJudge
from peer.node.operator.keeper import StateKeeper, WatchedRun
from peer.node.operator.kept import StateArchive
from peer.node.operator.own_ticket import own_ticket, print_ticket
from peer.node.operator.presence import announce, known
from peer.node.operator.run_progress import RunActivity, RunEnd, RunProgress
from peer.node.operator.run_view import RunFacts, RunView
from peer.node.operator.start_time import StartTime
from peer.node.page import NO_PAGES, DaemonPages, PageSource
from peer.node.process import freeze_gc, on_stop_signals
from peer.node.status import manifest_status, node_status
from peer.observe import events
from peer.observe.status.codec import to_json
from peer.observe.status.notices import with_notices
from peer.observe.status.value import DaemonStatus
from peer.ports.console import Say
from peer.protocol.messages import MAX_ROUND, PeerId, RunId
from peer.protocol.model.layout import Layout
from peer.protocol.schedule import RoundClock
from peer.run.costs import receipt_bounds
from peer.run.description import unevaluated_lines
from peer.run.home import Home
from peer.run.manifest import SignedManifest, load_signed
from peer.run.memory import check_memory, free_bytes, memory_need
from peer.run.model_layout import layout_for
from peer.run.options import NodeOptions
from peer.run.resolve import resolve
from peer.run.sections import CustomSection
from peer.run.statements.files import beside
from peer.run.statements.kinds import FAMILIES, PAPER
from peer.run.statements.log import StatementLog
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.server import ArtifactServer
from peer.transport.config import RunTerms
from peer.transport.signing import holds

READ_EVERY_S = 2.0
KEEP_EVERY_S = 600.0
KEPT_VIEW = "run_view.json"
"""File in the run's folder that stores the part of the run's view that survives a restart."""
SCRATCH = "fetched"
"""Folder in the run's folder for fetched states whose mean is computed."""


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """A run on its operator's disk: manifest, opened files, and the files that joiners may fetch."""

    signed: SignedManifest
    files: RunFiles
    sources: dict[str, Path]
    """Paths of the artifacts that joiners may fetch, by digest."""
    path: Path
    """The manifest file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorOptions:
    """The operator's options for the run, beyond the node's own options."""

    ticket_file: Path | None = None
    min_peers: int = 1
    """Number of ready peers at which round 0 is scheduled."""
    state: Path | None = None
    """A checkpoint folder that joiners are given in place of the first state, until the run ends."""
    data: Path | None = None
    """A folder of token shards to serve."""
    keep_latest: bool = True
    keep_every_s: float = KEEP_EVERY_S
    check: bool = True
    """Whether a state is evaluated before it is kept."""
    pages: DaemonPages = NO_PAGES


async def run_bootstrap(options: NodeOptions, manifest_path: Path, operator_options: OperatorOptions, say: Say) -> int:
    """Serve the run until a stop signal or `peer leave`, and return the exit code. Raises PeerError for every problem
    that a user can fix."""
    signed = load_signed(manifest_path)
    run_id = RunId(signed.run_id)
    files, sources = operator_files(manifest_path, signed.manifest, operator_options.data, say)
    if files.config is not None:
        say("looking at the run's model and tokenizer")
    check_foreign(signed.manifest, files, trained=True)
    check_memory(signed.manifest, memory_need(signed.manifest, donates_only=True), free_bytes())
    with Home(options.home).lock(options.identity_path):
        local = LocalNode.of(options, run_id, say)
        async with open_node(local, emit=partial(_tell_news, local), limits=NODE_LIMITS) as node:
            return await _donate(node, OperatorRun(signed, files, sources, manifest_path), operator_options)


async def _donate(node: OpenNode, run: OperatorRun, operator_options: OperatorOptions) -> int:
    signed, say, folder = run.signed, node.local.say, node.local.folder
    method = resolve(signed.manifest.sync)
    if method.one_state:
        node.directory.read_everybody()
    for line in unevaluated_lines(signed.manifest):
        say(line)
    layout = layout_for(signed.manifest.model, method, run.files.tensors)
    statements = _statements(node, run, lambda: progress.value)
    log = statements.log
    terms = local_terms(node.join_context(), signed.manifest, statements, node.local.options.initial_peers)
    node.transport.begin_run(
        RunTerms(
            layout.digest(),
            signed.manifest.limits.max_fragment_bytes,
            ban_reason=lambda peer: log.policy(MAX_ROUND).kept_out.get(peer, ""),
            uninvited_reason=terms.admission.invited_peers.refusal,
        )
    )
    copying = LowPriorityThread()
    cache = ArtifactCache(node.local.home.artifacts, node.local.options.cache_disk)
    await asyncio.to_thread(fill_home, folder, cache, signed, run.files, run.sources, say)
    artifact_server = ArtifactServer(cache, run.sources, copying.start)
    artifact_server.on_artifacts([bytes.fromhex(digest) for digest in run.sources])  # starts to verify the files
    node.handler.register(manifest=signed, statements=statements, artifacts=artifact_server)
    first = FirstFiles(
        run.files.tensors, run.files.config, run.sources.get(signed.manifest.init), folder.path, run.path
    )
    run_start = StartTime(node, statements, operator_options.min_peers, run.path)

    def clock() -> RoundClock:
        return clock_from(signed.manifest, run_start.value)

    progress = RunProgress(folder.path / "run_round", clock, node.local.clock.now)
    watched = WatchedRun(
        manifest=signed.manifest,
        end=RunEnd(clock, signed.manifest.rounds, progress),
        progress=progress,
        activity=RunActivity(),
        policy=lambda: log.policy(MAX_ROUND),
    )
    served_state = ServedState(node, watched, statements, copying.start, momentum=method.one_state)
    making = asyncio.to_thread(first_state, signed.manifest, layout, operator_options.state, say, first)
    await served_state.serve_first(await making, named=operator_options.state is not None)
    keeper = _keeper(node, watched, operator_options, layout, copying, served_state, lambda: view.known_peers())
    custom = isinstance(signed.manifest.model, CustomSection)
    print_ticket(node, ticket := own_ticket(node), operator_options.ticket_file, custom=custom)
    began, page = time.time(), ""
    view = _view(node, run, watched, statements, run_start, keeper, ticket)
    node.handler.register(summaries=view)

    def status() -> DaemonStatus:
        return with_notices(
            replace(_status(node, run, statements, layout, began, keeper), page=page, view=view.report())
        )

    def show_page(address: str) -> None:
        nonlocal page
        page = address

    if node.local.me == log.operator:  # a compromised node could amend the run
        say(f"the operator's key lies on this node: {_offline(run.path)}")
    with hold(cache, signed, run.files):
        source = PageSource(home=node.local.home.path, report=status, metrics=DaemonMetrics(status))
        async with (
            operator_options.pages.opened(source, say, show_page),
            background_task(view.run(asyncio.to_thread, say)),
        ):
            try:
                await _serve(node, statements, run_start, served_state, keeper, status, run.path, pace_of(method))
            finally:
                copying.close()
    return 0


def _keeper(
    node: OpenNode,
    watched: WatchedRun,
    operator_options: OperatorOptions,
    layout: Layout,
    work: LowPriorityThread,
    served_state: ServedState,
    known_peers: Callable[[], Collection[PeerId]],
) -> StateKeeper:
    """Create the keeper of states. `known_peers`: returns the peers for which others signed receipts. In a run of a
    custom model, whose states cannot be evaluated, they and the distances between states decide which state is kept."""
    folder, context, momentum = node.local.folder, node.join_context(), served_state.momentum
    custom = isinstance(watched.manifest.model, CustomSection)
    trusted = known_peers if custom else None
    collector = StateCollector(context, layout, folder.path / SCRATCH, work, momentum=momentum, trusted=trusted)
    return StateKeeper(
        context,
        watched,
        StateArchive(folder, node.local.run_id, layout, node.local.say, momentum=momentum),
        collector if operator_options.keep_latest else None,
        StateJudge() if operator_options.check and not custom else None,
        operator_options.keep_every_s,
        work,
        served_state.serve_kept,
    )


def _view(
    node: OpenNode,
    run: OperatorRun,
    watched: WatchedRun,
    statements: StatementSync,
    run_start: StartTime,
    keeper: StateKeeper,
    ticket: str,
) -> RunView:
    """Create the run's view, which is built from peers' summaries."""
    manifest, directory = run.signed.manifest, node.directory
    facts = RunFacts(
        run_id=node.local.run_id,
        manifest=manifest,
        preset=manifest.sync.preset,
        progress=watched.progress,
        started=lambda: run_start.value,
        ended=lambda: keeper.ended,
        amendments=statements.newest,
        ticket=ticket,
        bounds=receipt_bounds(resolve(manifest.sync), manifest.model.parameters, manifest.rounds),
        activity=watched.activity,
    )

    def listed(peer: PeerId) -> bool:
        return not directory.looks_show_all() or peer in directory.known()

    return RunView(facts, node.local.clock, holds, listed, node.local.folder.path / KEPT_VIEW)


async def _serve(
    node: OpenNode,
    statements: StatementSync,
    run_start: StartTime,
    served_state: ServedState,
    keeper: StateKeeper,
    status: Callable[[], DaemonStatus],
    manifest: Path,
    look_every_s: float,
) -> None:
    stop = asyncio.Event()

    async def control(command: str, request: dict[str, Any]) -> dict[str, Any]:
        if command == "leave":
            stop.set()
            return {"leaving": True}
        if command in ("pause", "resume"):
            raise UsageError("a bootstrap node does not train", "Pause a peer: name its folder with --home.")
        return dict(to_json(status()))

    server = ControlServer(node.local.home.control_socket, control)
    await server.start()
    freeze_gc()
    with on_stop_signals(stop.set):
        announcing = asyncio.create_task(announce(node, run_start, served_state, keeper, look_every_s))
        stopping = asyncio.create_task(stop.wait())
        duties = {announcing, asyncio.create_task(keeper.run()), asyncio.create_task(_ask_who_reaches(node))}
        duties.add(asyncio.create_task(node.key_watch.run()))
        duties |= {asyncio.create_task(duty) for duty in _about_statements(node, statements, manifest, look_every_s)}
        try:
            await asyncio.wait({stopping, *duties}, return_when=asyncio.FIRST_COMPLETED)
            for duty in duties:
                if duty.done():
                    duty.result()
        finally:
            for task in (stopping, *duties):
                task.cancel()
            await asyncio.wait({stopping, *duties})
            await asyncio.gather(node.withdraw(), node.mapping.close())
            await server.close()
    node.local.say("left")


def _offline(manifest: Path) -> str:
    """Return the advice for an operator whose key lies on a node. `manifest`: its file."""
    return (
        "keep it offline, give the node a key of its own, and delegate to that: "
        f"peer manifest delegate {for_shell(manifest)} NODE --identity-path OPERATOR_KEY"
    )


def _status(
    node: OpenNode, run: OperatorRun, statements: StatementSync, layout: Layout, began: float, keeper: StateKeeper
) -> DaemonStatus:
    """Return the status of the node. `began`: start of the process, seconds since the epoch."""
    status = keeper.status.value
    return replace(
        node_status(node, statements, began, "bootstrap"),
        run=run.signed.manifest.name,
        status=status,
        phase=status,
        manifest=manifest_status(statements, run.signed.manifest, layout.elements),
        operators_key=f"on this node: {_offline(run.path)}"
        if node.local.me == statements.log.operator
        else "not on this node",
        kept=keeper.report(),
    )


def _tell_news(local: LocalNode, event: events.Event) -> None:
    """Print an event of the network side. A bootstrap node has no journal."""
    match event:
        case events.ReachabilityChanged(reachable=reachable, reason=why):
            local.say(f"others can reach this node: {'yes' if reachable else 'NO'}: {why}")
        case _:
            if news := network_news(event):
                local.say(news)


def _statements(node: OpenNode, run: OperatorRun, round_now: Callable[[], int]) -> StatementSync:
    """Load the stored statements and the operator's delegations. New statements are printed, because a bootstrap node
    has no journal."""

    def say(event: events.Event) -> None:
        match event:
            case events.Amended(change=change):
                node.local.say(change)
            case events.PaperHeld(by=by, says=says):
                node.local.say(f"{says} (signed by {by})")
            case events.PaperRefused(code=Code.TAKEN_BACK, reason=reason):
                node.local.say(reason)
            case events.PaperRefused(peer=peer, reason=reason):
                node.local.say(f"refused a paper of {peer or 'this home'}: {reason}")

    log = StatementLog.of(node.local.run_id, run.signed.manifest, node.local.clock.now)
    held = StatementSync(log, say, node.local.folder.path, round_now)
    with contextlib.suppress(ManifestError):  # reported when the file is read again shortly
        held.read(beside(run.path, PAPER))
    return held


def _about_statements(
    node: OpenNode, statements: StatementSync, manifest: Path, look_every_s: float
) -> list[Coroutine[Any, Any, None]]:
    """Return the coroutines that read the operator's files after each change, and that ask other nodes for further
    statements."""
    every_s = max(ASK_EVERY_S, look_every_s / 2)
    return [
        *(_read(node, beside(manifest, family), statements.read) for family in FAMILIES),
        *statements.duties(node.transport, node.local.clock, random.Random(), partial(known, node), every_s),
    ]


async def _read(node: OpenNode, operators_file: Path, read: Callable[[Path], None]) -> None:
    seen: tuple[int, int] | None = None
    while True:
        try:
            state = _state_of(operators_file)
            if state != seen:
                seen = state
                read(operators_file)
        except PeerError as error:  # reported once per version of the file; earlier statements remain in force
            node.local.say(f"{error.found}: nothing of it is handed on from there")
        await asyncio.sleep(READ_EVERY_S)


def _state_of(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


async def _ask_who_reaches(node: OpenNode) -> None:
    """Have peers dial this node until cancelled: a bootstrap node that others cannot reach is useless, so the result is
    shown to its user."""
    await node.reach.run(partial(known, node))
