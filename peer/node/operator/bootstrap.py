"""The operator's node: a stable entry to the directory, the source of manifest and ticket, and the first donor. It does
not train, and the run goes on without it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peer.aio.threads import LowPriorityThread
from peer.errors import PeerError, UsageError
from peer.join.artifacts import RunFiles, operator_files
from peer.join.clock import clock_from
from peer.join.ended import operator_nodes
from peer.join.invitation import invited_peers
from peer.membership.amendment_sync import AMENDMENTS, AmendmentSync
from peer.membership.peer_table import RECORD_TTL_S
from peer.membership.reputation import Reputation
from peer.node.control import ControlServer
from peer.node.dht_events import DhtNodeEvents
from peer.node.handler import ServedParts
from peer.node.metrics import MetricsEndpoint, serving
from peer.node.open import LocalNode, NodeListeners, OpenNode, open_node
from peer.node.operator.collect import StateCollector
from peer.node.operator.given import GivenState
from peer.node.operator.home_files import fill_home, hold
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.node.operator.judge import StateJudge
from peer.node.operator.keeper import RunView, StateKeeper
from peer.node.operator.kept import StateArchive
from peer.node.operator.run_progress import RunActivity, RunEnd, RunProgress
from peer.node.operator.start_time import StartTime
from peer.node.process import freeze_gc, on_stop_signals
from peer.node.record import describe_self
from peer.node.status import caps
from peer.observe import events
from peer.ports.console import Say
from peer.protocol.messages import MAX_ROUND, PeerRecord, RunId
from peer.protocol.model.layout import Layout
from peer.protocol.policy.amendments import describe
from peer.run.admission.invitation import InvitedPeers
from peer.run.amendments import Chain, beside
from peer.run.home import Home, write_whole
from peer.run.manifest import Manifest, SignedManifest, load_signed
from peer.run.memory import check_memory, free_bytes, need_of
from peer.run.model_layout import layout_for
from peer.run.options import NodeOptions
from peer.run.presets import resolve
from peer.run.ticket import MAX_ADDRESSES, Ticket
from peer.state.artifacts.cache import ArtifactCache
from peer.state.artifacts.shelf import ArtifactShelf
from peer.transport.config import RunTerms
from peer.transport.wire.payload_stream import NoBudget

READ_EVERY_S = 2.0
KEEP_EVERY_S = 600.0
SCRATCH = "fetched"
"""Folder of the states whose mean is taken, in the run's folder."""
LEARN_EVERY_S = 3.0
"""How often it looks how far the run has come."""


