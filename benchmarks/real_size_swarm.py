"""The swarm of `benchmarks.real_size`: its processes, the actions on them, and the measurements meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peer import identity as identities
from peer.errors import PeerError
from peer.lab.localswarm.chaos import FaultRecord
from peer.lab.localswarm.processes import Daemon, start_bootstrap, start_peer
from peer.lab.localswarm.report import account, swarm_report
from peer.lab.sim.faults import Fault
from peer.node.control import send_command
from peer.observe.event_codec import read_lines
from peer.observe.events import Checkpointed, Evaluated, StateFetched
from peer.run.home import Home
from peer.run.manifest import SignedManifest, load_signed

LOOK_S = 0.5
START_S = 900.0
LEAVE_S = 600.0
PACE_S = 60.0
"""Seconds before a donation in which the normal pace is measured."""
CALLBACKS = "callbacks.jsonl"
KEEP_S = 60.0
"""Seconds between the states that the operator's node stores, if it can."""


class Broke(Exception):
    """The swarm did not continue as expected."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The settings of one swarm."""

    manifest: Path
    data: Path
    home: Path
    peers: int
    joins: int
    rounds: int
    round_s: float


@dataclass
class Played:
    """The measurements. Those of a stage that was not reached are empty or None."""

    broke: str = ""
    participation_percent: float | None = None
    imbalance: int | None = None
    rounds: int = 0
    own_bytes: dict[str, int] = field(default_factory=dict)
    """Peak RssAnon of each daemon in bytes."""
    whole_bytes: dict[str, int] = field(default_factory=dict)
    """Peak resident memory of each daemon, with libraries and the arena."""
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    operators_callbacks: list[dict[str, Any]] = field(default_factory=list)
    leaving: dict[str, Any] = field(default_factory=dict)
    donation: dict[str, float] = field(default_factory=dict)
    outcomes: dict[str, Any] = field(default_factory=dict)
    losses: dict[str, list[float]] = field(default_factory=dict)
    exit_codes: dict[str, list[int]] = field(default_factory=dict)

    @property
    def worst_callback_ms(self) -> float | None:
        return max((one["ms"] for one in self.callbacks), default=0.0) if self.own_bytes else None

    @property
    def operators_worst_ms(self) -> float | None:
        return max((one["ms"] for one in self.operators_callbacks), default=0.0) if self.own_bytes else None

    def told(self) -> dict[str, Any]:
        """Return the rows of the table."""
        worst, operators = slowest(self.callbacks, 6), slowest(self.operators_callbacks, 3)
        lines: dict[str, Any] = {"what broke first": self.broke or "nothing"}
        lines |= {f"rounds of {name}": json.dumps(counts) for name, counts in self.outcomes.items()}
        lines |= {f"losses of {name}": json.dumps(losses) for name, losses in self.losses.items()}
        lines |= {f"{name}, own MiB at most": used / 2**20 for name, used in self.own_bytes.items()}
        lines |= {f"{name}, resident MiB at most": used / 2**20 for name, used in self.whole_bytes.items()}
        lines |= {f"{name}, exit codes": json.dumps(codes) for name, codes in self.exit_codes.items()}
        lines |= {f"leaving: {name}": value for name, value in self.leaving.items()}
        lines |= {f"donation: {name}": value for name, value in self.donation.items()}
        lines |= {f"slow callback {n}": f"{one['ms']:.0f} ms, {one['what']}" for n, one in enumerate(worst, 1)}
        lines |= {f"operator's {n}": f"{one['ms']:.0f} ms, {one['what']}" for n, one in enumerate(operators, 1)}
        return lines


