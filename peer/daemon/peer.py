"""A volunteer's daemon: opens the node, gets manifest and state, supervises the trainer, plays rounds, drains."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from peer import __version__
from peer.daemon.amendments import ASK_EVERY_S, Amendments, check
from peer.daemon.clock import BulkThread
from peer.daemon.conduct import Conduct
from peer.daemon.coordinator import Coordinator
from peer.daemon.display import Display, showing
from peer.daemon.garbage import settle
from peer.daemon.helper_watch import HelperWatch
from peer.daemon.joining import FirstState, obtain_manifest, obtain_state
from peer.daemon.memory import check_memory, free_bytes, need_of, trains_in_main_memory
from peer.daemon.metrics import MetricsEndpoint, serving
from peer.daemon.node import Node, NodeOptions, open_node, serve_control
from peer.daemon.plan import Plan
from peer.daemon.refound import FoundedStates, founded_on
from peer.daemon.saving import Saving
from peer.daemon.signals import on_stop_signals
from peer.daemon.status import Facts, status_report
from peer.daemon.view import LOOK_EVERY_S, View, lifetime, pace
from peer.daemon.waiting import check_clock
from peer.errors import ExchangeError, ManifestError, PeerError
from peer.net.directory.record import seal
from peer.net.seal import KeySeal
from peer.observe import events
from peer.observe.journal import Journal
from peer.observe.tally import Tally
from peer.protocol.layout import Layout
from peer.protocol.messages import MAX_ROUND, WIRE_VERSION, PeerRecord, RunId, Status
from peer.protocol.roundclock import RoundClock
from peer.protocol.ruling import Ruling, describe
from peer.run.amendments import Chain
from peer.run.home import Home, write_whole
from peer.run.layouts import layout_for
from peer.run.manifest import Manifest, SignedManifest, keep, load_signed
from peer.run.presets import resolve
from peer.state.checkpoint import CheckpointStore
from peer.trainer.process import TrainerConfig, TrainerProcess

DRAIN_S = 8.0
"""After the signal to leave, an exchange under way and the last checkpoint get this long."""
HELLO_S = 5.0
CATCH_UP_FROM = 4
"""Before training, so many peers are asked for the operator's amendments."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions(NodeOptions):
    """What a volunteer chose beyond the node's own options."""

    run_id: RunId
    manifest: SignedManifest | None = None
    """Given as a file; None: fetched from a peer."""
    data_dir: Path | None = None
    threads: int = 1
    device: str = "auto"
    speed: float = 1.0
    """Part of the time the trainer may work, in (0, 1]."""
    checkpoint_every_s: float = 60.0
    """At least; see `peer.daemon.saving.SHARE`."""
    wait_s: float = 120.0
    """How long to wait for a first answer from the run."""
    min_peers: int = 1


async def run_peer(options: JoinOptions, display: Display) -> int:
    """Take part until the run is over, a signal, or `peer leave`; the exit code. Raises PeerError for everything a
    person can mend."""
    with Home(options.home).lock(options.identity_path):
        async with open_node(options, options.run_id, display.say) as node:
            daemon = PeerDaemon(options, node, display)
            return await daemon.run()


