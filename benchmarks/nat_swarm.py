"""Swarms of real daemons in network namespaces, and reports from their journals."""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peer.identity import load_or_create
from peer.lab.localswarm.chaos import FaultRecord
from peer.lab.localswarm.plan import with_founders
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.lab.localswarm.report import PeerAccount, account, journal_events, swarm_report
from peer.lab.sim.faults import Fault
from peer.observe.events import Event, ReachabilityChanged, RoundDue, RoundEnded, RoundMissed, Started
from peer.run.home import Home
from peer.run.manifest import SignedManifest, default_text, derive, parse_manifest, sign_text
from peer.run.resolve import resolve
from peer.run.ticket import Ticket

PATHS = ("direct", "mapped", "punched", "relayed")
DHT_PORT, PORT = 4810, 4811
"""Ports of nodes that can be dialled: of the directory and of exchanges. Circuits of a relay arrive at the second."""
SMALL = (
    "model.hidden_size=32",
    "model.intermediate_size=64",
    "model.num_hidden_layers=2",
    "model.max_position_embeddings=32",
    "train.context=32",
    "train.eval_every=1000",
    "train.eval_windows=8",
)
"""Settings of a model that needs little CPU, because the network is tested. The check is off, since it would refuse
payloads of such a model now and then."""
STEP_S = 0.5
"""Least seconds of an inner step, so that many trainers of one machine leave the processor to their daemons."""
START_S, EACH_START_S = 60.0, 20.0
"""Startup timeout in seconds: of the swarm, and for each process in addition, on two busy cores."""
LEAVE_S = 20.0


@dataclass
class PlacedDaemon(Daemon):
    """A daemon in a namespace, restarted with the arguments of its first start."""

    namespace: str = ""
    options: tuple[str, ...] = ()
    """Further options of its command."""
    kills: list[tuple[float, float]] = field(default_factory=list)
    """(killed, restarted) times in seconds since the epoch."""
    first_started_at: float = 0.0
    _again: tuple[str, ...] = ()

    async def start(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = ("peer",),
    ) -> None:
        where = ("ip", "netns", "exec", self.namespace, *prefix)
        await super().start(*arguments, env={**(env or {}), "OMP_NUM_THREADS": "1"}, prefix=where, program=program)
        self._again, self.first_started_at = arguments, self.first_started_at or self.started_at

    async def kill_and_restart(self, away_s: float) -> None:
        """Send SIGKILL, wait `away_s` seconds, and start again with the same home."""
        killed_at = time.time()
        self.kill()
        await self.wait()
        await asyncio.sleep(away_s)
        await self.start(*self._again)
        self.kills.append((killed_at, time.time()))

    @property
    def peer_id(self) -> str:
        return load_or_create(Home(self.home).identity).peer_id

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


@dataclass(frozen=True)
class Run:
    """The run of a swarm. `round_s`: seconds from one round to the next, of any fragment. `model`: settings of its
    model. `step_s`: least seconds of an inner step."""

    preset: str = "noloco"
    rounds: int = 20
    round_s: float = 8.0
    settings: tuple[str, ...] = ()
    model: tuple[str, ...] = SMALL
    step_s: float = STEP_S

    def manifest(self, peers: int) -> str:
        """Return the text of its manifest."""
        text = derive(default_text(), [*self.model, f"sync.preset={self.preset}", *self.settings])
        method = resolve(parse_manifest(text.encode()).sync)
        every = f"sync.sync_every={self.round_s * method.fragments}"
        more = ("sync.acceptance=finite",) if method.topology == "pair" else ()
        return with_founders(derive(text, [every, f"train.total_rounds={self.rounds}", *more]), peers)


