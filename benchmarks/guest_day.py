"""Does a daemon keep to its owner's conditions, and lose nothing by twenty pauses?

Promises 2 (the ledger balances), 8 (local progress survives) and 9 (the volunteer is the boss). Bounds: the ledger is
0, no exchange is broken, and at most 1 % of the processor time and of the bytes are outside the allowed times. About
eleven minutes.

    python -m benchmarks.guest_day [--minutes 10] [--pauses 20] [--seed 1] [--json FILE] [--results]

A day in ten minutes. A bootstrap node and three peers run as real processes; one of them is the guest, with `--when
idle,plugged-in,unmetered` and quiet hours of one minute of the clock. With three peers one is without a partner in each
round, so a partner whose exchange the guest cancels can exchange with that peer. logind, UPower and NetworkManager are
played on a private D-Bus. At random moments one of the conditions fails for 4 to 6 seconds.

A forbidden time begins when the service says so, or the minute of the quiet hours begins. It ends likewise. So the
daemon's drain is outside of the allowed times, and its waiting before it goes on is inside. Processor time is that of
daemon, trainer and p2pd. Bytes are payloads and control traffic in both directions.

An exchange counts as broken when it fails, when only one side completes it, or when the guest cancelled it and its
partner does not exchange with another peer in that round."""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.result import Benchmark, Figure, Table, options, parsed, publish
from peer.identity import load_or_create
from peer.lab.localswarm.processes import LOOPBACK, Daemon, start_bootstrap, start_peer
from peer.observe import events
from peer.observe.event_codec import read_lines
from peer.observe.totals import ledger, read_totals
from peer.run.home import Home
from peer.run.manifest import SignedManifest, default_text, sign_text
from peer.run.model_layout import layout_for
from peer.run.overrides import apply_overrides
from peer.run.resolve import resolve
from peer.trainer.arena import read_counters
from tests.support.fake_system_bus import FakeSystem, fake_system

ABOUT = Benchmark(
    "guest_day",
    "Does a daemon keep to its owner's conditions, and lose nothing by twenty pauses?",
    "2 (conservation), 8 (local progress survives), 9 (the volunteer is the boss)",
    smallest="--minutes 2 --pauses 2",
    needs=("dbus-daemon",),
    is_long=True,
)
SETTINGS = [
    "sync.sync_every=10",
    "train.total_rounds=1000000",
    "train.eval_every=1000000",
    "train.eval_windows=16",
    "train.batch=2",
    "model.hidden_size=128",
    "model.intermediate_size=352",
    "sync.acceptance=finite",
]
LOSSES: list[tuple[str, Any, Any]] = [("OnBattery", True, False), ("IdleHint", False, True), ("Metered", 1, 2)]
"""(property, value that forbids training, value that allows it)."""
QUIET_S = 60.0
FORBIDDEN_S = 4.0, 6.0
LEAST_ALLOWED_S = 14.0
BACK_S = 15.0
"""Seconds that the guest may take to resume."""
START_S, LOOK_S = 240.0, 0.1
OUTSIDE = 1.0
"""Largest accepted percentage of processor time and bytes outside the allowed times."""


@dataclass(frozen=True)
class Spent:
    """Processor seconds and bytes used so far."""

    cpu: dict[tuple[int, float], float]
    """(pid, start time) of each process -> processor seconds."""
    nbytes: int
    payload: int
    """The part of `nbytes` that is payload."""

    def since(self, before: Spent) -> tuple[float, int]:
        """Return the processor seconds and bytes since an earlier reading. The last second of a process that ended in
        between is not counted."""
        cpu = sum(seconds - before.cpu.get(process, 0.0) for process, seconds in self.cpu.items())
        return cpu, self.nbytes - before.nbytes


@dataclass
class Day:
    """The sums of one day."""

    forbidden_s: float = 0.0
    cpu_outside: float = 0.0
    bytes_outside: int = 0
    cpu_drained: float = 0.0
    """The part of `cpu_outside` that was used until the guest stopped."""
    bytes_drained: int = 0
    cpu_all: float = 0.0
    bytes_all: int = 0
    still_after_s: list[float] = field(default_factory=list)
    """Seconds from the service's signal until the guest had saved and stopped."""
    back_after_s: list[float] = field(default_factory=list)
    """Seconds from the service's signal until training resumed."""
    causes: Counter[str] = field(default_factory=Counter)
    why_paused: set[str] = field(default_factory=set)
    payload_of: list[tuple[float, float, int]] = field(default_factory=list)
    """(begin, end, payload bytes of the guest) of each pause, in wall-clock time."""

    def payload_at(self, at: float) -> int:
        """Return the payload bytes of the pause around this time."""
        return next(nbytes for began, ended, nbytes in self.payload_of if began - LOOK_S <= at <= ended)