@dataclass(frozen=True, slots=True)
class OperatorRun:
    """A run on its operator's disk."""

    signed: SignedManifest
    files: RunFiles
    sources: dict[str, Path]
    """The artifacts that joiners may fetch, by digest."""
    path: Path
    """The manifest's file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWishes:
    """The operator's choices for the run, beyond the node's own options."""

    ticket_file: Path | None = None
    min_peers: int = 1
    """Round 0 begins once so many peers are ready."""
    state: Path | None = None
    """A checkpoint folder to give to joiners in place of the first state, until the run ends."""
    data: Path | None = None
    """A folder of token shards."""
    keep_latest: bool = True
    keep_every_s: float = KEEP_EVERY_S
    check: bool = True
    """Evaluate a state before it is kept."""


async def run_bootstrap(options: NodeOptions, manifest_path: Path, wishes: OperatorWishes, say: Say) -> int:
    """Serve until a signal or `peer leave`; the exit code. Raises PeerError for everything a person can mend."""
    signed = load_signed(manifest_path)
    run_id = RunId(signed.run_id)
    files, sources = operator_files(manifest_path, signed.manifest, wishes.data, say)
    check_memory(signed.manifest, need_of(signed.manifest, donates_only=True), free_bytes())
    with Home(options.home).lock(options.identity_path):
        local = LocalNode.of(options, run_id, say)
        async with open_node(local, _listeners(local)) as node:
            return await _donate(node, OperatorRun(signed, files, sources, manifest_path), wishes)


async def _donate(node: OpenNode, run: OperatorRun, wishes: OperatorWishes) -> int:
    signed, say, folder = run.signed, node.local.say, node.local.folder
    method = resolve(signed.manifest.sync)
    if method.topology == "group":
        node.directory.read_everybody()
    layout = layout_for(signed.manifest.model, method, run.files.tensors)
    amendments = _amendments(node.local, signed)
    terms = RunTerms(
        layout.digest(),
        signed.manifest.limits.max_fragment_bytes,
        why_banned=lambda peer: amendments.ruling(MAX_ROUND).kept_out.get(peer, ""),
        why_uninvited=_invited(node, signed.manifest, amendments).why_not,
    )
    node.transport.begin_run(terms)
    copying = LowPriorityThread()
    cache = ArtifactCache(node.local.home.artifacts, node.local.options.cache_disk)
    await asyncio.to_thread(fill_home, folder, cache, signed, run.files, run.sources, say)
    shelf = ArtifactShelf(cache, run.sources, copying.start)
    shelf.on_artifacts([bytes.fromhex(digest) for digest in run.sources])  # begins to check them
    node.handler.serve(ServedParts(manifest=signed, amendments=amendments, artifacts=shelf))
    first = FirstFiles(run.files.tensors, run.files.config, run.sources.get(signed.manifest.init), folder.path)
    run_start = StartTime(node, signed.manifest.start, wishes.min_peers)
    progress = RunProgress(folder.path / "run_round")
    view = RunView(
        manifest=signed.manifest,
        end=RunEnd(lambda: clock_from(signed.manifest, run_start.value), signed.manifest.rounds, progress),
        progress=progress,
        activity=RunActivity(),
        ruling=lambda: amendments.ruling(MAX_ROUND),
    )
    giving = GivenState(node, view, copying.start, momentum=method.topology == "group")
    making = asyncio.to_thread(first_state, signed.manifest, layout, wishes.state, say, first)
    await giving.first(await making, named=wishes.state is not None)
    keeper = _keeper(node, view, wishes, layout, copying, giving)
    _print_ticket(node, wishes.ticket_file)
    began = time.time()

    def status() -> dict[str, Any]:
        return _status(node, layout, began, keeper)

    with hold(cache, signed, run.files):
        async with serving(MetricsEndpoint(status), node.local.options, say):
            try:
                await _serve(node, run_start, giving, keeper, status, beside(run.path))
            finally:
                copying.close()
    return 0


def _keeper(
    node: OpenNode,
    view: RunView,
    wishes: OperatorWishes,
    layout: Layout,
    work: LowPriorityThread,
    giving: GivenState,
) -> StateKeeper:
    folder, context, momentum = node.local.folder, node.join_context(), giving.momentum
    collector = StateCollector(context, layout, folder.path / SCRATCH, work, momentum=momentum)
    return StateKeeper(
        context,
        view,
        StateArchive(folder, node.local.run_id, layout, node.local.say, momentum=momentum),
        collector if wishes.keep_latest else None,
        StateJudge() if wishes.check else None,
        wishes.keep_every_s,
        work,
        giving.kept,
    )


async def _serve(
    node: OpenNode,
    run_start: StartTime,
    giving: GivenState,
    keeper: StateKeeper,
    status: Callable[[], dict[str, Any]],
    operators_file: Path,
) -> None:
    stop = asyncio.Event()

    async def control(command: str, request: dict[str, Any]) -> dict[str, Any]:
        if command == "leave":
            stop.set()
            return {"leaving": True}
        if command in ("pause", "resume"):
            raise UsageError("a bootstrap node does not train", "Pause a peer: name its folder with --home.")
        return status()

    server = ControlServer(node.local.home.control_socket, control)
    await server.start()
    freeze_gc()
    with on_stop_signals(stop.set):
        announcing = asyncio.create_task(_announce(node, run_start, giving, keeper))
        stopping = asyncio.create_task(stop.wait())
        duties = {announcing, asyncio.create_task(keeper.run()), asyncio.create_task(_ask_who_reaches(node))}
        duties |= {asyncio.create_task(duty) for duty in _about_amendments(node, operators_file)}
        try:
            await asyncio.wait({stopping, *duties}, return_when=asyncio.FIRST_COMPLETED)
            for duty in duties:
                if duty.done():
                    duty.result()
        finally:
            for task in (stopping, *duties):
                task.cancel()
            await asyncio.wait({stopping, *duties})
            await node.directory.withdraw()
            await server.close()
    node.local.say("left")


def _status(node: OpenNode, layout: Layout, began: float, keeper: StateKeeper) -> dict[str, Any]:
    """`began`: when it started, seconds since the epoch."""
    return {
        "role": "bootstrap",
        "peer_id": node.local.me,
        "run_id": node.local.run_id.hex(),
        "status": keeper.status.value,
        "uptime_s": round(time.time() - began, 1),
        "endpoints": list(node.endpoints()),
        "addresses": node.directory.addresses(),
        "reachable": {"value": node.reach.state.reachable(), "why": node.reach.state.why()},
        "neighbours": node.directory.neighbours(),
        "directory": node.directory.report(),
        "parameters": layout.elements,
        "kept": keeper.report(),
        "bytes_sent": node.transport.bytes_sent,
        "bytes_received": node.transport.bytes_received,
        "caps": caps(node),
        "clock_correction_s": node.local.clock.correction,
    }


def _record(node: OpenNode, run_start: float, keeper: StateKeeper) -> PeerRecord:
    return describe_self(
        node.address(),
        status=keeper.status,
        round_=keeper.round,
        run_start=run_start,
        tokens_per_s=0.0,
        now=node.local.clock.now(),
        lifetime_s=RECORD_TTL_S,
    )


async def _announce(node: OpenNode, run_start: StartTime, giving: GivenState, keeper: StateKeeper) -> None:
    """Keep our record fresh for ever; until the run has begun look every half second whether it can."""
    announced = learnt = 0.0
    said = keeper.status, keeper.round
    while True:
        known = bool(run_start.value)
        if await run_start.settle() and not known:
            announced = 0.0
        if time.monotonic() - learnt >= LEARN_EVERY_S:
            giving.learn((await node.directory.peers()).values())
            learnt = time.monotonic()
        if keeper.ended and said != (keeper.status, keeper.round):
            announced = 0.0  # peers wait for this word
        if time.monotonic() - announced >= RECORD_TTL_S / 3:
            said = keeper.status, keeper.round
            await node.directory.announce(_record(node, run_start.value, keeper))
            announced = time.monotonic()
        await asyncio.sleep(1.0 if run_start.value else 0.5)


def _listeners(local: LocalNode) -> NodeListeners:
    """A bootstrap node keeps no journal."""

    def emit(event: events.Event) -> None: ...

    return NodeListeners(
        reputation=Reputation(local.clock.now, emit),
        quota=NoBudget(),
        dht_node=DhtNodeEvents(emit, local.say),
        reachability=lambda reachable, why: local.say(
            f"others can reach this node: {'yes' if reachable else 'NO'}: {why}"
        ),
    )


def _invited(node: OpenNode, manifest: Manifest, amendments: AmendmentSync) -> InvitedPeers:
    """Return who is let in here: the other nodes of --initial-peers without an invitation."""
    local = node.local
    nodes = operator_nodes(manifest, local.options.initial_peers)
    return invited_peers(local.run_id, manifest, amendments, local.clock.now, nodes)


def _amendments(local: LocalNode, signed: SignedManifest) -> AmendmentSync:
    chain = Chain(local.run_id, signed.manifest.operator)
    kept = local.folder.path / AMENDMENTS
    return AmendmentSync(chain, kept, lambda event: None, lambda amendment: local.say(describe(amendment)))


def _about_amendments(node: OpenNode, operators_file: Path) -> list[Coroutine[Any, Any, None]]:
    """Read the operator's file whenever it changed, and ask other nodes of the run, which may hold more."""
    held = node.handler.parts.amendments
    assert held is not None
    asking = held.run(node.transport, node.local.clock, random.Random(), node.directory.peers)
    return [_read_amendments(node, held, operators_file), asking]