class NatSwarm:
    """One swarm. Its files are in `home` and stay there.

    nodes: bootstrap node -> namespace; the first has the operator's key. places: peer -> namespace. late: how many of
    the last peers join one by one after the others train."""

    def __init__(self, home: Path, run: Run, nodes: dict[str, str], places: dict[str, str], late: int = 0) -> None:
        self.run = run
        self.late = list(places)[len(places) - late :]
        self.nodes = {name: PlacedDaemon(name, home / name, namespace=place) for name, place in nodes.items()}
        self.peers = {name: PlacedDaemon(name, home / name, namespace=place) for name, place in places.items()}
        self.home = home
        self._signed: SignedManifest | None = None
        self._tickets: list[str] = []
        self._began = time.time()

    @property
    def everybody(self) -> dict[str, PlacedDaemon]:
        return self.nodes | self.peers

    def let(self, name: str, *options: str) -> None:
        """Give a daemon further options."""
        self.everybody[name].options += options

    async def start(self) -> None:
        """Start all processes except late peers. Raises SwarmFailed if a bootstrap node does not start."""
        manifest, operator = self.home / "run.toml", load_or_create(Home(next(iter(self.nodes.values())).home).identity)
        begin = [name for name in self.peers if name not in self.late]
        self._signed = sign_text(self.run.manifest(len(begin)), operator, manifest)
        for node in self.nodes.values():
            more = (*_known(self._tickets), *node.options)
            self._tickets.append(await start_bootstrap(node, manifest, len(begin), where=dialled_at(), more=more))
        for name in begin:
            await self._start(name, len(begin))

    async def _start(self, name: str, min_peers: int) -> None:
        daemon, (first, *others) = self.peers[name], self._tickets
        more = ("--port-mapping", "--step-seconds", repr(self.run.step_s), *_known(others), *daemon.options)
        await start_peer(daemon, first, threads=1, speed=1.0, min_peers=min_peers, more=more, where=())

    async def join_late(self) -> None:
        """Start the late peers, each after the one before it trains."""
        for name in self.late:
            await self._start(name, 1)
            await self.trains()

    async def trains(self) -> None:
        """Wait until all started peers train. Raises AssertionError with the end of a log if one does not."""
        deadline = time.monotonic() + START_S + EACH_START_S * len(self.peers)
        while True:
            started = {name: daemon for name, daemon in self.peers.items() if daemon.process is not None}
            told = {name: await daemon.status() for name, daemon in started.items()}
            late = [
                name for name, said in told.items() if said is None or said["status"] not in ("training", "finished")
            ]
            if not late:
                return
            for name in late:
                daemon = self.peers[name]
                assert daemon.running, f"{name}:\n{daemon.log_tail()}"
                assert time.monotonic() < deadline, f"{name} does not train:\n{daemon.log_tail()}"
            await asyncio.sleep(0.5)

    async def play(self, *beside: Coroutine[Any, Any, None]) -> None:
        """Start all, wait until all peers have ended, and end everything. `beside`: coroutines that run from when all
        peers train; cancelled at the end."""
        helpers: list[asyncio.Task[None]] = []
        try:
            await self.start()
            await self.trains()
            helpers = [asyncio.create_task(one) for one in beside]
            begun = True
            async with asyncio.timeout(self.run.rounds * self.run.round_s * 2 + 120):
                while any(daemon.running for daemon in self.peers.values()):
                    for helper in helpers:
                        if helper.done():
                            helper.result()
                    await asyncio.sleep(0.3)
        finally:
            for one in () if begun else beside:
                one.close()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)
            for some in (self.peers, self.nodes):
                await asyncio.gather(*(daemon.stop(LEAVE_S) for daemon in some.values()))
            for daemon in self.everybody.values():
                if daemon.process is not None and daemon.process.returncode is not None:
                    daemon.exit_codes.append(daemon.process.returncode)

    # -- during and afterwards ---------------------------------------------------------------------------------------

    def names(self) -> dict[str, str]:
        """Return peer id -> name."""
        return {daemon.peer_id: name for name, daemon in self.everybody.items()}

    def journal(self, name: str) -> list[tuple[float, Event]]:
        """Return a peer's journal so far, with times in seconds since the epoch."""
        assert self._signed is not None
        return journal_events(Home(self.peers[name].home).run(self._signed.run_id))

    async def next_round(self, name: str, after: int) -> int:
        """Wait until a round later than `after` is due for this peer, and return it."""
        while True:
            due = [event.round for _, event in self.journal(name) if isinstance(event, RoundDue)]
            if due and due[-1] > after:
                return due[-1]
            await asyncio.sleep(0.2)

    def accounts(self) -> dict[str, PeerAccount]:
        """Return each peer's account, from its home."""
        assert self._signed is not None
        return {
            name: account(daemon, daemon.peer_id, None, self._signed, self._began)
            for name, daemon in self.peers.items()
        }

    def report(self) -> dict[str, Any]:
        """Return the report of the swarm, counted from outside, with the names of the peers."""
        assert self._signed is not None
        accounts = self.accounts()
        kills = [
            FaultRecord(Fault("kill", number, at=0.0), *kill)
            for number, daemon in enumerate(self.peers.values())
            for kill in daemon.kills
        ]
        whole = swarm_report(self._signed, 0, time.time() - self._began, list(accounts.values()), kills)
        book = whole["swarm"]["ledger"]
        names = self.names()
        exchanged = [(name, e) for name, one in accounts.items() for e in ended(one) if e.outcome == "exchanged"]
        paths = Counter(path_of(event) for _, event in exchanged)
        meetings = Counter(met for name, event in exchanged for met in meetings_of(name, event, names))
        waits = {name: first_exchange_s(self.peers[name], one) for name, one in accounts.items()}
        met = [wait for name, wait in waits.items() if wait is not None and (not self.late or name in self.late)]
        return {
            "participation": whole["swarm"]["participation"],
            "paths": {path: paths[path] for path in PATHS},
            "ledger_imbalance": book["processed"] - book["applied"] - book["dropped"] - book["outstanding"],
            "ledger": book,
            "preset": self.run.preset,
            "rounds": self.run.rounds,
            "peers": {name: peer_report(self.peers[name], one, names) for name, one in accounts.items()},
            "meetings": dict(sorted(meetings.items())),
            "reasons": Counter(e.reason for one in accounts.values() for e in ended(one) if e.reason).most_common(8),
            "first_exchange_s": statistics.median(met) if met else None,
            "late": {name: waits[name] for name in self.late},
            "seconds": round(whole["wall_s"]),
        }

    def words(self) -> str:
        """Return the end of every log."""
        return "\n".join(f"--- {name}\n{daemon.log_tail()}" for name, daemon in self.everybody.items())