class Guest:
    """The watched daemon."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon

    async def status(self) -> dict[str, Any]:
        report = await self.daemon.status()
        assert report is not None, self.daemon.log_tail()
        return report

    async def spent(self) -> Spent:
        report = await self.status()
        control = sum(sum(counts.values()) for counts in report["control_bytes"].values())
        assert self.daemon.process is not None
        daemon, cpu = psutil.Process(self.daemon.process.pid), {}
        for process in (daemon, *daemon.children(recursive=True)):
            times = process.cpu_times()
            cpu[process.pid, process.create_time()] = times.user + times.system
        payload = report["bytes_sent"] + report["bytes_received"]
        return Spent(cpu, payload + control, payload)

    async def is_in(self, status: str, within_s: float = 120.0) -> float:
        """Wait until the daemon has this status. Return the seconds that it took."""
        began = time.monotonic()
        while (report := await self.status())["status"] != status or report["phase"].startswith("pausing"):
            assert time.monotonic() < began + within_s, f"not {status} but {report['status']}: {report['phase']}"
            await asyncio.sleep(LOOK_S)
        return time.monotonic() - began


async def forbid(guest: Guest, day: Day, system: FakeSystem, cause: int, seconds: float) -> None:
    """Make one condition fail for `seconds`."""
    name, forbids, allows = LOSSES[cause]
    before, began, at = await guest.spent(), time.monotonic(), time.time()
    await system.change(name, forbids)
    await _stands_still(guest, day, before)
    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
    _count(day, before, await guest.spent(), at)
    await system.change(name, allows)
    day.causes[name] += 1
    day.back_after_s.append(await guest.is_in("training"))


async def quiet_minute(guest: Guest, day: Day, begins: float) -> None:
    """Wait for the minute of quiet hours, which begins at a wall-clock time, and measure it."""
    await asyncio.sleep(max(0.0, begins - time.time()))
    before = await guest.spent()
    await _stands_still(guest, day, before)
    await asyncio.sleep(max(0.0, begins + QUIET_S - time.time()))
    _count(day, before, await guest.spent(), begins)
    day.causes["quiet hours"] += 1
    day.back_after_s.append(await guest.is_in("training"))


async def _stands_still(guest: Guest, day: Day, before: Spent) -> None:
    day.still_after_s.append(await guest.is_in("paused"))
    day.why_paused.add((await guest.status())["paused"]["now"])
    cpu, nbytes = (await guest.spent()).since(before)
    day.cpu_drained += cpu
    day.bytes_drained += nbytes


def _count(day: Day, before: Spent, after: Spent, began: float) -> None:
    """Add a pause that ends now. `began`: wall-clock time."""
    cpu, nbytes = after.since(before)
    day.forbidden_s += time.time() - began
    day.cpu_outside += cpu
    day.bytes_outside += nbytes
    day.payload_of.append((began, time.time(), after.payload - before.payload))


async def live(guest: Guest, system: FakeSystem, quiet_at: float, ends: float, pauses: int, rng: random.Random) -> Day:
    """Play the day. `quiet_at`, `ends`: wall-clock times."""
    day, pause = Day(), 0
    tally, sampled = Tally(guest), asyncio.create_task(asyncio.sleep(0))
    await sampled
    await tally.look(day)
    while sum(day.causes.values()) < pauses:
        each_s = (ends - time.time()) / (pauses - sum(day.causes.values()))
        reach = max(LEAST_ALLOWED_S, each_s - sum(FORBIDDEN_S) / 2)
        if not day.causes["quiet hours"] and time.time() + 1.2 * reach + FORBIDDEN_S[1] + BACK_S > quiet_at:
            await tally.during(day, quiet_minute(guest, day, quiet_at))
            continue
        await tally.during(day, asyncio.sleep(rng.uniform(0.8, 1.2) * reach))
        await tally.during(day, forbid(guest, day, system, pause % len(LOSSES), rng.uniform(*FORBIDDEN_S)))
        pause += 1
        print(f"{pause:>3} of {pauses}: stood still after {day.still_after_s[-1]:.1f} s", flush=True)
    await tally.during(day, asyncio.sleep(max(0.0, ends - time.time())))
    return day


class Tally:
    """Sums up all processor time and bytes. Reads them often, because trainers end and start."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._last: Spent | None = None

    async def look(self, day: Day) -> None:
        now = await self._guest.spent()
        if self._last is not None:
            cpu, nbytes = now.since(self._last)
            day.cpu_all += cpu
            day.bytes_all += nbytes
        self._last = now

    async def during(self, day: Day, work: Any) -> None:
        """Read the sums every two seconds while `work` runs."""
        running = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({running}, timeout=2.0))[0]:
                await self.look(day)
            running.result()
            await self.look(day)
        finally:
            running.cancel()


