"""The operator's node: a stable entry to the directory, the source of manifest and ticket, and the first donor. It does
not train, and the run goes on without it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from peer.aio.threads import LowPriorityThread
from peer.errors import PeerError, UsageError
from peer.join.artifacts import operator_files
from peer.join.reset import digest_of
from peer.membership.amendment_sync import AMENDMENTS, AmendmentSync
from peer.membership.peer_table import RECORD_TTL_S
from peer.membership.reputation import Reputation
from peer.node.control import ControlServer
from peer.node.dht_events import DhtNodeEvents
from peer.node.handler import DonatedState, ServedParts
from peer.node.metrics import MetricsEndpoint, serving
from peer.node.open import LocalNode, NodeListeners, OpenNode, open_node
from peer.node.operator.initial_state import FirstFiles, first_state
from peer.node.operator.run_progress import RunProgress
from peer.node.process import freeze_gc, on_stop_signals
from peer.node.record import describe_self
from peer.node.status import caps
from peer.observe import events
from peer.outer.state import OuterState
from peer.ports.console import Say
from peer.protocol.messages import MAX_ROUND, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout
from peer.protocol.policy.amendments import describe
from peer.run.amendments import Chain, beside
from peer.run.home import Home, write_whole
from peer.run.manifest import SignedManifest, load_signed
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
LEARN_EVERY_S = 3.0
"""How often it looks how far the run has come."""
START_DELAY_S = 4.0
"""Between the last peer's being ready and round 0: by then all have read it in the directory."""


async def run_bootstrap(
    options: NodeOptions,
    manifest_path: Path,
    ticket_file: Path | None,
    min_peers: int,
    say: Say,
    state: Path | None = None,
    data: Path | None = None,
) -> int:
    """Serve until a signal or `peer leave`; the exit code. Round 0 begins once `min_peers` peers are ready.
    `state`: a checkpoint folder to give to joiners in place of the first state. `data`: a folder of token shards.

    Raises PeerError for everything a person can mend."""
    signed = load_signed(manifest_path)
    run_id = RunId(signed.run_id)
    files, sources = operator_files(manifest_path, signed.manifest, data, say)
    check_memory(signed.manifest, need_of(signed.manifest, donates_only=True), free_bytes())
    with Home(options.home).lock(options.identity_path):
        local = LocalNode.of(options, run_id, say)
        async with open_node(local, _listeners(local)) as node:
            method = resolve(signed.manifest.sync)
            if method.topology == "group":
                node.directory.read_everybody()
            layout = layout_for(signed.manifest.model, method, files.tensors)
            amendments = _amendments(local, signed)
            terms = RunTerms(
                layout.digest(),
                signed.manifest.limits.max_fragment_bytes,
                why_banned=lambda peer: amendments.ruling(MAX_ROUND).banned.get(peer, ""),
            )
            node.transport.begin_run(terms)
            copying = LowPriorityThread()
            cache = ArtifactCache(node.local.home.artifacts, options.cache_disk)
            shelf = ArtifactShelf(cache, sources, copying.start)
            shelf.on_artifacts([bytes.fromhex(digest) for digest in sources])  # begins to check them
            served = ServedParts(manifest=signed, amendments=amendments, artifacts=shelf)
            node.handler.serve(served)
            first = FirstFiles(files.tensors, files.config, sources.get(signed.manifest.init), local.folder.path)
            outer = await asyncio.to_thread(first_state, signed.manifest, layout, state, say, first)
            run_round = RunProgress(node.local.folder.path / "run_round")
            given = DonatedState(
                outer,
                lambda: run_round.value,
                node.local.clock.now,
                momentum=method.topology == "group",
                start=copying.start,
                why_not=_why_not(run_round, amendments, outer) if state is None else lambda: "",
            )
            node.handler.serve(replace(served, state=given))
            _print_ticket(node, ticket_file)
            began = time.time()
            run_start = StartTime(node, signed.manifest.start, min_peers)
            endpoint = MetricsEndpoint(lambda: _status(node, layout, began))
            async with serving(endpoint, options, say):
                try:
                    await _serve(node, run_start, run_round, layout, began, beside(manifest_path))
                finally:
                    copying.close()
    return 0