def _known(tickets: Sequence[str]) -> tuple[str, ...]:
    """Return the options that name the nodes of these tickets."""
    addresses = itertools.chain(*(Ticket.decode(ticket).addresses for ticket in tickets))
    return tuple(itertools.chain(*(("--initial-peers", address) for address in addresses)))


def dialled_at() -> tuple[str, ...]:
    """Return the options of a daemon with fixed ports."""
    hosts = (f"/ip4/0.0.0.0/tcp/{DHT_PORT}", f"/ip6/::/tcp/{DHT_PORT}")
    return (*itertools.chain(*(("--host-maddrs", host) for host in hosts)), "--port", str(PORT))


def ended(one: PeerAccount) -> list[RoundEnded]:
    return [event for _, event in one.events if isinstance(event, RoundEnded)]


def path_of(event: RoundEnded) -> str:
    """Return the path of an exchanged round. Journals of older programs name none: direct."""
    return event.path or "direct"


def meetings_of(name: str, event: RoundEnded, names: dict[str, str]) -> list[str]:
    return [f"{name} {names.get(other, other)} {path_of(event)}" for other in event.partner.split()]


def first_exchange_s(daemon: PlacedDaemon, one: PeerAccount) -> float | None:
    """Return the seconds from a daemon's start to the end of its first exchange. None: it had none."""
    moments = [at for at, event in one.events if isinstance(event, RoundEnded) and event.outcome == "exchanged"]
    return round(moments[0] - daemon.first_started_at, 1) if moments else None


def peer_report(daemon: PlacedDaemon, one: PeerAccount, names: dict[str, str]) -> dict[str, Any]:
    """Return the report of one peer's rounds."""
    told = [event for _, event in one.events]
    ends = ended(one)
    others = sum(isinstance(event, RoundMissed) for event in told)  # a round that was sat out counts as missed too
    due = sum(isinstance(event, RoundDue) for event in told)
    reach = [event for event in told if isinstance(event, ReachabilityChanged)]
    book = one.book
    return {
        "exit": daemon.exit_codes[-1] if daemon.exit_codes else None,
        "due": due,
        "outcomes": dict(Counter(event.outcome for event in ends)),
        "due_without_end": due - len(ends) - others if not daemon.kills else None,
        "ledger_imbalance": book.processed - book.applied - book.dropped - book.outstanding,
        "partners": dict(Counter(names.get(other, other) for event in ends for other in event.partner.split())),
        "reachable": reach[-1].reachable if reach else None,
        "reachable_why": reach[-1].reason if reach else "",
        "starts": sum(isinstance(event, Started) for event in told),
    }


def complaints(report: dict[str, Any]) -> list[str]:
    """Return violations that no run may have, whatever the network does."""
    wrong = [f"{name}: exit {one['exit']}" for name, one in report["peers"].items() if one["exit"] != 0]
    lost = {name: n for name, one in report["peers"].items() if (n := one["due_without_end"])}
    wrong += [f"{name}: {n} due rounds have no end" for name, n in lost.items()]
    return wrong + [f"the ledger is off by {report['ledger_imbalance']}"] * bool(report["ledger_imbalance"])


def children(pid: int) -> Sequence[int]:
    """Return the pids of all descendants of a process."""
    try:
        named = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return ()
    return [one for child in map(int, named) for one in (child, *children(child))]


def processor_s(pid: int) -> float:
    """Return the processor seconds that a process has used, without those it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the memory that a process holds, without those it started."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