def slowest(callbacks: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    return sorted(callbacks, key=lambda one: -float(one["ms"]))[:count]


def noting_callbacks(daemon: Daemon) -> tuple[str, ...]:
    """Return the program that records long callbacks in a daemon's event loop."""
    return ("peer.lab.bench.callback_times", str(daemon.home / CALLBACKS))


class Stage:
    """The processes of one run, with measurements."""

    def __init__(self, wish: Wish, signed: SignedManifest) -> None:
        self.wish, self.signed, self.ticket = wish, signed, ""
        self.bootstrap = Daemon("bootstrap", wish.home / "bootstrap")
        self.peers: dict[int, Daemon] = {}
        self.played = Played()
        self.fault_records: list[FaultRecord] = []
        self.seen: dict[int, list[tuple[float, int]]] = {}
        """Peer -> (time, tokens) readings."""
        self.latest: dict[int, dict[str, Any]] = {}

    async def start(self, number: int, min_peers: int = 1) -> None:
        daemon = self.peers.setdefault(number, Daemon(f"peer {number}", self.wish.home / f"peer-{number}"))
        more = ("--checkpoint-every", "60", "--keep-checkpoints", "1", "--yes")
        program = noting_callbacks(daemon)
        await start_peer(daemon, self.ticket, threads=1, speed=1.0, min_peers=min_peers, more=more, program=program)

    async def watch(self) -> None:
        """Measure every daemon repeatedly, until cancelled."""
        while True:
            self._measure(self.bootstrap)
            for number, daemon in list(self.peers.items()):
                self._measure(daemon)
                status = await daemon.status()
                if status is not None:
                    self.latest[number] = status
                    self._leaving(number, status)
                if status is not None and "tokens" in status:
                    self.seen.setdefault(number, []).append((time.time(), int(status["tokens"])))
            await asyncio.sleep(LOOK_S)

    def _measure(self, daemon: Daemon) -> None:
        if not daemon.running or daemon.process is None:
            return
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines()
            held = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.endswith(" kB")}
            for into, name in ((self.played.own_bytes, "RssAnon"), (self.played.whole_bytes, "VmRSS")):
                into[daemon.name] = max(into.get(daemon.name, 0), held.get(name, 0))

    def _leaving(self, number: int, status: dict[str, Any]) -> None:
        told = status.get("leaving")
        if isinstance(told, dict) and self.played.leaving.get("peer") == number:
            for name, value in told.items():
                self.played.leaving.setdefault(name, value)

    async def until(self, what: str, seconds: float, is_so: Callable[[], bool]) -> None:
        """Wait until `is_so`. Raises Broke with the ends of the logs if it does not happen."""
        deadline = time.monotonic() + seconds
        while not is_so():
            for daemon in self.peers.values():
                code = None if daemon.process is None or daemon.killed else daemon.process.returncode
                if code not in (None, 0):
                    raise Broke(f"{daemon.name} ended with {code}: {daemon.log_tail()}")
            if time.monotonic() > deadline:
                words = "; ".join(f"{d.name}: {d.log_tail()[-300:]}" for d in self.peers.values())
                raise Broke(f"not within {seconds:.0f} s: {what}: {words}")
            await asyncio.sleep(LOOK_S)

    def exchanged(self, number: int) -> int:
        return int(self.latest.get(number, {}).get("rounds", {}).get("exchanged", 0))

    def trains(self, number: int) -> bool:
        return self.latest.get(number, {}).get("status") == "training"


async def play(wish: Wish) -> Played:
    """Run a preset. The first failure ends it and is recorded."""
    stage = Stage(wish, load_signed(wish.manifest))
    watching: asyncio.Task[None] | None = None
    try:
        more, program = ("--keep-every", f"{KEEP_S:g}"), noting_callbacks(stage.bootstrap)
        stage.ticket = await start_bootstrap(
            stage.bootstrap, wish.manifest, wish.peers, data=wish.data, more=more, program=program
        )
        watching = asyncio.create_task(stage.watch())
        for act in ACTS:
            await act(stage)
    except (Broke, PeerError, TimeoutError, OSError) as error:
        stage.played.broke = f"{type(error).__name__}: {error}"
    finally:
        if watching is not None:
            watching.cancel()
        for daemon in (*stage.peers.values(), stage.bootstrap):
            await daemon.stop(60.0)
    reckon(stage)
    return stage.played


async def begin(stage: Stage) -> None:
    """Start all peers, and wait until each has exchanged once."""
    wish = stage.wish
    numbers = range(1, wish.peers + 1)
    for number in numbers:
        await stage.start(number, wish.peers)
    await stage.until("all train", START_S, lambda: all(map(stage.trains, numbers)))
    if wish.peers > 1:
        await stage.until("all exchange", 20 * wish.round_s, lambda: all(stage.exchanged(n) > 0 for n in numbers))


async def kill(stage: Stage) -> None:
    """Kill a peer in the middle of training and restart it."""
    if stage.wish.peers < 3:
        return
    victim, at = stage.peers[2], time.time()
    victim.kill()
    victim.exit_codes.clear()
    await victim.wait()
    before = stage.exchanged(2)
    stage.latest.pop(2, None)
    await stage.start(2)
    victim.killed = False
    stage.fault_records.append(FaultRecord(Fault("kill", 1, at=0.0), at, time.time()))
    await stage.until("the killed one exchanges", START_S, lambda: stage.exchanged(2) > before)