def _why_not(run_round: RunProgress, amendments: AmendmentSync, outer: OuterState) -> Callable[[], str]:
    """Why the first state is not to be begun with: the run has left it behind, and did not go back to it."""
    digest = digest_of(outer.params)
    return lambda: "" if amendments.ruling(MAX_ROUND).founded == digest else run_round.why_not_first()


async def _serve(
    node: OpenNode, run_start: StartTime, run_round: RunProgress, layout: Layout, began: float, operators_file: Path
) -> None:
    stop = asyncio.Event()

    async def control(command: str, request: dict[str, Any]) -> dict[str, Any]:
        if command == "leave":
            stop.set()
            return {"leaving": True}
        if command in ("pause", "resume"):
            raise UsageError("a bootstrap node does not train", "Pause a peer: name its folder with --home.")
        return _status(node, layout, began)

    server = ControlServer(node.local.home.control_socket, control)
    await server.start()
    freeze_gc()
    with on_stop_signals(stop.set):
        announcing = asyncio.create_task(_announce(node, run_start, run_round))
        stopping = asyncio.create_task(stop.wait())
        duties = {announcing, asyncio.create_task(_ask_who_reaches(node))}
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


def _status(node: OpenNode, layout: Layout, began: float) -> dict[str, Any]:
    """`began`: when it started, seconds since the epoch."""
    return {
        "role": "bootstrap",
        "peer_id": node.local.me,
        "run_id": node.local.run_id.hex(),
        "status": Status.SERVING.value,
        "uptime_s": round(time.time() - began, 1),
        "endpoints": list(node.endpoints()),
        "addresses": node.directory.addresses(),
        "reachable": {"value": node.reach.state.reachable(), "why": node.reach.state.why()},
        "neighbours": node.directory.neighbours(),
        "directory": node.directory.report(),
        "parameters": layout.elements,
        "bytes_sent": node.transport.bytes_sent,
        "bytes_received": node.transport.bytes_received,
        "caps": caps(node),
        "clock_correction_s": node.local.clock.correction,
    }


def _record(node: OpenNode, run_start: float, run_round: int) -> PeerRecord:
    return describe_self(
        node.address(),
        status=Status.SERVING,
        round_=run_round,
        run_start=run_start,
        tokens_per_s=0.0,
        now=node.local.clock.now(),
        lifetime_s=RECORD_TTL_S,
    )


class StartTime:
    """When round 0 began: the manifest's word, else when enough peers were first ready; kept over restarts."""

    def __init__(self, node: OpenNode, from_manifest: float, min_peers: int) -> None:
        self._node = node
        self._kept = node.local.folder.path / "run_start"
        self._min_peers = min_peers
        self.value = from_manifest or self._load()

    def _load(self) -> float:
        try:
            return float(self._kept.read_text())
        except (OSError, ValueError):
            return 0.0

    async def settle(self) -> bool:
        """Look once; True when the start is known."""
        if not self.value:
            records = await self._node.directory.peers()
            if sum(record.status is Status.TRAINING for record in records.values()) >= self._min_peers:
                self.value = self._node.local.clock.now() + START_DELAY_S
                write_whole(self._kept, repr(self.value).encode())
        return bool(self.value)


async def _announce(node: OpenNode, run_start: StartTime, run_round: RunProgress) -> None:
    """Keep our record fresh for ever; until the run has begun look every half second whether it can."""
    announced = learnt = 0.0
    while True:
        known = bool(run_start.value)
        if await run_start.settle() and not known:
            announced = 0.0
        if time.monotonic() - learnt >= LEARN_EVERY_S:
            run_round.learn((await node.directory.peers()).values())
            learnt = time.monotonic()
        if time.monotonic() - announced >= RECORD_TTL_S / 3:
            await node.directory.announce(_record(node, run_start.value, run_round.value))
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