def quiet_hours(after_s: float) -> tuple[str, float]:
    """Return a minute of the clock that begins at least `after_s` seconds from now, as an option and as its begin."""
    begins = (time.time() + after_s) // 60 * 60 + 60
    first, last = (time.strftime("%H:%M", time.localtime(at)) for at in (begins, begins + QUIET_S))
    return f"{first}-{last}", begins


Journal = list[tuple[events.Event, float]]
"""Events with their wall-clock times."""


def journal_of(daemon: Daemon, signed: SignedManifest) -> Journal:
    return [found for found in read_lines(Home(daemon.home).run(signed.run_id).journal) if found is not None]


def imbalance(daemon: Daemon, signed: SignedManifest) -> int:
    layout = layout_for(signed.manifest.model, resolve(signed.manifest.sync))
    folder = Home(daemon.home).run(signed.run_id)
    counters = read_counters(folder.path, 1)
    book = ledger(read_totals(folder.journal), counters.tokens, counters.base, [layout.elements])
    assert book.processed > 0
    return abs(book.imbalance)


def outcomes(journal: Journal) -> dict[int, events.RoundEnded]:
    """Return round -> its end, for each round that ended."""
    return {event.round: event for event, _ in journal if isinstance(event, events.RoundEnded)}


def broken(journals: dict[str, Journal]) -> list[str]:
    """Return the exchanges that failed or that one side alone ended. `journals`: by peer id."""
    ends = {me: outcomes(journal) for me, journal in journals.items()}
    one_sided = [
        f"round {end.round}: one side alone"
        for me, ended in ends.items()
        for end in ended.values()
        if end.outcome == "exchanged" and getattr(ends[end.partner].get(end.round), "partner", "") != me
    ]
    failed = [
        f"round {event.round}: {event.reason}"
        for journal in journals.values()
        for event, _ in journal
        if isinstance(event, events.PartnerFailed)
    ]
    return one_sided + failed


@dataclass(frozen=True)
class LetGo:
    """A partner whose exchange the guest cancelled for a pause."""

    heard: bool
    """Whether the partner received the cancellation at once."""
    outcome: str
    """Outcome of the partner's round."""
    payload: int
    """Payload bytes that the guest sent and received in that pause."""


def let_go(guest: Journal, journals: dict[str, Journal], day: Day) -> list[LetGo]:
    """Return the outcomes of all partners whose exchange the guest cancelled for a pause."""
    found = [(event, at) for event, at in guest if isinstance(event, events.PartnerLetGo)]
    ended = [outcomes(journals[event.peer]).get(event.round) for event, _ in found]
    return [
        LetGo(event.heard, end.outcome if end else "none", day.payload_at(at))
        for (event, at), end in zip(found, ended, strict=True)
    ]