async def join(stage: Stage) -> None:
    """Let newcomers join, which fetch the state from training peers."""
    for number in range(stage.wish.peers + 1, stage.wish.peers + stage.wish.joins + 1):
        others = list(stage.peers)
        await asyncio.sleep(PACE_S / 2)
        started = time.time()
        await stage.start(number)
        await stage.until("the joiner trains", START_S, partial(stage.trains, number))
        fetched = [one for one in journal(stage, number) if isinstance(one[0], StateFetched)]
        if fetched:
            event, at = fetched[-1]
            before = pace(stage, others, started - PACE_S / 2, started)
            during = pace(stage, others, at - event.seconds - 1, at + 1)
            stage.played.donation = {
                "bytes": float(event.bytes),
                "seconds": event.seconds,
                "mb_per_s": event.bytes / 1e6 / max(event.seconds, 1e-3),
                "tokens_per_s_before": before,
                "tokens_per_s_during": during,
                "pace_percent": 100 * during / before if before else 0.0,
                "from_start_to_training_s": time.time() - started,
            }
        await stage.until("the joiner exchanges", 12 * stage.wish.round_s, partial(_has_exchanged, stage, number))


def _has_exchanged(stage: Stage, number: int) -> bool:
    return stage.exchanged(number) > 0


async def leave(stage: Stage) -> None:
    """Ask one peer to leave, without a time limit."""
    number = min(3, max(stage.peers))
    daemon = stage.peers[number]
    await leaves(stage, number, daemon)


async def leaves(stage: Stage, number: int, daemon: Daemon) -> None:
    stage.played.leaving = {"peer": number}
    began = time.time()
    await send_command(Home(daemon.home).control_socket, "leave", 10.0)
    try:
        async with asyncio.timeout(LEAVE_S):
            code = await daemon.wait()
    except TimeoutError:
        raise Broke(f"{daemon.name} did not leave within {LEAVE_S:.0f} s: {daemon.log_tail()}") from None
    saved = [event for event, _ in journal(stage, number) if isinstance(event, Checkpointed)]
    stage.played.leaving |= {"seconds": time.time() - began, "exit_code": code}
    stage.played.leaving |= {"writing_s": saved[-1].seconds, "saved_bytes": saved[-1].bytes} if saved else {}


async def go_on(stage: Stage) -> None:
    """Wait until the remaining peers have exchanged often enough; then let all leave."""
    stay = [number for number, daemon in stage.peers.items() if daemon.running]
    if len(stay) > 1:
        longest = (stage.wish.rounds + 4) * stage.wish.round_s
        await stage.until("enough rounds", longest, lambda: stage.exchanged(1) >= stage.wish.rounds)
    noted = stage.played.leaving
    for number in stay:
        await leaves(stage, number, stage.peers[number])
    stage.played.leaving = noted or stage.played.leaving


ACTS: tuple[Callable[[Stage], Awaitable[None]], ...] = (begin, kill, join, leave, go_on)


def pace(stage: Stage, numbers: list[int], since: float, until: float) -> float:
    """Return the tokens per second of these peers together."""
    whole = 0.0
    for number in numbers:
        within = [(at, tokens) for at, tokens in stage.seen.get(number, []) if since <= at <= until]
        if len(within) > 1 and within[-1][0] > within[0][0]:
            whole += (within[-1][1] - within[0][1]) / (within[-1][0] - within[0][0])
    return whole


def journal(stage: Stage, number: int) -> list[tuple[Any, float]]:
    folder = Home(stage.peers[number].home).run(stage.signed.run_id)
    return [line for line in read_lines(folder.journal) if line is not None]


def slow_callbacks(daemon: Daemon) -> list[dict[str, Any]]:
    """Return the recorded long callbacks of a daemon."""
    try:
        lines = (daemon.home / CALLBACKS).read_text().splitlines()
        return [json.loads(line) for line in lines]
    except (OSError, ValueError):
        return []


def reckon(stage: Stage) -> None:
    """Read the journals and counters that all peers left."""
    played, accounts = stage.played, []
    played.operators_callbacks = slow_callbacks(stage.bootstrap)
    for number, daemon in sorted(stage.peers.items()):
        played.exit_codes[daemon.name] = daemon.exit_codes
        played.callbacks += slow_callbacks(daemon)
        try:
            me = identities.load_or_create(Home(daemon.home).identity).peer_id
            accounts.append(account(daemon, me, None, stage.signed, daemon.started_at))
            losses = [event.loss for event, _ in journal(stage, number) if isinstance(event, Evaluated)]
        except (OSError, PeerError, AssertionError) as error:
            played.broke = played.broke or f"{daemon.name} left nothing to count: {error}"
            return
        played.outcomes[daemon.name] = accounts[-1].row["rounds"]
        played.losses[daemon.name] = [round(loss, 3) for loss in losses]
    if not accounts:
        return
    swarm = swarm_report(stage.signed, 0, 0.0, accounts, stage.fault_records)["swarm"]
    share, book = swarm["participation"], swarm["ledger"]
    played.participation_percent = None if share is None else 100 * share
    played.imbalance = book["processed"] - book["applied"] - book["dropped"] - book["outstanding"]
    played.rounds = max(row["paired"] for row in played.outcomes.values())
