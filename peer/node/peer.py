"""A volunteer's daemon: opens the node, gets manifest and state, supervises the trainer, plays rounds, drains."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

import torch

from peer.aio.events import Signal
from peer.aio.threads import LowPriorityThread
from peer.clock.phases import PhaseTimer
from peer.errors import PeerError
from peer.exchange.group.quorum_file import QuorumFile
from peer.join.amendments import catch_up
from peer.join.clock import keep_start, round_clock
from peer.join.manifest import fetch_manifest, kept_manifest
from peer.join.messages import check_clock
from peer.join.report import JoinReport
from peer.join.reset import ResetStates, founded_on
from peer.join.resume import JoinedState, Staleness
from peer.join.state import obtain_state
from peer.join.trainer import journal_start, launch, trainer_config
from peer.membership.amendment_sync import AMENDMENTS, ASK_EVERY_S, AmendmentSync, ensure_admitted
from peer.membership.peer_table import LOOK_EVERY_S, PeerTable, lifetime, pace
from peer.membership.reputation import Reputation
from peer.membership.suspend import SuspendRecovery, refresh
from peer.node.control import ControlServer, pause_or_resume
from peer.node.dht_events import DhtNodeEvents
from peer.node.display import Display, showing
from peer.node.handler import DonatedState, ServedParts
from peer.node.metrics import MetricsEndpoint, serving
from peer.node.open import LocalNode, NodeListeners, OpenNode, open_node
from peer.node.process import freeze_gc, on_stop_signals
from peer.node.status import DaemonFacts, status_report
from peer.node.supervise import DRAIN_S, run_until_drained
from peer.node.upload_quota import UploadQuota
from peer.observe import events
from peer.observe.counters import EventCounters
from peer.observe.journal import Journal
from peer.protocol.messages import MAX_ROUND, WIRE_VERSION, PeerId, PeerRecord, Status
from peer.protocol.model.layout import Layout
from peer.protocol.policy.amendments import RunPolicy, describe
from peer.rounds.loop import RoundLoop, resume_folder
from peer.rounds.pause import LocalPause
from peer.run.amendments import Chain
from peer.run.home import Home
from peer.run.manifest import Manifest, SignedManifest
from peer.run.memory import check_memory, free_bytes, need_of, trains_in_main_memory
from peer.run.method import Method
from peer.run.model_layout import layout_for
from peer.run.options import JoinOptions
from peer.run.plan import RunPlan
from peer.run.presets import resolve
from peer.signed_record import seal
from peer.state.checkpoint import CheckpointStore
from peer.state.checkpointer import Checkpointer, room_for
from peer.trainer.client import TrainerClient
from peer.trainer.subprocess import TrainerSubprocess
from peer.transport.server.service import RunTerms
from peer.transport.signing import KeySigner

LAST_SAVE_S = 8.0
"""The trainer's part of the last checkpoint: it may be in the middle of a step or an evaluation."""


async def run_peer(
    options: JoinOptions, display: Display, early: TrainerSubprocess | None = None, laps: PhaseTimer | None = None
) -> int:
    """Take part until the run is over, a signal, or `peer leave`; the exit code. `early`: a trainer process started
    beforehand; `laps`: running since the command began. Raises PeerError for everything a person can mend."""
    laps = laps or PhaseTimer()
    laps.end("program")
    with Home(options.home).lock(options.identity_path):
        local = LocalNode.of(options, options.run_id, display.say)
        watch = DaemonWatch.of(local, options)
        async with open_node(local, watch.listeners) as node:
            laps.end("network")
            daemon = PeerDaemon(options, node, watch, display, early, laps)
            return await daemon.run()


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonWatch:
    """The parts of a daemon that have to be there before its network side is opened."""

    journal: Journal
    quota: UploadQuota
    record_changed: Signal
    """Rung when our record says something new that others should know soon."""
    listeners: NodeListeners

    @classmethod
    def of(cls, local: LocalNode, options: JoinOptions) -> DaemonWatch:
        """Open journal and quota. Raises HomeUnusable."""
        journal, changed = Journal(local.folder.journal, local.clock.now), Signal()
        uploads = local.home.path / "uploads.json"  # of the machine's line, whatever the run
        quota = UploadQuota(options.uploads, uploads, journal.append, local.say, changed=changed.ring)

        def reachability(reachable: bool, why: str) -> None:
            journal.append(events.ReachabilityChanged(reachable=reachable, reason=why))
            local.say(f"reachable by others: {'yes' if reachable else 'no'}: {why}")
            changed.ring()

        listeners = NodeListeners(
            reputation=Reputation(local.clock.now, journal.append),
            quota=quota,
            dht_node=DhtNodeEvents(journal.append, local.say),
            reachability=reachability,
        )
        return cls(journal=journal, quota=quota, record_changed=changed, listeners=listeners)