async def measure(home: Path, minutes: float, pauses: int, seed: int, priority: str) -> dict[str, Any]:
    """Run the whole benchmark. No process is left running."""
    node, guest, *others = (Daemon(name, home / name) for name in ("node", "guest", "second", "third"))
    text = apply_overrides(default_text(), SETTINGS)
    signed = sign_text(text, load_or_create(Home(node.home).identity), home / "run.toml")
    async with fake_system(home) as system:
        try:
            ticket = await start_bootstrap(node, home / "run.toml", 1)
            for other in others:
                await start_peer(other, ticket, threads=1, speed=0.1, min_peers=1)
            span, quiet_at = quiet_hours(60 * minutes / 2)
            await guest.start(
                *("join", ticket, "--host-maddrs", LOOPBACK, "--threads", "2", "--checkpoint-every", "15"),
                *("--plain", "--yes"),
                *("--when", "idle,plugged-in,unmetered", "--quiet-hours", span, "--priority", priority),
                env={"DBUS_SYSTEM_BUS_ADDRESS": system.address},
            )
            await _begun(guest, *others)
            ends = time.time() + 60 * minutes
            day = await live(Guest(guest), system, quiet_at, ends, pauses, random.Random(seed))
        finally:
            for daemon in (guest, *others, node):
                await daemon.stop(20.0)
    peers = guest, *others
    journals = {load_or_create(Home(peer.home).identity).peer_id: journal_of(peer, signed) for peer in peers}
    own = next(iter(journals.values()))
    return {
        "day": day,
        "broken": broken(journals),
        "let go": let_go(own, journals, day),
        "imbalance": sum(imbalance(peer, signed) for peer in peers),
        "exits": [peer.process.returncode for peer in peers if peer.process is not None],
        "outcomes": Counter(end.outcome for end in outcomes(own).values()),
        "paused": sum(isinstance(event, events.Paused) for event, _ in own),
        "went on": sum(isinstance(event, events.WentOn) for event, _ in own),
        "dropped": Counter(event.reason for event, _ in own if isinstance(event, events.Dropped)),
    }


async def _begun(*daemons: Daemon) -> None:
    """Wait until all of these daemons have exchanged."""
    began = time.monotonic()
    for daemon in daemons:
        while not ((await daemon.status()) or {}).get("rounds", {}).get("exchanged"):
            assert daemon.running, daemon.log_tail()
            assert time.monotonic() < began + START_S, daemon.log_tail()
            await asyncio.sleep(LOOK_S)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--pauses", type=int, default=20, help="That of the quiet hours is one of them.")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--priority", choices=["low", "normal"], default="low", help="Of the guest's trainer.")
    given = parsed(parser, ABOUT)
    with tempfile.TemporaryDirectory(prefix="guest-day-") as folder:
        found = asyncio.run(measure(Path(folder), given.minutes, given.pauses, given.seed, given.priority))
    day: Day = found["day"]
    gone: list[LetGo] = found["let go"]
    alone = sum(one.outcome != "exchanged" for one in gone)
    for name, value in found.items():
        print(f"{name:>12}  {value}")
    allowed_s = 60 * given.minutes - day.forbidden_s
    figures = [
        Figure("ledgers, off by", "", found["imbalance"], 0),
        Figure("exchanges broken", "", len(found["broken"]) + alone, 0),
        Figure("payload bytes of pauses that let a partner go", "", sum(one.payload for one in gone), 0),
        Figure("pauses that were entered and left", "", min(found["paused"], found["went on"]), at_least=given.pauses),
        Figure("processor time outside the allowed times", "%", 100 * day.cpu_outside / day.cpu_all, OUTSIDE),
        Figure("bytes outside the allowed times", "%", 100 * day.bytes_outside / day.bytes_all, OUTSIDE),
        Figure("processor time from standing still on", "%", 100 * (day.cpu_outside - day.cpu_drained) / day.cpu_all),
        Figure("bytes from standing still on", "%", 100 * (day.bytes_outside - day.bytes_drained) / day.bytes_all),
        Figure("processor time of a pause until it stands still", "ms", 1000 * day.cpu_drained / given.pauses),
        Figure("of the day forbidden", "%", 100 * day.forbidden_s / (60 * given.minutes)),
        Figure("processor time outside, a second", "ms", 1000 * day.cpu_outside / day.forbidden_s),
        Figure(
            "processor time inside, a second",
            "ms",
            1000 * (day.cpu_all - day.cpu_outside) / allowed_s,
        ),
        Figure("from the word of a service to standing still, worst", "s", max(day.still_after_s)),
        Figure("from the word of a service to training again, worst", "s", max(day.back_after_s)),
        Figure("exit codes other than 0", "", sum(code != 0 for code in found["exits"]), 0),
    ]
    fates = {
        "partners that were let go before a byte": len(gone),
        "of these told at once": sum(one.heard for one in gone),
        "of these left without an exchange": alone,
        "pauses with the end of an exchange": sum(nbytes > 0 for _, _, nbytes in day.payload_of),
    }
    rows = [[name, count] for name, count in {**fates, **day.causes, **found["outcomes"]}.items()]
    kept = publish(given, ABOUT, figures, Table("pauses by cause, rounds by outcome", ["", "count"], rows))
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