async def _read_amendments(node: OpenNode, held: AmendmentSync, operators_file: Path) -> None:
    seen: tuple[int, int] | None = None
    while True:
        try:
            state = _state_of(operators_file)
            if state != seen:
                seen = state
                held.read(operators_file)
        except PeerError as error:  # said once for each state of the file; those in force stay in force
            node.local.say(f"{error.found}: nothing of it is handed on from there")
        await asyncio.sleep(READ_EVERY_S)


def _state_of(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size


async def _ask_who_reaches(node: OpenNode) -> None:
    """A node nobody can reach is no bootstrap: say so."""
    await node.reach.run(node.directory.peers)


def _print_ticket(node: OpenNode, ticket_file: Path | None) -> None:
    addresses = list(node.local.options.announce_maddrs) or node.directory.addresses()
    ours = [a if "/p2p/" in a else f"{a}/p2p/{node.local.me}" for a in addresses]
    if not ours:
        raise UsageError("no address to put into the ticket", "Give one with --announce-maddrs.")
    others = [
        a for a in node.local.options.initial_peers if a not in ours
    ]  # with more than one, any of them may be dead
    ticket = Ticket(node.local.run_id, (*ours, *others)[:MAX_ADDRESSES]).encode()
    if all("/ip4/127." in a or "/ip6/::1/" in a for a in ours):
        node.local.say("only this machine can use the ticket: no other address was found (--announce-maddrs gives one)")
    if ticket_file is not None:
        write_whole(ticket_file, f"{ticket}\n".encode())
    node.local.say(f"run {node.local.run_id.hex()[:16]} is served by {node.local.me}")
    node.local.say(f"others join with:\n\n    peer join {ticket}\n")