class PeerDaemon:
    """One run of the daemon. Parts that do not exist yet are None; `status` tells as much as there is."""

    def __init__(self, options: JoinOptions, node: Node, display: Display) -> None:
        self._options = options
        self._node = node
        self._display = display
        self._bulk = BulkThread()
        self._journal = Journal(node.folder.journal, node.clock.now)
        self._facts = Facts(started_at=time.time())
        self._waits = self._facts.waits
        tally = Tally()
        self._journal.listeners.append(tally.hear)
        self._metrics = MetricsEndpoint(self._status, lambda: self._journal.totals, tally, node.clock.now)
        self._conduct = Conduct(node.clock.now, self._journal.append)
        node.transport.watch(self._conduct)
        node.directory.on_bad_record(self._conduct.bad_record)
        node.directory.watch(HelperWatch(self._journal.append, node.say))
        self._coordinator: Coordinator | None = None
        self._trainer: TrainerProcess | None = None
        self._view: View | None = None
        self._pace_s = LOOK_EVERY_S
        self._main: asyncio.Task[int] | None = None
        self._saving: Saving | None = None
        self._exit_code = 1
        self._reaching: asyncio.Task[None] | None = None
        self._rng = random.Random()
        node.reach.changed = self._reachability_changed

    async def run(self) -> int:
        async with serving(self._metrics, self._options, self._node.say), showing(self._display, self._status):
            return await self._run()

    async def _run(self) -> int:
        await serve_control(self._node, self._control)
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
        self._node.say("leaving: finishing what is under way (once more: leave at once)")
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
        if node.control is not None:
            await node.control.close()
        self._bulk.close()
        self._journal.append(events.Left(exit_code=self._exit_code))
        self._journal.close()
        node.say("left")

    # -- the phases --------------------------------------------------------------------------------------------------

    async def _take_part(self) -> int:
        node, options = self._node, self._options
        signed = options.manifest or self._kept_manifest() or await self._fetch_manifest()
        node.donor.manifest = signed
        manifest = signed.manifest
        self._facts.manifest = manifest
        check_memory(manifest, need_of(manifest, trains_here=trains_in_main_memory(options.device)), free_bytes())
        check_clock(node.directory.contact(), manifest.limits.max_clock_offset_s)
        method = resolve(manifest.sync)
        layout = layout_for(manifest.model, method)
        limits, codec = manifest.limits, method.codec
        node.transport.set_layout(layout.digest(), limits.max_fragment_bytes, codec, limits.max_clock_offset_s)
        node.transport.show_record(lambda: seal(self._record(), node.identity))
        checkpoints = CheckpointStore(node.folder.checkpoints)
        self._reaching = asyncio.create_task(node.reach.run(self._known))
        amendments = await self._amendments(signed)
        self._facts.phase = "getting the state"
        state = await obtain_state(
            options.run_id,
            layout,
            checkpoints,
            node.directory,
            node.transport,
            node.clock,
            node.say,
            self._waits.tell,
        )
        self._waits.end()
        node.say(f"state: {state.why}")
        coordinator = await self._prepare(manifest, layout, state, checkpoints, amendments)
        return await self._train(coordinator, state)

    async def _prepare(
        self,
        manifest: Manifest,
        layout: Layout,
        state: FirstState,
        checkpoints: CheckpointStore,
        amendments: Amendments,
    ) -> Coordinator:
        """Start the trainer from the state, and build the coordinator around it."""
        node = self._node
        trainer = self._trainer = TrainerProcess(node.folder.path, layout, self._trainer_config(manifest))
        method = resolve(manifest.sync)
        self._pace_s = pace(method.round_length if method.clock == "seconds" else None)
        view = self._view = View(
            node.directory,
            node.clock,
            random.Random(),
            self._record,
            self._directory_changed,
            self._pace_s,
        )
        node.donor.learn = view.learn
        rounds = await self._round_clock(manifest)
        founded_states = FoundedStates(layout, node.transport, self._bulk)
        saving = self._saving = Saving(
            checkpoints,
            node.run_id,
            state.outer,
            trainer,
            self._bulk,
            self._journal.append,
            self._options.checkpoint_every_s,
            lambda: {"peer_id": node.me, "founded": self._coordinator.founded.hex() if self._coordinator else ""},
        )
        coordinator = Coordinator(
            Plan(
                run_id=self._options.run_id,
                me=node.me,
                method=method,
                total_rounds=manifest.train.total_rounds,
                eval_every=manifest.train.eval_every,
                max_upload=self._options.max_upload,
                min_peers=self._options.min_peers,
            ),
            node.clock,
            node.transport,
            trainer,
            view,
            state.outer,
            self._journal.append,
            self._bulk,
            rounds,
            on_boundary=saving.maybe,
            upto=dict(self._journal.totals.upto),
            ruling=amendments.ruling,
            founded=self._founded_on(state, amendments),
            fetch_founded=lambda digest: self._fetch_founded(digest, founded_states),
            conduct=self._conduct,
            seal=KeySeal(node.identity),
        )
        self._journal.append(
            events.Started(peer_id=node.me, run_id=node.run_id.hex(), version=__version__, resumed=state.why)
        )
        if state.donor:
            self._journal.append(
                events.StateFetched(donor=state.donor, round=state.round, bytes=state.nbytes, seconds=state.seconds)
            )
        if trainer.counters().tokens != state.checkpoint_tokens:
            coordinator.drop_outstanding("lost with the process that did it")
        self._facts.phase = "starting the trainer"
        self._waits.tell("starting the trainer", 0, None, "s")
        trainer.on_note = lambda note: self._waits.tell(f"the trainer is {note}", 0, None, "s")
        info = await trainer.start(state.outer.params, state.round, state.resume)
        self._waits.end()
        trainer.on_note = lambda note: None  # later starts show in the phase
        node.say(f"trainer: {info.device} ({info.device_reason})")
        self._journal.append(events.TrainerStarted(device=info.device, reason=info.device_reason))
        return coordinator

    async def _train(self, coordinator: Coordinator, state: FirstState) -> int:
        node = self._node
        view = self._view
        assert view is not None
        self._coordinator = coordinator
        node.donor.matchmaker, node.donor.group = coordinator.matchmaker, coordinator.group
        amendments = node.donor.amendments
        assert amendments is not None
        view.banned = lambda peer: peer in amendments.ruling(coordinator.live.round).banned
        node.donor.give(state.outer, lambda: coordinator.live.round, node.clock.now)
        settle()
        background = [asyncio.create_task(view.run()), asyncio.create_task(self._obey(amendments, coordinator))]
        every_s = max(ASK_EVERY_S, self._pace_s)
        asking = amendments.run(node.transport, node.clock, self._rng, self._known, every_s)
        background.append(asyncio.create_task(asking))
        playing = asyncio.create_task(coordinator.run(state.round))
        try:
            await asyncio.wait({playing, *background}, return_when=asyncio.FIRST_COMPLETED)
            for task in background:
                if task.done():
                    task.result()
            async with asyncio.timeout(None) as limit:
                watcher = asyncio.create_task(self._limit_drain(coordinator, limit))
                background.append(watcher)
                await playing
        except TimeoutError:
            node.say("the exchange under way did not end in time; leaving without it")
        finally:
            for task in (playing, *background):
                task.cancel()
            await asyncio.wait({playing, *background})
        self._keep_start(coordinator.run_start)
        assert self._saving is not None
        await self._saving.write(coordinator.live.round)
        return 0

    async def _limit_drain(self, coordinator: Coordinator, limit: asyncio.Timeout) -> None:
        while not coordinator.leaving:
            await asyncio.sleep(0.2)
        limit.reschedule(asyncio.get_running_loop().time() + DRAIN_S / 2)

    # -- the operator's word -----------------------------------------------------------------------------------------

    async def _amendments(self, signed: SignedManifest) -> Amendments:
        """What is kept and what the others hold, before anything is trained."""
        node = self._node
        chain = Chain(node.run_id, signed.manifest.operator)
        kept, in_steps = node.folder.path / "amendments.jsonl", signed.manifest.sync.clock == "steps"
        held = Amendments(chain, kept, self._journal.append, in_steps=in_steps)
        held.told = lambda amendment: node.say(describe(amendment))
        node.donor.amendments = held
        node.transport.obey(lambda peer: self._ruling().banned.get(peer, ""))
        records = await node.directory.peers()
        for record in records[:CATCH_UP_FROM]:
            await held.ask(node.transport, record)
        check(held.ruling(max((record.round for record in records), default=0)), node.me)
        return held

    def _founded_on(self, state: FirstState, amendments: Amendments) -> bytes:
        if state.founded is not None:
            return state.founded
        return founded_on(state.outer.params, state.round, amendments.ruling(MAX_ROUND))

    async def _fetch_founded(self, digest: bytes, states: FoundedStates) -> torch.Tensor | None:
        return await states.fetch(digest, await self._known())

    def _ruling(self) -> Ruling:
        held = self._node.donor.amendments
        round_ = self._coordinator.live.round if self._coordinator is not None else 0
        return Ruling() if held is None else held.ruling(round_)

    async def _obey(self, amendments: Amendments, coordinator: Coordinator) -> None:
        """Ends with JoinRefused when the operator keeps us out."""
        while True:
            now = amendments.ruling(coordinator.live.round)
            check(now, self._node.me)
            if now.wire is not None:
                self._node.transport.narrow_wire(*now.wire)
            await asyncio.sleep(1.0)

    # -- manifest and clock ------------------------------------------------------------------------------------------

    def _kept_manifest(self) -> SignedManifest | None:
        """The one fetched at an earlier start, if it is still whole."""
        try:
            kept = load_signed(self._node.folder.manifest)
        except ManifestError:
            return None
        return kept if kept.run_id == self._options.run_id else None

    async def _fetch_manifest(self) -> SignedManifest:
        node = self._node
        self._facts.phase = "getting the manifest"
        signed = await obtain_manifest(
            self._options.run_id,
            node.directory,
            node.transport,
            node.clock,
            node.say,
            self._options.wait_s,
            self._waits.tell,
        )
        self._waits.end()
        keep(node.folder.manifest, signed)
        node.say(f"manifest: run {signed.manifest.name!r}, signed by {signed.manifest.operator}")
        return signed

    async def _round_clock(self, manifest: Manifest) -> RoundClock:
        """The clock; in seconds its start comes from the manifest or from what others announce, and the own clock is
        corrected by a Hello to each of them first."""
        node, sync = self._node, manifest.sync
        start = manifest.start or self._kept_start()
        records = await node.directory.peers()
        for record in records:
            with contextlib.suppress(ExchangeError):  # one that cannot be greeted tells nothing about our clock
                welcome = await node.transport.hello(record, HELLO_S)
                node.clock.observe(welcome.clock_offset_s)
            start = start or record.run_start
        return RoundClock(sync.clock, sync.sync_every, resolve(sync).fragments, start)

    def _kept_start(self) -> float:
        try:
            return float((self._node.folder.path / "run_start").read_text())
        except (OSError, ValueError):
            return 0.0

    def _keep_start(self, start: float) -> None:
        write_whole(self._node.folder.path / "run_start", repr(start).encode())

    def _trainer_config(self, manifest: Manifest) -> TrainerConfig:
        options = self._options
        return TrainerConfig(
            model=manifest.model,
            data=manifest.data,
            train=manifest.train,
            optimizer=manifest.optimizer,
            clock=manifest.sync.clock,
            sync_every=manifest.sync.sync_every,
            seed=manifest.seed,
            peer_id=self._node.me,
            data_dir=str(options.data_dir) if options.data_dir else None,
            threads=options.threads,
            device=options.device,
            speed=options.speed,
        )

    # -- what others and the person see ------------------------------------------------------------------------------

    def _record(self) -> PeerRecord:
        live = self._coordinator.live if self._coordinator is not None else None
        now = self._node.clock.now()
        return PeerRecord(
            peer_id=self._node.me,
            run_id=self._node.run_id,
            endpoints=self._node.endpoints(),
            reachable=self._node.reach.reachable,
            wire_min=WIRE_VERSION,
            wire_max=WIRE_VERSION,
            round=live.round if live else 0,
            tokens_per_s=self._trainer.progress.tokens_per_s if self._trainer else 0.0,
            status=live.status if live else Status.JOINING,
            issued_at=now,
            expires_at=now + lifetime(self._pace_s),
            run_start=self._coordinator.run_start if self._coordinator else 0.0,
        )

    def _directory_changed(self, peers: int, reason: str) -> None:
        self._journal.append(events.DirectoryChanged(peers=peers, reason=reason))

    async def _known(self) -> list[PeerRecord]:
        return await (self._view.known() if self._view is not None else self._node.directory.peers())

    def _reachability_changed(self, reachable: bool, why: str) -> None:
        self._journal.append(events.ReachabilityChanged(reachable=reachable, reason=why))
        self._node.say(f"reachable by others: {'yes' if reachable else 'no'}: {why}")
        if self._view is not None:
            self._view.touch()

    def _status(self) -> dict[str, Any]:
        return status_report(
            self._node, self._facts, self._coordinator, self._trainer, self._view, self._journal.totals, self._conduct
        )

    async def _control(self, command: str, request: dict[str, Any]) -> dict[str, Any]:
        if command == "leave":
            self._leave()
            return {"leaving": True}
        return self._status()