class PeerDaemon:
    """One run of the daemon. Parts that do not exist yet are None; `status` tells as much as there is."""

    def __init__(
        self,
        options: JoinOptions,
        node: OpenNode,
        watch: DaemonWatch,
        display: Display,
        early: TrainerSubprocess | None = None,
        laps: PhaseTimer | None = None,
    ) -> None:
        self._options = options
        self._node = node
        self._display = display
        self._bulk = LowPriorityThread()
        self._copying = LowPriorityThread()  # of states, for joiners and as one
        self._watch = watch
        self._journal = watch.journal
        self._control_server: ControlServer | None = None
        self._facts = DaemonFacts(started_at=time.time())
        self._waits = self._facts.waits
        tally = EventCounters()
        self._journal.listeners.append(tally.hear)
        self._early = early
        self._arrival = JoinReport(laps or PhaseTimer(), self._journal.append, node.local.say)
        self._journal.listeners.append(self._arrival.hear)
        self._metrics = MetricsEndpoint(self._status, lambda: self._journal.totals, tally, node.local.clock.now)
        self._conduct = watch.listeners.reputation
        self._coordinator: RoundLoop | None = None
        self._trainer: TrainerClient | None = None
        self._view: PeerTable | None = None
        self._pace_s = LOOK_EVERY_S
        self._main: asyncio.Task[int] | None = None
        self._saving: Checkpointer | None = None
        self._exit_code = 1
        self._reaching: asyncio.Task[None] | None = None
        self._rng = random.Random()
        self._rest = LocalPause(node.local.folder.path / "paused.json", options.quiet_hours)
        if options.resume:
            self._rest.resume()
        self._budget = watch.quota

    async def run(self) -> int:
        async with serving(self._metrics, self._options, self._node.local.say), showing(self._display, self._status):
            return await self._run()

    async def _run(self) -> int:
        self._control_server = ControlServer(self._node.local.home.control_socket, self._control)
        await self._control_server.start()
        with on_stop_signals(self._leave, self._display.close):
            self._main = asyncio.create_task(self._take_part())
            try:
                self._exit_code = await self._main
            except asyncio.CancelledError:
                if not self._facts.leaving:
                    raise
                self._exit_code = 0  # told to leave before there was anything to drain
            except PeerError as error:
                self._exit_code = error.exit_code
                raise
            finally:
                await self._close()
        return self._exit_code

    # -- leaving -----------------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Drain; before training has begun there is nothing to drain."""
        if self._facts.leaving:
            return
        self._facts.leaving = True
        self._waits.tell("leaving", 0, DRAIN_S, "s")
        self._node.local.say("leaving: finishing what is under way (once more: leave at once)")
        self._journal.append(events.Leaving(reason="told to leave"))
        if self._coordinator is not None:
            self._coordinator.leave()
        elif self._main is not None:
            self._main.cancel()

    async def _close(self) -> None:
        node = self._node
        if self._reaching is not None:
            self._reaching.cancel()
            await asyncio.wait({self._reaching})
        if self._trainer is not None:
            await self._trainer.stop()
        await node.directory.withdraw()
        if self._control_server is not None:
            await self._control_server.close()
        if self._saving is not None:
            await self._saving.close()
        self._bulk.close()
        self._copying.close()
        self._budget.close()
        self._journal.append(events.Left(exit_code=self._exit_code))
        self._journal.close()
        node.local.say("left")

    # -- the phases --------------------------------------------------------------------------------------------------

    async def _take_part(self) -> int:
        node, options = self._node, self._options
        signed = options.manifest or kept_manifest(node.local.folder, node.local.run_id) or await self._fetch_manifest()
        node.handler.serve(ServedParts(manifest=signed))
        self._arrival.end("manifest")
        manifest = signed.manifest
        self._facts.manifest = manifest
        check_memory(manifest, need_of(manifest, trains_here=trains_in_main_memory(options.device)), free_bytes())
        check_clock(node.directory.contact(), manifest.limits.max_clock_offset_s)
        method = resolve(manifest.sync)
        self._arrival.check_caps(manifest, method, options)
        self._budget.exchange_needs(self._arrival.check_budget(manifest, method, options.uploads))
        if method.topology == "group":
            node.directory.read_everybody()
        layout = layout_for(manifest.model, method)
        limits, codec = manifest.limits, method.codec
        terms = RunTerms(
            layout.digest(),
            limits.max_fragment_bytes,
            codec,
            limits.max_clock_offset_s,
            record=lambda: seal(self._record(), node.local.identity),
            why_banned=lambda peer: self._ruling().banned.get(peer, ""),
        )
        node.transport.begin_run(terms)
        checkpoints = CheckpointStore(node.local.folder.checkpoints, options.checkpoints_kept)
        node.local.say(room_for(checkpoints, layout.elements))
        trainer = self._trainer = TrainerClient(
            node.local.folder.path, layout, trainer_config(options, node.local.me, manifest), self._early
        )
        await trainer.prepare()  # it reads its data while we look for the state
        self._reaching = asyncio.create_task(node.reach.run(self._known))
        amendments = AmendmentSync(
            Chain(node.local.run_id, manifest.operator),
            node.local.folder.path / AMENDMENTS,
            self._journal.append,
            lambda amendment: node.local.say(describe(amendment)),
            in_steps=manifest.sync.clock == "steps",
        )
        node.handler.serve(ServedParts(manifest=signed, amendments=amendments))
        await catch_up(node.join_context(), amendments)
        for stranger in checkpoints.strangers(node.local.run_id, layout.digest(), self._founding(amendments)):
            node.local.say(f"not resumed from: {stranger}")
        self._facts.phase = "getting the state"
        self._arrival.end("amendments")
        state = await obtain_state(
            node.join_context(),
            layout,
            checkpoints,
            momentum=method.topology == "group",
            progress=self._waits.tell,
            offload=self._copying,
        )
        self._waits.end()
        node.local.say(f"state: {state.why}")
        self._arrival.state(state)
        self._arrival.check_download(manifest, method, state)
        coordinator = await self._prepare(manifest, layout, state, checkpoints, amendments, trainer)
        return await self._train(coordinator, state)

    async def _fetch_manifest(self) -> SignedManifest:
        self._facts.phase = "getting the manifest"
        return await fetch_manifest(self._node.join_context(), self._options.wait_s, self._waits)

    async def _prepare(
        self,
        manifest: Manifest,
        layout: Layout,
        state: JoinedState,
        checkpoints: CheckpointStore,
        amendments: AmendmentSync,
        trainer: TrainerClient,
    ) -> RoundLoop:
        """Start the trainer from the state, and build the coordinator around it."""
        node = self._node
        plan = self._plan(manifest)
        view = self._view_of(plan.method)
        rounds = await round_clock(node.join_context(), manifest)
        founded_states = ResetStates(layout, node.transport, self._bulk)
        saving = self._saving = self._saving_of(checkpoints, state, trainer)
        coordinator = RoundLoop(
            plan,
            node.local.clock,
            node.transport,
            trainer,
            view,
            state.outer,
            self._journal.append,
            self._bulk,
            rounds,
            on_boundary=saving.save_if_due,
            on_rest=saving.save_now,
            rest=self._rest,
            upto=dict(self._journal.totals.upto),
            ruling=amendments.ruling,
            founded=self._founded_on(state, amendments),
            fetch_founded=lambda digest: self._fetch_founded(digest, founded_states),
            conduct=self._conduct,
            seal=KeySigner(node.local.identity),
        )
        if coordinator.group is not None:
            memory = QuorumFile(node.local.folder.path / "group.json", self._journal.append)
            coordinator.group.recall(memory.read())
            coordinator.group.keep = memory.keep
        journal_start(node.join_context(), state, self._journal.append)
        resume = resume_folder(coordinator, trainer, state)
        if why := self._rest.why():
            node.local.say(f"{why}: this peer will not train; end it with `peer resume`")
        self._arrival.end("clock")
        self._facts.phase = "starting the trainer"
        info = await launch(node.join_context(), trainer, state, resume, self._waits, self._journal.append)
        self._arrival.trainer(info)
        return coordinator

    def _plan(self, manifest: Manifest) -> RunPlan:
        return RunPlan(
            run_id=self._options.run_id,
            me=self._node.local.me,
            method=resolve(manifest.sync),
            total_rounds=manifest.train.total_rounds,
            eval_every=manifest.train.eval_every,
            max_upload=self._options.max_upload,
            min_peers=self._options.min_peers,
        )

    def _view_of(self, method: Method) -> PeerTable:
        node = self._node
        self._pace_s = pace(method.round_length if method.clock == "seconds" else None)
        changed = self._directory_changed
        view = self._view = PeerTable(
            node.directory,
            node.local.clock,
            self._rng,
            self._record,
            changed,
            self._pace_s,
            dirty=self._watch.record_changed,
        )
        node.handler.serve(replace(node.handler.parts, view=view))
        return view

    def _saving_of(self, checkpoints: CheckpointStore, state: JoinedState, trainer: TrainerClient) -> Checkpointer:
        node = self._node
        return Checkpointer(
            checkpoints,
            node.local.run_id,
            state.outer,
            trainer,
            asyncio.to_thread,  # not the exchanges' own thread, and not at its low priority: training waits for a part
            self._journal.append,
            self._options.checkpoint_every_s,
            lambda: {"peer_id": node.local.me, "founded": self._coordinator.founded.hex() if self._coordinator else ""},
        )

    async def _train(self, coordinator: RoundLoop, state: JoinedState) -> int:
        node = self._node
        view = self._view
        assert view is not None
        self._coordinator = coordinator
        amendments = node.handler.parts.amendments
        assert amendments is not None
        view.banned = lambda: amendments.ruling(coordinator.live.round).banned
        coordinator.why_no_exchange = self._budget.why_not
        staleness = Staleness(state.stale)
        self._journal.listeners.append(staleness.hear)
        donated = DonatedState(
            state.outer,
            lambda: coordinator.live.round,
            node.local.clock.now,
            momentum=coordinator.group is not None,
            group=coordinator.group,
            start=self._copying.start,
            why_not=lambda: staleness.why,
        )
        parts = replace(node.handler.parts, matchmaker=coordinator.matchmaker, group=coordinator.group, state=donated)
        node.handler.serve(parts)
        freeze_gc()
        every_s = max(ASK_EVERY_S, self._pace_s)
        beside = [
            view.run(),
            view.watch.run(node.transport, lambda: view.peers, self._rng, node.local.clock.sleep),
            self._obey(amendments, coordinator),
            amendments.run(node.transport, node.local.clock, self._rng, self._known, every_s, view.watch.answered),
            self._rest.watch(),
            self._budget.watch(),
            self._waking(coordinator, view).run(),
            self._measured(coordinator),
        ]
        await run_until_drained(coordinator, state.round, beside, node.local.say)
        keep_start(node.local.folder, coordinator.run_start)
        assert self._saving is not None
        await self._saving.save_now(coordinator.live.round, LAST_SAVE_S)
        return 0

    def _waking(self, coordinator: RoundLoop, view: PeerTable) -> SuspendRecovery:
        """After a sleep the rounds wait until connections, directory and clock are fresh."""
        node = self._node

        async def fresh() -> None:
            await refresh(node.transport, node.local.clock, view, self._rng, node.local.clock.forget_offsets)

        waking = SuspendRecovery(fresh, self._journal.append, coordinator.woke)
        coordinator.settled = waking.settled
        return waking

    def _measured(self, coordinator: RoundLoop) -> Coroutine[Any, Any, None]:
        manifest, trainer = self._facts.manifest, self._trainer
        assert manifest is not None
        assert trainer is not None
        method, total = resolve(manifest.sync), manifest.train.total_rounds
        round_s = method.round_length if method.clock == "seconds" else None
        return self._arrival.watch(lambda: trainer.progress, round_s, lambda: total - coordinator.live.round)

    # -- the operator's word -----------------------------------------------------------------------------------------

    @staticmethod
    def _founding(amendments: AmendmentSync) -> bytes:
        """Digest of the state that the operator last had everybody go on from."""
        return amendments.ruling(MAX_ROUND).founded

    def _founded_on(self, state: JoinedState, amendments: AmendmentSync) -> bytes:
        if state.founded is not None:
            return state.founded
        return founded_on(state.outer.params, state.round, amendments.ruling(MAX_ROUND))

    async def _fetch_founded(self, digest: bytes, states: ResetStates) -> torch.Tensor | None:
        return await states.fetch(digest, list((await self._known()).values()))

    def _ruling(self) -> RunPolicy:
        held = self._node.handler.parts.amendments
        round_ = self._coordinator.live.round if self._coordinator is not None else 0
        return RunPolicy() if held is None else held.ruling(round_)

    async def _obey(self, amendments: AmendmentSync, coordinator: RoundLoop) -> None:
        """Ends with JoinRefused when the operator keeps us out."""
        while True:
            now = amendments.ruling(coordinator.live.round)
            ensure_admitted(now, self._node.local.me)
            if now.wire is not None:
                self._node.transport.narrow_wire(*now.wire)
            await asyncio.sleep(1.0)

    # -- what others and the person see ------------------------------------------------------------------------------

    def _record(self) -> PeerRecord:
        live = self._coordinator.live if self._coordinator is not None else None
        now = self._node.local.clock.now()
        return PeerRecord(
            peer_id=self._node.local.me,
            run_id=self._node.local.run_id,
            endpoints=self._node.endpoints(),
            reachable=self._node.reach.reachable,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            round=live.round if live else 0,
            tokens_per_s=self._trainer.progress.tokens_per_s if self._trainer else 0.0,
            status=self._coordinator.announced if self._coordinator else Status.JOINING,
            issued_at=now,
            expires_at=now + lifetime(self._pace_s),
            run_start=self._coordinator.run_start if self._coordinator else 0.0,
        )

    def _directory_changed(self, peers: int, reason: str) -> None:
        self._journal.append(events.DirectoryChanged(peers=peers, reason=reason))

    async def _known(self) -> dict[PeerId, PeerRecord]:
        return await (self._view.known() if self._view is not None else self._node.directory.peers())

    def _status(self) -> dict[str, Any]:
        report = status_report(
            self._node, self._facts, self._coordinator, self._trainer, self._view, self._journal.totals, self._conduct
        )
        return report | {
            "paused": self._rest.report(),
            "machine": self._arrival.report(),
            "budget": self._budget.report(),
        }

    async def _control(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        match command:
            case "leave":
                self._leave()
                return {"leaving": True}
            case "pause" | "resume":
                return pause_or_resume(command, request, self._rest, self._ruling(), self._node.local.say)
        return self._status()
