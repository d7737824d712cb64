"""Runs `peer swarm`: one bootstrap node and N peers as real processes on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.errors import RunEnded, SwarmFailed, UsageError
from peer.guest.options import machine_cores
from peer.identity import Identity
from peer.lab.attack.lies import DONOR
from peer.lab.attack.sybil_records import SybilRecords, sybil_records
from peer.lab.localswarm.chaos import Chaos
from peer.lab.localswarm.plan import SwarmPlan, TimedEvent
from peer.lab.localswarm.processes import ANYWHERE, STARTUP_S, Daemon, start_bootstrap, start_peer
from peer.lab.localswarm.report import (
    PeerAccount,
    account,
    attack_report,
    has_sent,
    last_round,
    swarm_report,
    trained_since,
    was_killed,
)
from peer.lab.localswarm.room import shortages, start_text, stop_s
from peer.lab.orders import Order, Orders
from peer.lab.run_sources import write_beside
from peer.node.process import on_stop_signals
from peer.observe.status.notices import read_status
from peer.run.admission.invitation import Invitation
from peer.run.home import Home, write_whole
from peer.run.manifest import SignedManifest, sign_text
from peer.run.memory import free_bytes, memory_need
from peer.run.ticket import Ticket
from peer.user_folders import make_private

PROGRESS_S = 5.0
STOP_GRACE_S = 15.0
"""Least seconds that the bootstrap node gets to leave."""
EACH_STARTUP_S = 15.0
"""Seconds added to the startup timeout for each peer: about the processor time that the start of its processes
takes."""
INVITED_S = 30 * 86400
"""Validity of the peers' invitations, in seconds."""
QUIET_S = 300.0
"""Seconds without a journal event after which the swarm counts as hung."""

Say = Callable[[str], None]


