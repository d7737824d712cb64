"""A volunteer's daemon: opens the network side, joins the run, supervises the trainer, runs the rounds, and drains."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from peer.aio.tasks import background_task, cancel_and_wait
from peer.aio.threads import LowPriorityThread
from peer.clock.phases import PhaseTimer
from peer.errors import PeerError
from peer.joining.artifacts import RunFiles
from peer.joining.clock import round_clock
from peer.joining.contract import agree, contract_of, survey_own_texts
from peer.joining.ended import ensure_round_left, farewell
from peer.joining.manifest import find_manifest
from peer.joining.messages import check_clock
from peer.joining.preflight import check_training_loop, check_volunteer
from peer.joining.report import JoinReport
from peer.joining.reset import founding_of
from peer.joining.resume import JoinedState, Staleness
from peer.joining.sequence import JoinSequence, JoinTerms, Stage, fetch_terms, learn_terms
from peer.joining.state import obtain_state
from peer.joining.statements import ensure_still_admitted
from peer.joining.trainer import journal_start, launch_trainer, trainer_config
from peer.membership.peer_table import LOOK_EVERY_S, lifetime
from peer.membership.statement_sync import StatementSync
from peer.node.compose import DaemonParts, DaemonPeer, LocalRun, begin_run, compose_daemon, pace_of
from peer.node.control import ControlServer, pause_or_resume
from peer.node.display import Display, showing
from peer.node.leaving.former import wait_for_previous_daemon
from peer.node.leaving.last_state import save_last_state
from peer.node.leaving.plan import leaving_plan
from peer.node.metrics import DaemonMetrics
from peer.node.open import LocalNode, OpenNode
from peer.node.page import NO_PAGES, DaemonPages, PageSource
from peer.node.process import freeze_gc, on_stop_signals
from peer.node.record import describe_self
from peer.node.run_files import DaemonFiles
from peer.node.status import DaemonFacts, status_report
from peer.node.supervise import follow_amendments, run_until_drained, watch_fitness
from peer.observe import events
from peer.observe.counters import EventCounters
from peer.observe.status.codec import to_json
from peer.observe.status.value import ContractStatus, DaemonStatus
from peer.protocol.messages import MAX_ROUND, PeerId, PeerRecord
from peer.protocol.policy.amendments import RunPolicy
from peer.rounds.loop import STALE_AFTER
from peer.rounds.trainer_supervisor import TrainerSupervisor
from peer.run.admission.invitation import day_of
from peer.run.home import Home
from peer.run.load import control_of
from peer.run.manifest import Manifest, SignedManifest
from peer.run.memory import check_memory, free_bytes, memory_need, trains_in_main_memory
from peer.run.model_layout import layout_for
from peer.run.options import PeerOptions
from peer.run.statements.log import StatementLog
from peer.run.sync.common_data import unchecked_reason
from peer.state.checkpoint import CheckpointStore
from peer.state.checkpointer import check_disk_room
from peer.state.snapshot import describe_copy_room
from peer.trainer.arena import recover_counters
from peer.trainer.client import TrainerClient
from peer.trainer.subprocess import TrainerSubprocess

ORPHANED_S = 10.0
"""Seconds for which a daemon drains after the program that started it has ended."""

Joining = JoinSequence[LocalRun, JoinedState, DaemonPeer]


async def run_peer(
    options: PeerOptions,
    display: Display,
    early: TrainerSubprocess | None = None,
    phase_timer: PhaseTimer | None = None,
    pages: DaemonPages = NO_PAGES,
) -> int:
    """Take part in a run until it is over, a stop signal arrives, or `peer leave` is called. Return the exit code.

    `early`: a trainer process that was started beforehand. `phase_timer`: a timer that has been running since the
    command began. Raises PeerError for every problem that a user can fix."""
    phase_timer = phase_timer or PhaseTimer()
    phase_timer.end("program")
    check_volunteer(options)
    if options.attached:
        await wait_for_previous_daemon(Home(options.home), display.say)
    with Home(options.home).lock(options.identity_path):
        local = LocalNode.of(options, options.run_id, display.say)
        parts = DaemonParts.of(local, options)
        async with parts.open_node(local) as node, parts.pause.machine.running():
            phase_timer.end("network")
            daemon = PeerDaemon(node, parts, display, early, phase_timer)
            return await daemon.run(pages)


class PeerDaemon:
    """One run of a volunteer's daemon, from the open network side to the last checkpoint.

    Parts that do not exist yet are None. `_status` reports on those that do."""

    def __init__(
        self,
        node: OpenNode,
        parts: DaemonParts,
        display: Display,
        early: TrainerSubprocess | None = None,
        phase_timer: PhaseTimer | None = None,
    ) -> None:
        self._options = parts.options
        self._node = node
        self._daemon_parts = parts
        self._display = display
        self._bulk_thread = LowPriorityThread(self._options.guest.bulk_nice)
        self._copy_thread = LowPriorityThread(self._options.guest.bulk_nice)  # copies of the state, given and fetched
        self._journal = parts.journal
        self._control_server: ControlServer | None = None
        self._facts = DaemonFacts(started_at=time.time())
        self._waits = self._facts.waits
        event_counters = EventCounters()
        self._journal.listeners.append(event_counters.count)
        self._early_trainer = early
        self._attached = early if early is not None and early.attached is not None else None
        """The program of a user's own training loop. None: the built-in trainer is used."""
        self._join_report = JoinReport(phase_timer or PhaseTimer(), self._journal.append, node.local.say)
        self._journal.listeners.append(self._join_report.on_event)
        self._metrics = DaemonMetrics(self._status, lambda: self._journal.totals, event_counters, node.local.clock.now)
        self._round_status = parts.round_status
        self._joining = Joining(
            manifest=self._find_manifest,
            terms=self._learn_terms,
            contract=self._agree,
            files=self._fetch_files,
            state=self._obtain_state,
            trainer=self._start_trainer,
        )
        self._peer: DaemonPeer | None = None
        self._trainer: TrainerClient | None = None
        self._pace_s = LOOK_EVERY_S
        self._main: asyncio.Task[int] | None = None
        self._exit_code = 1
        self._reaching: asyncio.Task[None] | None = None
        self._files = DaemonFiles(node, parts.options, self._known, self._copy_thread, self._journal.append)
        parts.quota.use_line_meter(lambda: node.line.latest.sent)

    async def run(self, pages: DaemonPages = NO_PAGES) -> int:
        local = self._node.local
        source = PageSource.of_peer(local.home.path, self._status, self._metrics, self._control, self._journal)
        async with (
            showing(self._display, self._status),
            pages.opened(source, local.say, self._facts.set_page),
        ):
            return await self._run()

    async def _run(self) -> int:
        self._control_server = ControlServer(self._node.local.home.control_socket, self._control)
        await self._control_server.start()
        with on_stop_signals(self._leave, self._display.close):
            self._main = asyncio.create_task(self._take_part())
            try:
                async with background_task(self._follow_loop(self._main)):
                    self._exit_code = await self._until_over(self._main)
            except asyncio.CancelledError:
                if not self._facts.leaving:
                    raise
                self._exit_code = 0  # a leave before training began: there is nothing to drain
            except PeerError as error:
                self._exit_code = error.exit_code
                raise
            finally:
                await self._close()
        return self._exit_code

    async def _until_over(self, main: asyncio.Task[int]) -> int:
        """Return the exit code of `main`. When this key is found in use on another machine, drain and raise
        KeyInUse."""
        async with background_task(self._node.key_watch.run()) as watching:
            try:
                await asyncio.wait({main, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    self._leave("this key is in use on another machine")
                    await asyncio.wait({main})
            finally:
                await cancel_and_wait(main)
        return await main

    async def _follow_loop(self, main: asyncio.Task[int]) -> None:
        """Leave when the program of an attached loop has ended. The drain is cut off after `ORPHANED_S`."""
        if self._attached is None:
            return
        await self._attached.wait_ended()
        self._leave("the program with the training loop ended")
        await asyncio.sleep(ORPHANED_S)
        main.cancel()

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _leave(self, why: str = "told to leave") -> None:
        """Begin to drain. Before training has begun there is nothing to drain, and the join is cancelled."""
        if self._facts.leaving:
            return
        plan = self._facts.leave(leaving_plan(self._peer if self._facts.training else None))
        self._waits.update("leaving", 0, plan.announced_s, "s")
        self._node.local.say(f"leaving: {plan.summary()} (once more: leave at once)")
        self._journal.append(events.Leaving(reason=why, announced_s=plan.announced_s, parts=plan.why()))
        if self._peer is not None and self._facts.training:
            self._peer.parts.loop.leave()
        elif self._main is not None:
            self._main.cancel()

    async def _close(self) -> None:
        node = self._node
        if self._reaching is not None:
            self._reaching.cancel()
            await asyncio.wait({self._reaching})
        if self._trainer is not None:
            await self._trainer.stop()
        await self._files.close()
        await asyncio.gather(node.withdraw(), node.mapping.close())
        if self._control_server is not None:
            await self._control_server.close()
        if self._peer is not None:
            await self._peer.checkpointer.close()
        self._bulk_thread.close()
        self._copy_thread.close()
        self._daemon_parts.quota.close()
        self._journal.append(events.Left(exit_code=self._exit_code))
        self._journal.close()
        node.local.say("left")

    # -- joining the run -----------------------------------------------------------------------------------------------

    async def _take_part(self) -> int:
        await self._joining.run(until=Stage.TRAINER)
        return await self._train(self._joining.ready, self._joining.state)

    async def _find_manifest(self, joining: Joining) -> SignedManifest:
        node, options = self._node, self._options
        self._facts.set_phase("getting the manifest")
        signed = await find_manifest(node.join_context(), options.wait_s, self._waits.update, options.manifest)
        self._waits.end()
        check_training_loop(signed.manifest, attached=options.attached)
        node.handler.register(manifest=signed, artifacts=self._files.artifact_server)
        self._join_report.end_phase("manifest")
        return signed

    async def _learn_terms(self, joining: Joining) -> JoinTerms:
        """Fetch the operator's statements, and check that this machine and its caps suit the run."""
        node, manifest, options = self._node, joining.manifest, self._options
        log = StatementLog.of(node.local.run_id, manifest, node.local.clock.now)
        statements = StatementSync(log, self._tell_amended, node.local.folder.path, lambda: self._round_status.round)
        node.handler.register(statements=statements)
        terms = await learn_terms(node.join_context(), manifest, statements, options.initial_peers)
        self._check_memory(manifest, RunFiles())
        check_clock(node.directory.contact(), manifest.limits.max_clock_offset_s)
        self._join_report.check_caps(manifest, joining.method, options)
        largest = self._join_report.check_budget(manifest, joining.method, options.uploads)
        self._daemon_parts.quota.reserve_for_exchange(largest, control_of(joining.method))
        admission = terms.admission
        admission.ensure()
        if admission.invited_peers.required and admission.invitation is not None:
            node.local.say(f"invited until {day_of(admission.invitation.expires)}: this peer leaves then")
        return terms

    async def _agree(self, joining: Joining) -> ContractStatus:
        """Show the contract to the volunteer and wait for the agreement. Runs once per join."""
        local, options, manifest = self._node.local, self._options, joining.manifest
        texts, secrets = await asyncio.to_thread(survey_own_texts, manifest, options)
        contract = contract_of(joining.signed, options, texts, start=joining.terms.start, folder=local.folder)
        self._join_report.end_phase("terms")
        agreed = await agree(contract, local.folder.path, None if options.agreed else self._ask, local.say, secrets)
        if why := unchecked_reason(joining.method, manifest.data):
            local.say(why)
        self._join_report.end_phase("terms")
        await self._daemon_parts.pause.until_unmetered(self._facts.set_phase)
        self._join_report.person_answered()
        return agreed

    async def _ask(self, question: str) -> bool | None:
        try:
            return await self._display.ask(question)
        finally:
            self._join_report.person_answered()

    async def _fetch_files(self, joining: Joining) -> LocalRun:
        """Fetch the run's files, and start a trainer, which reads its data while the state is being fetched."""
        node, options, manifest, method = self._node, self._options, joining.manifest, joining.method
        self._facts.set_phase("getting the run's files")
        files = await self._files.obtain(manifest, self._waits.update)
        self._waits.end()
        if files.tensors is not None:  # the layout gives the activations of a foreign model's step
            self._check_memory(manifest, files)
        layout, folder, say = layout_for(manifest.model, method, files.tensors), node.local.folder, node.local.say
        checkpoints = CheckpointStore(folder.checkpoints, options.checkpoints_kept)
        say(check_disk_room(checkpoints, layout.elements))
        say(describe_copy_room(folder.path, layout.elements, momentum=method.one_state))
        if recovered := recover_counters(folder.path, len(layout.fragments), self._journal.totals.upto):
            say(recovered)
        trainer = self._trainer = TrainerClient(
            folder.path,
            layout,
            trainer_config(options, node.local.me, manifest, files),
            self._early_trainer,
            self._files.supply(files),
        )
        await trainer.prepare()
        self._join_report.end_phase("files")
        self._pace_s = pace_of(method)
        begin_run(node, manifest, layout, self._policy, joining.terms.admission.invited_peers, self._record)
        self._reaching = asyncio.create_task(node.reach.run(self._known))
        return LocalRun(layout=layout, checkpoints=checkpoints, trainer=trainer)

    def _check_memory(self, manifest: Manifest, files: RunFiles) -> None:
        """Raise MachineTooSmall for a run that does not fit into the free memory."""
        trains_here = self._attached is None and trains_in_main_memory(self._options.device)
        check_memory(manifest, memory_need(manifest, files.tensors, trains_here=trains_here), free_bytes())

    async def _obtain_state(self, joining: Joining) -> JoinedState:
        node, run, terms = self._node, joining.files, joining.terms
        context, local, manifest = node.join_context(), node.local, joining.manifest
        await ensure_still_admitted(context, terms.statements, terms.nodes)
        founding = terms.statements.log.policy(MAX_ROUND).founded
        for stranger in run.checkpoints.foreign_checkpoints(local.run_id, run.layout.digest(), founding):
            local.say(f"not resumed from: {stranger}")
        self._facts.set_phase("getting the state")
        self._join_report.end_phase("amendments")
        wanted = fetch_terms(
            context,
            manifest,
            terms,
            proven=frozenset(self._daemon_parts.reputation.proven),
            patience_s=self._options.wait_s,
            weigh=run.trainer.weigh,
            emit=self._journal.append,
        )
        state = await obtain_state(
            context,
            run.layout,
            run.checkpoints,
            wanted,
            progress=self._waits.update,
            offload=self._copy_thread,
            into=run.trainer.outer_params,
        )
        self._waits.end()
        local.say(f"state: {state.why}")
        self._join_report.state_obtained(state)
        self._join_report.check_download(manifest, joining.method, state)
        return state

    async def _start_trainer(self, joining: Joining) -> DaemonPeer:
        """Compose the peer around the state, and start the trainer from it."""
        node, context, state, terms = self._node, self._node.join_context(), joining.state, joining.terms
        rounds = await round_clock(context, joining.manifest, terms.start)
        ensure_round_left(joining.manifest, rounds, state.round, node.local.clock.now())
        now = terms.statements.log.policy(MAX_ROUND)
        peer = self._peer = compose_daemon(
            node,
            self._daemon_parts,
            joining.manifest,
            terms,
            joining.files,
            state,
            rounds,
            founded=await self._copy_thread(lambda: founding_of(state, now)),
            record=self._record,
            bulk=self._bulk_thread,
        )
        parts, trainer = peer.parts, joining.files.trainer
        node.handler.register(peer_table=parts.view, receipts=parts.members.receipts)
        journal_start(context, state, self._journal.append)
        resume, covered = self._kept_work(joining, parts.supervisor)
        if why := self._daemon_parts.pause.reason():
            node.local.say(f"{why}: this peer will not train; end it with `peer resume`")
        self._join_report.end_phase("clock")
        self._facts.set_phase("starting the trainer")
        info = await launch_trainer(context, trainer, state, resume, covered, self._waits, self._journal.append)
        self._join_report.trainer_ready(info)
        return peer

    def _kept_work(self, joining: Joining, supervisor: TrainerSupervisor) -> tuple[Path | None, list[int] | None]:
        """Return the checkpoint that the trainer resumes from, or the token counts that a live loop continues from.
        Either may be None.

        A loop that outlived its daemon keeps its params unless the run is more than `STALE_AFTER` rounds ahead: old
        params would pull the partners' back."""
        state, loop = joining.state, joining.files.trainer.attached
        if loop is None or not loop.live or joining.method.eager:
            if state.resume is not None and not joining.files.trainer.can_resume(state.resume):
                supervisor.drop_outstanding("the checkpoint is of another training loop")
                return None, None
            return supervisor.resume_folder(state, eager=joining.method.eager), None
        if state.round - loop.round > STALE_AFTER:
            supervisor.drop_outstanding(f"the run went on from round {loop.round} to {state.round} without this loop")
            return None, None
        return None, supervisor.covered()

    # -- training ------------------------------------------------------------------------------------------------------

    async def _train(self, peer: DaemonPeer, state: JoinedState) -> int:
        node, live, joining, parts = self._node, self._round_status, self._joining, peer.parts
        self._facts.set_training()
        self._copy_thread.start(peer.checkpointer.try_disk)
        staleness = Staleness(state.stale_reason)
        self._journal.listeners.append(staleness.on_event)
        donated = self._daemon_parts.make_donated(
            state.outer,
            lambda: live.round,
            node.local.clock.now,
            momentum=parts.group is not None,
            group=parts.group,
            start=self._copy_thread.start,
            folder=node.local.folder.path,
            outdated_reason=lambda: staleness.why,
        )
        node.handler.register(matchmaker=parts.matchmaker, group=parts.group, state=donated)
        freeze_gc()
        beside = [
            *parts.background(),
            *([] if peer.summaries is None else [peer.summaries.run()]),
            follow_amendments(node, joining.terms, self._policy, lambda: parts.loop.rounds),
            watch_fitness(self._join_report, joining.manifest, joining.files.trainer, live),
            self._daemon_parts.reputation.save_periodically(node.local.clock),
        ]
        await run_until_drained(parts.loop, state.round, beside, node.local.say, self._facts.exchange_limit_s)
        if not self._facts.leaving:
            node.local.say(farewell(joining.manifest, node.local.home.path))
        await save_last_state(peer.checkpointer, parts.loop.evaluations, live.round, node.local.say)
        return 0

    # -- the operator's policy -----------------------------------------------------------------------------------------

    def _policy(self) -> RunPolicy:
        if not self._joining.has(Stage.TERMS):
            return RunPolicy()
        return self._joining.terms.statements.log.policy(self._round_status.round)

    def _tell_amended(self, event: events.Event) -> None:
        self._journal.append(event)
        if isinstance(event, events.Amended):
            self._node.local.say(event.change)

    # -- record, status and commands -----------------------------------------------------------------------------------

    def _record(self) -> PeerRecord:
        node, live = self._node, self._round_status
        return describe_self(
            node.address(),
            status=live.announced(self._daemon_parts.quota.blocked_reason()),
            round_=live.round,
            tokens_per_s=self._trainer.progress.tokens_per_s if self._trainer else 0.0,
            now=node.local.clock.now(),
            lifetime_s=lifetime(self._pace_s),
        )

    async def _known(self) -> dict[PeerId, PeerRecord]:
        known = {} if self._peer is None else await self._peer.parts.view.known()
        return known or await self._node.directory.peers()  # the peer table is empty until its first read

    def _status(self) -> DaemonStatus:
        return status_report(
            self._node, self._facts, self._daemon_parts, self._joining, self._join_report, self._peer, self._trainer
        )

    async def _control(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        match command:
            case "leave":
                self._leave()
                assert self._facts.leaving_plan is not None
                return {"leaving": True, **to_json(self._facts.leaving_plan.report())}
            case "pause" | "resume":
                return pause_or_resume(command, request, self._daemon_parts.pause, self._policy(), self._node.local.say)
        return dict(to_json(self._status()))