class Swarm:
    """One run of a plan. The homes of its processes are under `plan.home`, and stay after the end."""

    def __init__(self, plan: SwarmPlan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._began = time.time()
        self._bootstrap_daemon = Daemon("bootstrap", plan.home / "bootstrap")
        self._peers: dict[int, Daemon] = {}
        self._killed_at: dict[int, float] = {}
        self._killing = asyncio.Lock()
        self._stop = asyncio.Event()
        self._ticket = ""
        self.hung: list[str] = []
        """Names of the peers that were ended because the swarm hung."""
        self._chaos = None if plan.churn.faults is None else Chaos(plan.churn.faults, plan.peers, plan.home, say)
        self._signed: SignedManifest | None = None
        self._sybils: SybilRecords | None = None
        self._orders = Orders()
        self._started: dict[int, tuple[Order, float]] = {}
        """Peer -> the last order by which it joined, and when its start began."""
        self._training_at = math.nan
        """Start of training, in seconds since the epoch, as in the journals."""
        self._trained_s = math.nan
        """Seconds from the start of training to the end of the swarm."""
        self._minutes = None if plan.minutes is None else self._orders.add(f"--minutes {plan.minutes:g}")

    async def run(self) -> dict[str, Any]:
        """Run the plan and return the report. Raises UsageError, or SwarmFailed if the swarm does not start. `check`
        finds peers that failed later."""
        self._write_manifest()
        with on_stop_signals(self._on_stop_signal):
            if self._chaos is None:
                await self._processes()
            else:
                async with self._chaos.relays(self, self._bootstrap_daemon):
                    await self._processes()
        return self._report()

    @property
    def stopped(self) -> bool:
        """Whether a person stopped the swarm before its end."""
        return self._stop.is_set()

    def _on_stop_signal(self) -> None:
        self._say("stopping: the peers leave (once more: at once)")
        self._stop.set()

    async def _processes(self) -> None:
        async with contextlib.AsyncExitStack() as beside:
            try:
                await self._launch(beside)
                await self._play()
            finally:
                await self._end()

    # -- before ------------------------------------------------------------------------------------------------------

    def _write_manifest(self) -> None:
        home = self._plan.home
        make_private(home)
        if any(home.glob("peer-*")):
            raise UsageError(f"{home} holds an earlier swarm", "Choose an empty --home, or leave it out.")
        operator = self._operator()
        self._signed = sign_text(self._plan.manifest, operator, home / "run.toml")
        write_beside(self._plan.sources, self._signed, home / "run.toml", operator)

    def _operator(self) -> Identity:
        """Return the key that signs the swarm's manifest. It is also the bootstrap node's key, so that no delegation is
        needed."""
        return identities.load_or_create(Home(self._bootstrap_daemon.home).identity)

    async def _launch(self, beside: contextlib.AsyncExitStack) -> None:
        plan = self._plan
        self._say(f"swarm of {plan.peers} peers under {plan.home}")
        self._warn()
        where = self._chaos.node_ports[0].options if self._chaos is not None else ANYWHERE
        manifest = plan.home / "run.toml"
        shards = plan.sources.shards
        self._ticket = await start_bootstrap(self._bootstrap_daemon, manifest, plan.peers, plan.state, where, shards)
        if (records := plan.setups.sybil_records) > 0:
            farming = sybil_records(records, Ticket.decode(self._ticket), plan.home / "sybils")
            self._sybils = await beside.enter_async_context(farming)
        for number in range(1, plan.peers + 1):
            await self._start_peer(number, plan.peers)
        self._say(start_text(plan.peers, machine_cores()))

    def _warn(self) -> None:
        """Log a warning for each resource that this machine lacks for the planned number of peers."""
        assert self._signed is not None
        setups = self._plan.setups
        paced = "--step-seconds" in setups.join_options or len(setups.speeds) >= self._plan.peers
        need = memory_need(self._signed.manifest, self._plan.sources.files.tensors).total
        for shortage in shortages(need, self._plan.peers, machine_cores(), free_bytes(), paced=paced):
            self._say(f"warning: {shortage}")

    async def _start_peer(self, number: int, min_peers: int) -> None:
        daemon = self._peers.setdefault(number, Daemon(f"peer {number}", self._plan.home / f"peer-{number}"))
        if daemon.running:
            self._say(f"{daemon.name} already runs")
            return
        threads = max(1, (os.cpu_count() or 1) // self._plan.peers)
        speed = self._plan.setups.speeds.get(number, 1.0)
        chaos = self._chaos
        await start_peer(
            daemon,
            self._ticket,
            threads=threads,
            speed=speed,
            min_peers=min_peers,
            more=(
                *self._plan.setups.join_options,
                *self._data_options(number),
                *self._invitation_options(daemon),
                *self._tracker_options(number),
            ),
            where=ANYWHERE if chaos is None or number not in chaos.node_ports else chaos.node_ports[number].options,
            program=self._program(number),
        )

    def _program(self, number: int) -> tuple[str, ...]:
        """Return the module and its arguments that run peer `number` in place of `peer`."""
        if (kind := self._plan.setups.attacks.get(number)) is not None:
            return ("peer.lab.attack.process", kind, str(self._plan.seed))
        return ("peer",) if self._chaos is None else self._chaos.program(number)

    def _data_options(self, number: int) -> tuple[str, ...]:
        folder = self._plan.setups.data.get(number)
        return () if folder is None else ("--data", str(folder))

    def _tracker_options(self, number: int) -> tuple[str, ...]:
        trackers = self._plan.setups.trackers
        return tuple(word for one in trackers for word in ("--log", one.option(f"peer-{number}")))

    def _invitation_options(self, daemon: Daemon) -> tuple[str, ...]:
        """Return the options with an invitation for a peer, which is made here. Empty unless the manifest requires
        invitations."""
        assert self._signed is not None
        if self._signed.manifest.admission.kind != "invited":
            return ()
        home = Home(daemon.home)
        peer_id = identities.load_or_create(home.identity).peer_id
        made = Invitation.make(self._operator(), self._signed.run_id, peer_id, int(time.time() + INVITED_S))
        file = home.path / "invitation"
        write_whole(file, made.encode().encode())
        return ("--invitation", f"@{file}")

    # -- called by chaos ---------------------------------------------------------------------------------------------

    @property
    def daemons(self) -> Mapping[int, Daemon]:
        """The peers by number, from 1."""
        return self._peers

    async def kill_peer(self, number: int) -> None:
        """Send SIGKILL to a peer and wait until it is gone."""
        self._killed_at[number] = time.time()
        self._peers[number].kill()
        await self._peers[number].wait()

    async def restart_peer(self, number: int) -> None:
        await self._start_peer(number, 1)

    # -- during ------------------------------------------------------------------------------------------------------

    async def _play(self) -> None:
        """Wait until training begins, then carry out the plan until all peers have ended, a person stops the swarm, or
        it hangs."""
        await self._until_training()
        self._training_at = time.time()
        if self._sybils is not None:
            self._sybils.begin()
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._progress())]
            churn = [(option, one, self._orders.add(f"--{option} {one}")) for option, one in self._plan.churn.timed]
            helpers += [group.create_task(self._kill(one, order)) for option, one, order in churn if option == "kill"]
            joins = [group.create_task(self._join(one, order)) for option, one, order in churn if option == "join"]
            if self._chaos is not None:
                helpers.append(group.create_task(self._chaos.run()))
            if self._plan.minutes is not None:
                helpers.append(group.create_task(self._leave_after(self._plan.minutes * 60)))
            stopping = group.create_task(self._stop.wait())
            ended = group.create_task(self._all_ended(joins))
            stuck = group.create_task(self._wait_for_hang())
            await asyncio.wait({stopping, ended, stuck}, return_when=asyncio.FIRST_COMPLETED)
            self._trained_s = self._elapsed_s
            for task in (*helpers, *joins, stopping, ended, stuck):
                task.cancel()

    async def _until_training(self) -> None:
        deadline = time.monotonic() + STARTUP_S + EACH_STARTUP_S * len(self._peers)
        waiting = list(self._peers.values())
        while time.monotonic() < deadline and not self._stop.is_set():
            reports = await asyncio.gather(*(peer.status() for peer in waiting))
            asked = zip(waiting, reports, strict=True)
            waiting = [
                peer
                for peer, report in asked
                if report is None or read_status(report).status not in ("training", "finished")
            ]
            if not waiting:
                self._say("all peers are ready; training begins")
                return
            dead = [peer for peer in self._peers.values() if not peer.running]
            if dead:
                raise SwarmFailed(f"{dead[0].name} did not start:\n{dead[0].log_tail()}", f"Log: {dead[0].log}")
            await asyncio.sleep(0.3)

    async def _all_ended(self, joins: list[asyncio.Task[None]]) -> None:
        if joins:
            await asyncio.wait(joins)
        while any(peer.running for peer in self._peers.values()):
            await asyncio.sleep(0.2)

    async def _wait_for_hang(self) -> None:
        """Wait until the swarm hangs, which means that peers run but no journal has grown for `_patience_s`."""
        sizes: dict[Path, int] = {}
        moved_at = time.monotonic()
        while time.monotonic() - moved_at < self._patience_s():
            await asyncio.sleep(1.0)
            now = {path: path.stat().st_size for path in self._plan.home.glob("peer-*/runs/*/journal*")}
            if now != sizes:
                sizes, moved_at = now, time.monotonic()
        self.hung = [daemon.name for daemon in self._peers.values() if daemon.running]
        self._say(f"nothing has moved for {self._patience_s():.0f} s; ending {', '.join(self.hung)}")

    def _patience_s(self) -> float:
        """Return the seconds without an event after which the swarm counts as hung. The time covers several rounds, so
        that a peer that is starting, or lingers at the end, is not mistaken for a hang."""
        assert self._signed is not None
        sync = self._signed.manifest.sync
        longest = max((length for _, length in sync.growth or ()), default=1)
        return QUIET_S + (4 * longest * sync.sync_every if sync.clock == "seconds" else 0.0)

    async def _kill(self, kill: TimedEvent, order: Order) -> None:
        await asyncio.sleep(kill.at_s)
        async with self._killing:  # so that a second kill finds the peer ended, not still ending
            daemon = self._peers.get(kill.number)
            if daemon is None or not daemon.running:
                order.mark_missed(f"peer {kill.number} had {'not joined yet' if daemon is None else 'ended already'}")
                return
            self._killed_at[kill.number] = time.time()
            daemon.kill()
            order.mark_done(self._elapsed_s)
            self._say(f"killed peer {kill.number}")
            await daemon.wait()

    async def _join(self, join: TimedEvent, order: Order) -> None:
        """Start a newcomer, or restart a killed peer. Returns without a start if all peers have finished before."""
        waiting = asyncio.create_task(asyncio.sleep(join.at_s))
        try:
            while not waiting.done():
                if not any(peer.running for peer in self._peers.values()):
                    return
                await asyncio.wait({waiting}, timeout=0.2)
        finally:
            waiting.cancel()
        if (daemon := self._peers.get(join.number)) is not None and daemon.running:
            order.mark_missed(f"peer {join.number} was running already")
            return
        self._say(f"peer {join.number} joins")
        began = time.time()
        await self._start_peer(join.number, 1)
        order.mark_done(self._elapsed_s)
        self._started[join.number] = order, began

    @property
    def _elapsed_s(self) -> float:
        """Seconds since the start of training."""
        return time.time() - self._training_at

    async def _leave_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._say("time is over; the peers leave")
        if self._minutes is not None:
            self._minutes.mark_done(self._elapsed_s)
        await self._stop_peers()

    async def _stop_peers(self) -> None:
        """Let all peers leave. A peer that announces how long it needs gets twice that, if it is longer."""
        grace_s = stop_s(len(self._peers), machine_cores())
        await asyncio.gather(*(peer.stop(grace_s) for peer in self._peers.values()))

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            peers = list(self._peers.items())
            reports = await asyncio.gather(*(daemon.status() for _, daemon in peers))
            pairs = zip(peers, reports, strict=True)
            words = [f"{number}: {_progress_text(daemon, report)}" for (number, daemon), report in pairs]
            self._say("   ".join(words))

    # -- after -------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """End all processes. Called after an error too."""
        await self._stop_peers()
        await self._bootstrap_daemon.stop(STOP_GRACE_S)
        for daemon in self._peers.values():
            if daemon.process is not None and daemon.process.returncode is not None:
                daemon.exit_codes.append(daemon.process.returncode)

    def _report(self) -> dict[str, Any]:
        assert self._signed is not None
        accounts, tensors = [], self._plan.sources.files.tensors
        for number, daemon in sorted(self._peers.items()):
            peer_id = identities.load_or_create(Home(daemon.home).identity).peer_id
            killed_at = self._killed_at.get(number)
            accounts.append(account(daemon, peer_id, killed_at, self._signed, self._began, tensors))
        fault_records = self._chaos.fault_records if self._chaos is not None else []
        seconds, attacks = time.time() - self._began, self._plan.setups.attacks
        report = swarm_report(self._signed, self._plan.seed, seconds, accounts, fault_records, self.hung)
        report["orders"] = self._settle_orders(accounts)
        if self._sybils is not None:
            report["sybil_records"] = self._sybils.report()
        return report | ({"attack": attack_report(accounts, attacks).to_json()} if attacks else {})

    def _settle_orders(self, accounts: list[PeerAccount]) -> list[dict[str, Any]]:
        """Decide from the journals which orders were carried out, and return them for the report."""
        assert self._signed is not None
        manifest = self._signed.manifest
        length = self._minutes or self._orders.add(f"the run's {manifest.train.total_rounds} rounds")
        timed = manifest.sync.clock == "seconds"
        if not length.is_done and last_round(accounts) >= manifest.rounds - 1 and (timed or self._minutes is None):
            length.mark_done(self._trained_s)
        for number, (order, began) in self._started.items():
            if not trained_since(accounts[number - 1], began):
                order.mark_missed("it did not begin to train before the run was over")
        for fault in self._plan.churn.faults or ():
            order = self._orders.add(repr(fault))
            for one in self._chaos.fault_records if self._chaos is not None else ():
                if one.fault is fault:
                    order.mark_missed(one.missed_reason) if one.missed_reason else order.mark_done(
                        one.began - self._training_at
                    )
        self._settle_attacks(accounts)
        self._orders.close(self._end_reason())
        return self._orders.to_json()

    def _settle_attacks(self, accounts: list[PeerAccount]) -> None:
        attacks = self._plan.setups.attacks
        for number, kind in attacks.items():
            order = self._orders.add(f"--attack {number}@{kind}")
            if kind == DONOR and not attack_report(accounts, attacks).newcomers:
                order.mark_missed("no joiner fetched a state after the first rounds")
            elif kind != DONOR and not has_sent(accounts[number - 1]):
                order.mark_missed(f"peer {number} sent nothing to a partner")
            else:
                order.mark_done(0.0)
        if self._sybils is not None:
            farm = self._sybils.report()
            order = self._orders.add(f"--attack sybil-records:{farm['records']}")
            if farm["announced"] < farm["records"]:
                order.mark_missed(f"only {farm['announced']} of the records could be announced")
            else:
                order.mark_done(0.0)

    def _end_reason(self) -> str:
        """Return why the swarm ended, for the orders that were still open."""
        assert self._signed is not None
        manifest, after = self._signed.manifest, f"after {self._trained_s:.0f} s"
        if self.stopped:
            return f"a person stopped the swarm {after}"
        if self.hung:
            return f"the swarm was ended {after}, because nothing moved any more"
        if self._minutes is not None and self._minutes.is_done:
            return f"the --minutes were over {after}"
        return f"all peers had ended {after}: the run has {manifest.train.total_rounds} rounds"


def check(report: dict[str, Any], home: Path) -> None:
    """Raise SwarmFailed naming the peers that ended with an error although they were not killed. A peer that came after
    the end of the run is no failure."""
    bad = [
        f"peer {number} (exit code {peer['exit_code']})"
        for number, peer in enumerate(report["peers"], 1)
        if peer["exit_code"] not in (0, RunEnded.exit_code) and not was_killed(peer)
    ]
    if bad:
        raise SwarmFailed(f"ended with an error: {', '.join(bad)}", f"See daemon.log below {home}.")


def _progress_text(daemon: Daemon, report: dict[str, Any] | None) -> str:
    if report is None:
        return "killed" if daemon.killed else "no answer" if daemon.running else "done"
    status = read_status(report)
    if status.training is None or status.progress is None:
        return status.phase
    loss = "-" if status.training.loss is None else f"{status.training.loss:.2f} nats"
    return f"round {status.progress.round} loss {loss}"
